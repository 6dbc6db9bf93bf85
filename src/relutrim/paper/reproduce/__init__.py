"""The paper's experiments from data to tables: train, measure every network, collect.

What is measured on one network is a *task*; its outcome is a line in an append-only file. Whatever kills a
run, the next one starts with the lines that are there.
"""
