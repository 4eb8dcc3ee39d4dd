"""Engines of our own, and their registration with iroh-tinker."""

from __future__ import annotations

from iroh_tinker.cloud.engines import register_engine

from elasticgrid.launcher.engines.local import LocalProcesses


def register_engines() -> None:
    """Make `local` mean our engine in this process; a second call changes nothing."""
    register_engine("local", LocalProcesses)
