"""Looking back: what happened, why, and whether every decision follows from what was known."""
