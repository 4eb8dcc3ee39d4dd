"""The bus: subjects, streams, the embedded nats-server, connecting, the follower and the windowed publisher."""
