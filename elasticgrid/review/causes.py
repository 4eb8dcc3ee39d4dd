"""The causal chain of an event: what led to it, and what it led to."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from elasticgrid.core.errors import NotFound
from elasticgrid.core.events import Event, Recorded
from elasticgrid.review.timeline import TimelineLine, line_of


class CausalStep(msgspec.Struct, frozen=True):
    """An event in a chain, `depth` causes away from the one that was asked about."""

    depth: int
    line: TimelineLine


def find(records: Iterable[Recorded], sequence: int) -> Recorded:
    """The event at a sequence.

    Raises:
        NotFound: it is not in the log.
    """
    for recorded in records:
        if recorded.sequence == sequence:
            return recorded
        if recorded.sequence > sequence:
            break
    raise NotFound(f"there is no event {sequence} in this log", hint="`elasticgrid events list` shows what there is")


def causes(records: Iterable[Recorded], sequence: int) -> tuple[CausalStep, ...]:
    """The event, its cause, the cause of that, and so on to what came from outside.

    Args:
        records: the log; it is read once up to the event, whose job's events are kept meanwhile.

    Raises:
        NotFound: the event is not in the log.
    """
    seen: dict[tuple[str, str], dict[str, Recorded]] = {}
    for recorded in records:
        event = recorded.event
        of_job = seen.setdefault((event.tenant, event.job), {})
        of_job.setdefault(event.id, recorded)
        if recorded.sequence < sequence:
            continue
        if recorded.sequence > sequence:
            break
        return tuple(CausalStep(depth, line_of(each)) for depth, each in enumerate(_chain(recorded, of_job)))
    raise NotFound(f"there is no event {sequence} in this log", hint="`elasticgrid events list` shows what there is")


def _chain(recorded: Recorded, of_job: dict[str, Recorded]) -> list[Recorded]:
    chain = [recorded]
    while True:
        event = chain[-1].event
        cause = of_job.get(event.causation_id) if isinstance(event, Event) else None
        if cause is None or cause.sequence >= chain[-1].sequence:
            return chain
        chain.append(cause)


def effects(records: Iterable[Recorded], sequence: int) -> tuple[CausalStep, ...]:
    """The event and everything that it caused, directly or through others, in the order of the log.

    Raises:
        NotFound: the event is not in the log.
    """
    depths: dict[str, int] = {}
    steps: list[CausalStep] = []
    for recorded in records:
        event = recorded.event
        if recorded.sequence == sequence:
            depths[event.id] = 0
            steps.append(CausalStep(0, line_of(recorded)))
        elif isinstance(event, Event) and event.causation_id in depths and event.id not in depths:
            depths[event.id] = depths[event.causation_id] + 1
            steps.append(CausalStep(depths[event.id], line_of(recorded)))
    if not steps:
        raise NotFound(
            f"there is no event {sequence} in this log", hint="`elasticgrid events list` shows what there is"
        )
    return tuple(steps)
