"""What people ask a log for: a job as `[TENANT/]JOB`, types of events, a span of time, a place in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from elasticgrid.cli.output import say
from elasticgrid.cli.times import optional_time_ms, time_ms
from elasticgrid.core.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from elasticgrid.core.events import Recorded
    from elasticgrid.core.grid import JobKey
    from elasticgrid.review.job_names import SeenJobs


def parse_job(text: str, tenant: str | None = None, *, where: str = "JOB") -> tuple[str | None, str]:
    """(tenant, job) of `[TENANT/]JOB`; the tenant is `tenant` where the text names none.

    Raises:
        NotFound: no job can be called so.
        InvalidInput: both name a tenant, and not the same.
    """
    named, slash, job = text.rpartition("/")
    if not job or (slash and not named) or "/" in named:
        raise NotFound(f"{text[:80]!r} names no job", where=where, hint="write JOB or TENANT/JOB")
    if slash and tenant not in (None, named):
        raise InvalidInput(f"{text!r} is not of tenant {tenant!r}", where=where, hint="name one tenant")
    return named if slash else tenant, job


def job_in(records: Iterable[Recorded], text: str, tenant: str | None = None, *, where: str = "--job") -> JobKey:
    """The job of a log that `[TENANT/]JOB` names; the log is read through for it.

    Raises:
        NotFound: there is none.
        InvalidInput: several tenants have one, and none is named.
    """
    from elasticgrid.review.job_names import find_job, jobs_of

    tenant, job = parse_job(text, tenant, where=where)
    return find_job(jobs_of(records), tenant, job)


def known_types(types: Sequence[str], *, where: str = "--type") -> tuple[str, ...]:
    """The types, or first words of types, asked for.

    Raises:
        InvalidInput: there is no such type.
    """
    from elasticgrid.core.events import EVENT_TYPES

    known = {*EVENT_TYPES, *(name.split(".", 1)[0] for name in EVENT_TYPES)}
    for each in types:
        if each not in known:
            word = each.split(".", 1)[0]
            near = sorted(name for name in EVENT_TYPES if name.startswith(f"{word}."))
            raise InvalidInput(
                f"there is no type {each!r} of events",
                where=where,
                hint=", ".join(near or sorted({name.split(".", 1)[0] for name in EVENT_TYPES})),
            )
    return tuple(types)


def span_ms(since: str | None, until: str | None) -> tuple[int | None, int | None]:
    """From (inclusive) and until (exclusive) when, Unix milliseconds; None where nothing is said.

    Raises:
        InvalidInput: one is no time, or nothing is between them.
    """
    since_ms, until_ms = optional_time_ms(since, where="--since"), optional_time_ms(until, where="--until")
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise InvalidInput("nothing is between these times", where="--since", hint="--since is to be before --until")
    return since_ms, until_ms


def place(text: str | None, *, where: str) -> tuple[int | None, int | None]:
    """(sequence, Unix milliseconds) of a place in the log: one of both, or neither for its end.

    Raises:
        InvalidInput: it is neither a sequence nor a time.
    """
    if text is None:
        return None, None
    if text.isascii() and text.isdigit():
        return int(text), None
    return None, time_ms(text, where=where)


def tell_place(sequence: int | None, moment_ms: int | None, reached: int, read: SeenJobs, *, is_archive: bool) -> None:
    """Say where an answer stands whose place was asked for and is not in the log.

    Args:
        sequence, moment_ms: what was asked for.
        reached: the last event before that place.
        read: what was read.
    """
    from elasticgrid import utc

    at_end = read.last_sequence == reached
    if sequence is not None and sequence > reached:
        if at_end:
            say(f"the log ends with event {reached}: this is what it was then")
        else:
            say(f"event {sequence} is not in the log: this is what it was after event {reached}")
    elif moment_ms is not None and at_end and is_archive and moment_ms > read.last_ms:
        say(f"the archive ends with event {reached} at {utc.moment(read.last_ms)} UTC: this is what it was then")
