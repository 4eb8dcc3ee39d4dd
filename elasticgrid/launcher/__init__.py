"""The launcher: it turns placements into iroh-tinker jobs, watches their nodes and stops what is not wanted."""
