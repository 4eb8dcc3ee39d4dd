"""The causal chain of an event: what led to it, and what it led to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from elasticgrid.core.direct_causes import DirectCauses
from elasticgrid.core.errors import NotFound
from elasticgrid.core.events import Event, Recorded
from elasticgrid.review.timeline import Days, TimelineLine, line_of


class CausalStep(msgspec.Struct, frozen=True):
    """An event in a chain, `depth` causes away from the one that was asked about.

    Attributes:
        line: the event; its `delta_ms` is the time since its direct cause, 0 where the log has none.
        cause: sequence of its direct cause; 0 where the log has none.
    """

    depth: int
    line: TimelineLine
    cause: int = 0


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
    raise _not_found(sequence)


def causes(records: Iterable[Recorded], sequence: int) -> tuple[CausalStep, ...]:
    """The event, its cause, the cause of that, and so on to what came from outside.

    Args:
        records: the log; it is read once up to the event, whose job's events are kept meanwhile.

    Raises:
        NotFound: the event is not in the log.
    """
    links = DirectCauses()
    seen: dict[tuple[str, str], dict[str, tuple[Recorded, str]]] = {}
    for recorded in records:
        event = recorded.event
        of_job = seen.setdefault((event.tenant, event.job), {})
        if recorded.sequence > sequence:
            break
        of_job.setdefault(event.id, (recorded, links.told(event) if isinstance(event, Event) else ""))
        if recorded.sequence == sequence:
            return tuple(_chain(event.id, of_job))
        if isinstance(event, Event):
            links.take(event)
    raise _not_found(sequence)


def _chain(event_id: str, of_job: dict[str, tuple[Recorded, str]]) -> Iterator[CausalStep]:
    recorded, cause_id = of_job[event_id]
    depth = 0
    while True:
        cause, further_id = of_job.get(cause_id, (None, ""))
        if cause is None or cause.sequence >= recorded.sequence:
            yield CausalStep(depth, line_of(recorded))
            return
        yield _step(depth, recorded, cause)
        recorded, cause_id = cause, further_id
        depth += 1


def effects(records: Iterable[Recorded], sequence: int) -> tuple[CausalStep, ...]:
    """The event and everything that it caused, directly or through others, in the order of the log.

    Raises:
        NotFound: the event is not in the log.
    """
    links = DirectCauses()
    told: dict[str, tuple[Recorded, int]] = {}
    steps: list[CausalStep] = []
    for recorded in records:
        event = recorded.event
        if recorded.sequence == sequence:
            told[event.id] = (recorded, 0)
            steps.append(CausalStep(0, line_of(recorded)))
        if not isinstance(event, Event):
            continue
        cause_id = links.told(event)
        if cause_id in told and event.id not in told:
            cause, depth = told[cause_id]
            told[event.id] = (recorded, depth + 1)
            steps.append(_step(depth + 1, recorded, cause))
        links.take(event)
    if not steps:
        raise _not_found(sequence)
    return tuple(steps)


def chain_lines(steps: Iterable[CausalStep]) -> Iterator[str]:
    """A chain for people: how many causes away each event is, how long after its direct cause, and which that is."""
    days = Days()
    for step in steps:
        if day := days.begun(step.line.time_ms):
            yield day
        caused = f" <- #{step.cause}" if step.cause else ""
        yield f"{'  ' * step.depth}{step.line.text(delta=step.cause > 0)}{caused}"


def _step(depth: int, recorded: Recorded, cause: Recorded) -> CausalStep:
    line = msgspec.structs.replace(line_of(recorded), delta_ms=recorded.recorded_ms - cause.recorded_ms)
    return CausalStep(depth, line, cause.sequence)


def _not_found(sequence: int) -> NotFound:
    hint = "`elasticgrid replay timeline` shows what there is"
    return NotFound(f"there is no event {sequence} in this log", hint=hint)
