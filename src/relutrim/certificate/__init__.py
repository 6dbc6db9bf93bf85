"""Proofs as plain data: what is written down so that nobody has to trust who found it."""
