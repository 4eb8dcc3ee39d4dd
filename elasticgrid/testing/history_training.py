"""What the jobs of a `SimulatedGrid` train."""

from __future__ import annotations

from elasticgrid.sim.training import StepTimes, Workload

__all__ = ["StepTimes", "Workload"]
