"""The journal of a long run: what it has found is on disk at once, so that a run that dies can go on."""
