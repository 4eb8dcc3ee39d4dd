"""The trainer hook: step samples out, stop and resume in. Never blocks, never raises."""
