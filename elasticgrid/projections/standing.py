"""Where a job stands, for people: what the fold knows, in the words of who waits for the job. Pure."""

from __future__ import annotations

from typing import Final

from elasticgrid.core.job import GONE, JobState, Phase
from elasticgrid.utc import moment

_BUDGET: Final = "budget"


def shown_phase(state: JobState) -> Phase:
    """The job's phase; of one that was stopped by its budget and has no node any more, that it waits to start."""
    over_budget = is_over_budget(state) and all(node.status in GONE for node in state.nodes.values())
    return "submitted" if state.phase == "draining" and over_budget else state.phase


def waiting(state: JobState) -> str:
    """Why the job has fewer nodes than it is to have, or none; empty when it does not wait."""
    if state.terminal:
        return ""
    scale, placement = state.last_scale, state.last_placement
    if scale is not None and is_over_budget(state):
        until_ms = scale.next_change_ms
        return "over budget" + (f" until {moment(until_ms)} UTC" if until_ms is not None else "")
    return placement.waiting if placement is not None else ""


def is_over_budget(state: JobState) -> bool:
    """Whether the job is to have no node because its tenant's budget is used up."""
    return state.last_scale is not None and state.last_scale.rule == _BUDGET and state.target_nodes == 0
