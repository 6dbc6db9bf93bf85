"""Benchmarks. Each is a module to run (``python -m benchmarks.NAME``) that writes its section of
RESULTS.md.
"""
