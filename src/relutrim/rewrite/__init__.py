"""Exact rewrites, one per file, and the pipeline that applies them."""
