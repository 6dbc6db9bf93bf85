"""Bounds of every value over the domain, in spite of rounding."""
