"""What the views answer with. Times are Unix milliseconds by the log's clock, 0 when it has not come to that."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from elasticgrid import base64url
from elasticgrid.core.errors import InvalidInput
from elasticgrid.core.events import CheckpointRef, Member, PlacementDecided, ScaleDecided
from elasticgrid.core.spec import JobSpec


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A job in a line.

    Attributes:
        target_nodes, actual_nodes, world_nodes: nodes decided on, nodes whose agent is up, nodes that train together.
        round: the last round, 0 before the first.
        decisions: how many decisions there were; `action`, `rule` and `reason` are those of the last about its size.
        phase: `submitted` also while it waits, without nodes, for its tenant's next budget.
        waiting: why it has fewer nodes than decided on, or until when it has none for want of a budget.
        paused: why no size is decided; empty when it is.
        checkpoint_step: steps in the last committed checkpoint.
        cost_microdollars: what its nodes cost so far; `price_microdollars_per_hour` what they cost now.
        sequence: its last event in the log.
    """

    tenant: str
    id: str
    name: str
    phase: str
    band: str
    min_nodes: int
    max_nodes: int
    target_nodes: int
    actual_nodes: int
    world_nodes: int
    round: int
    decisions: int
    action: str
    rule: str
    reason: str
    waiting: str
    paused: str
    cancel_requested: bool
    outcome_reason: str
    checkpoint_step: int
    submitted_ms: int
    finished_ms: int
    sequence: int
    cost_microdollars: int
    price_microdollars_per_hour: int


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The rest of what is known of a job.

    Attributes:
        spec: as it was submitted.
        scale, placement: the last decision about its size and about where it runs.
        members: nodes of the last round by group rank.
        app_failures, infra_failures: counted against the two budgets; `failure_text` is the last one.
        illegal: events that its state did not allow, `last_illegal` the last of them; `strays` facts about nodes it
            does not know.
        unknown_type: an event type that stops its decisions; empty when there is none.
    """

    spec: JobSpec
    scale: ScaleDecided | None = None
    placement: PlacementDecided | None = None
    members: tuple[Member, ...] = ()
    checkpoint: CheckpointRef | None = None
    drain_reason: str = ""
    app_failures: int = 0
    infra_failures: int = 0
    failure_text: str = ""
    samples_published: int = 0
    samples_dropped: int = 0
    illegal: int = 0
    last_illegal: str = ""
    strays: int = 0
    unknown_type: str = ""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a job.

    Attributes:
        round, last_step: the last round it started in and the steps done as of its last report.
        charged_from_ms, gone_ms: since when it costs, and until when.
    """

    id: str
    assignment: str
    provider: str
    market: str
    status: str
    host: str
    round: int
    last_step: int
    price_microdollars_per_hour: int
    charged_from_ms: int
    gone_ms: int


class LaunchView(msgspec.Struct, frozen=True, kw_only=True):
    """An assignment of a placement and the launch that serves it.

    Attributes:
        released_ms: when the placement gave it up.
        handle: what the engine calls it.
        failure: the class of its failure.
    """

    id: str
    provider: str
    market: str
    status: str
    nodes: int
    price_microdollars_per_hour: int
    placed_ms: int
    released_ms: int
    handle: str
    failure: str


class JobDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A job with its nodes and launches."""

    job: JobSummary
    facts: JobFacts
    nodes: tuple[NodeView, ...]
    launches: tuple[LaunchView, ...]


class DecisionView(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a decision.

    Attributes:
        number: the decision's; its events share it.
        action: `up`, `down` or `hold`, where it is about a size; else empty.
        from_nodes, to_nodes: the sizes, where it is about sizes.
        took_effect: False when the job's state did not allow it any more.
        event: the whole event, with every number compared.
    """

    sequence: int
    recorded_ms: int
    tenant: str
    job: str
    number: int
    type: str
    rule: str
    action: str
    reason: str
    from_nodes: int | None
    to_nodes: int | None
    took_effect: bool
    event: Any


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """An event as it stands in the log.

    Attributes:
        known: whether this version knows its type.
        took_effect: False when the state did not allow it, or its type is not known.
        text: it in a sentence.
        event: the whole event.
    """

    sequence: int
    recorded_ms: int
    tenant: str
    job: str
    type: str
    actor: str
    known: bool
    took_effect: bool
    text: str
    event: Any


class CostLine(msgspec.Struct, frozen=True, kw_only=True):
    """What the nodes of one job, tenant or provider cost.

    Attributes:
        tenant: empty for a provider.
        name: the job or provider; empty for a tenant.
        node_ms: node-milliseconds that were paid for.
        price_microdollars_per_hour: of the nodes that run now.
    """

    tenant: str
    name: str
    nodes: int
    node_ms: int
    cost_microdollars: int
    price_microdollars_per_hour: int


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs, the newest first. `next_cursor` continues after them; empty at the end."""

    items: tuple[JobSummary, ...]
    next_cursor: str = ""


class DecisionPage(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions, the newest first. `next_cursor` continues with older ones; empty at the end."""

    items: tuple[DecisionView, ...]
    next_cursor: str = ""


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events in order. `next_after` is where to go on, also when nothing more is there yet.

    Attributes:
        more: whether more is there already.
        next_before: in a page that goes backwards, where older ones continue; 0 at the beginning of the log.
    """

    items: tuple[EventView, ...]
    next_after: int
    more: bool
    next_before: int = 0


class GridTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The grid in numbers.

    Attributes:
        as_of_ms: the gateway's clock; `sequence` is the last event that the numbers contain.
        jobs: how many there are in each phase.
        cost_microdollars: what all nodes cost so far; `price_microdollars_per_hour` what they cost now.
    """

    as_of_ms: int
    sequence: int
    jobs: dict[str, int]
    cost_microdollars: int
    price_microdollars_per_hour: int


class CostReport(msgspec.Struct, frozen=True, kw_only=True):
    """What nodes cost from `since_ms` until `as_of_ms`, the most expensive first."""

    by: str
    since_ms: int
    as_of_ms: int
    lines: tuple[CostLine, ...]
    cost_microdollars: int


_Key = TypeVar("_Key", bound="tuple[int | str, ...]")


def encode_cursor(key: tuple[int | str, ...]) -> str:
    """The place after `key` as text that means nothing to its holder."""
    return base64url.encoded(msgspec.json.encode(key))


def decode_cursor(cursor: str, kind: type[_Key]) -> _Key:
    """The key in a cursor.

    Raises:
        InvalidInput: it is none of ours.
    """
    try:
        return msgspec.json.decode(base64url.decoded(cursor), type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(
            "this is not a cursor", where="cursor", hint="take `next_cursor` of the page before, or leave it out"
        ) from error
