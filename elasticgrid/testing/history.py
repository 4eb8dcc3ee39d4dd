"""Realistic logs without a server: `SimulatedGrid`, whose core is real and whose machines, trainers and clock are not.

The same calls give the same log to the byte.
"""

from __future__ import annotations

from elasticgrid.sim.grid import HERE, SimulatedGrid

__all__ = ["HERE", "SimulatedGrid"]
