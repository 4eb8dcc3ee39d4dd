"""What every job is charged for, as a mapping that costs little to replace one job in.

Each event that concerns a job's nodes makes a new state of the fleet. A plain dictionary of all jobs would be copied
each time, so jobs are kept in shards, of which one is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias
from zlib import crc32

import msgspec

Phase: TypeAlias = Literal["launching", "up", "leaving"]

#: A thousand jobs make shards of thirty, and as many shards.
SHARDS: Final = 32


class _Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a job is charged for, or a part of it."""


class Planned(_Value, frozen=True, kw_only=True):
    """An assignment of which no launch was requested yet."""

    provider: str
    nodes: int


class Launch(_Value, frozen=True, kw_only=True):
    """A launch that was requested, and its nodes that are not gone.

    Attributes:
        started_ms: when it was granted; None before.
        counted: whether a loss of it already counted against the provider's health.
    """

    assignment: str
    provider: str
    nodes: dict[str, Phase]
    started_ms: int | None = None
    counted: bool = False


class JobNodes(_Value, frozen=True, kw_only=True):
    """What a job is charged for: by assignment before, by attempt after its launch was requested."""

    planned: dict[str, Planned] = {}
    launches: dict[str, Launch] = {}


#: By shard, jobs by `<tenant>/<job>`; those that nothing is charged to are absent, and so are empty shards.
NodesByJob: TypeAlias = dict[int, dict[str, JobNodes]]

NO_NODES: Final = JobNodes()


def job_key(tenant: str, job: str) -> str:
    """How a job is named in a `NodesByJob`."""
    return f"{tenant}/{job}"


def _shard_of(key: str) -> int:
    return crc32(key.encode()) % SHARDS


def nodes_of(jobs: NodesByJob, key: str) -> JobNodes:
    """What the job is charged for."""
    shard = jobs.get(_shard_of(key))
    return NO_NODES if shard is None else shard.get(key, NO_NODES)


def with_nodes(jobs: NodesByJob, key: str, nodes: JobNodes) -> NodesByJob:
    """The same jobs with what this one is charged for replaced."""
    after = jobs.copy()
    index = _shard_of(key)
    shard = after.get(index)
    shard = {} if shard is None else shard.copy()
    if nodes.planned or nodes.launches:
        shard[key] = nodes
    else:
        shard.pop(key, None)
    if shard:
        after[index] = shard
    else:
        after.pop(index, None)
    return after


def all_nodes(jobs: NodesByJob) -> Iterator[tuple[str, JobNodes]]:
    """Every job that something is charged to, in no order that means anything."""
    for shard in jobs.values():
        yield from shard.items()
