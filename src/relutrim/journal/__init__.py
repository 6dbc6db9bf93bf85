"""The journal of a long run: what it has found is on disk at once, so that a run that dies can go on."""

NAME = "relutrim.journal"
"""The file in the folder that a user names."""
