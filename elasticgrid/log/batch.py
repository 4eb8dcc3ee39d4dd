"""What may be appended at once; every adapter asks this first."""

from __future__ import annotations

from collections.abc import Sequence

from elasticgrid.core.errors import InvalidInput
from elasticgrid.core.events import Event
from elasticgrid.core.names import is_name
from elasticgrid.log.port import MAX_BATCH


def check_batch(events: Sequence[Event]) -> None:
    """Refuse what no log takes.

    Raises:
        InvalidInput: no events, more than `MAX_BATCH`, events of more than one job, a tenant or job that is no name, or
            an id that is empty or used twice.
    """
    if not events:
        raise InvalidInput("an append needs at least one event")
    if len(events) > MAX_BATCH:
        raise InvalidInput(
            f"{len(events)} events in one append; at most {MAX_BATCH} are possible", hint="append in parts"
        )
    first = events[0]
    if not (is_name(first.tenant) and is_name(first.job)):
        raise InvalidInput("tenant and job are names", where=f"{first.tenant}/{first.job}")
    if any(event.tenant != first.tenant or event.job != first.job for event in events):
        raise InvalidInput("the events of one append concern one job", where=f"{first.tenant}/{first.job}")
    ids = {event.id for event in events}
    if len(ids) != len(events) or "" in ids:
        raise InvalidInput("every event of an append has an id of its own", where=f"{first.tenant}/{first.job}")
