"""The gateway: the one way in for people and programs, by HTTP and server-sent events."""
