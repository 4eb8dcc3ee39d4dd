"""How the services are started: each alone, or all of them with an embedded bus in one process."""
