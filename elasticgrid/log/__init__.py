"""The event log: the port, its adapters, and how events become bytes and back."""
