"""From bounds and witnesses to verdicts."""
