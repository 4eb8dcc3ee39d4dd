"""The trainer hook: publishes step samples, asks whether to stop, tells about checkpoints. Never blocks, never raises."""
