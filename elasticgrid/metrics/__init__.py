"""Metrics for Prometheus: what all services share. What a service measures of itself is beside it."""
