"""Inputs that show what neurons can do."""
