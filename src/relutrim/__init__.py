"""relutrim."""
