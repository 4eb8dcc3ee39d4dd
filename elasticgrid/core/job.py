"""One job as the log tells it: its state, its nodes and launches, and what can be asked of them."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from elasticgrid.core import events as ev
from elasticgrid.core.job_parts import Parts
from elasticgrid.core.scaling import POLICY_VERSION, AppliedChange, Measured, Situation
from elasticgrid.core.spec import Band, JobSpec, Market
from elasticgrid.core.window import median

Phase = Literal["submitted", "starting", "running", "draining", "ending", "completed", "failed", "cancelled"]
TERMINAL: Final[frozenset[str]] = frozenset({"completed", "failed", "cancelled"})

LaunchStatus = Literal["planned", "requested", "started", "failed", "stop_requested", "stopped"]
NodeStatus = Literal["planned", "joined", "leaving", "left", "lost"]
GONE: Final[frozenset[str]] = frozenset({"left", "lost"})


class NodeState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node of the job.

    Attributes:
        status: `planned` until its agent joined; `leaving` once it was told to go.
        joined_sequence: where in the log it joined; 0 before.
        started_round, drained_round, finished_round, failed_round: the last round of which it said so.
        last_step: steps done as of its last report.
        charged_from_ms: since when it costs; 0 when it does not.
        notice_ms: when it was said to be taken away; 0 while it was not. `notice_deadline_ms` by when, 0 if not told.
    """

    id: str
    assignment: str
    provider: str
    status: NodeStatus = "planned"
    host: str = ""
    free_port: int = 0
    joined_sequence: int = 0
    started_round: int = 0
    drained_round: int = 0
    finished_round: int = 0
    failed_round: int = 0
    last_step: int = 0
    charged_from_ms: int = 0
    notice_ms: int = 0
    notice_deadline_ms: int = 0


class LaunchState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An assignment of a placement and the one launch that serves it.

    Attributes:
        nodes: ids of the nodes it was placed with.
        released_ms: when the placement gave it up; 0 while it is wanted.
    """

    id: str
    provider: str
    nodes: tuple[str, ...]
    price_microdollars_per_hour: int
    market: Market
    placed_ms: int
    status: LaunchStatus = "planned"
    handle: str = ""
    released_ms: int = 0
    failure: str = ""

    @property
    def resolved(self) -> bool:
        """Whether nothing of it exists or ever will."""
        return self.status in ("failed", "stopped") or (self.status == "planned" and self.released_ms > 0)


class CountedFailure(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A failure that was counted against one of the job's budgets.

    Attributes:
        round: which round failed, and `at_ms` when.
        settled_ms: from when on its blame is final.
    """

    round: int
    at_ms: int
    blame: Literal["app_failed", "infra_failed"]
    settled_ms: int


class JobState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything the log says about a job.

    Attributes:
        metadata: what a client of the service's first interface sent along, as JSON; empty for every other client.
        band: whose nodes are placed first; as submitted, or as asked for since.
        target_nodes: the size last decided on and placed.
        decision_sequence: log sequence of the last decision, the version that the next one expects.
        decisions: how many decisions there were; `decision_ids` the events of the last one.
        last_event_id: of the last event folded, the cause of a decision taken now.
        round: the last round; `members` its nodes by group rank.
        round_samples_after: samples of the last round come after this sequence of the samples stream.
        round_decided_ms, round_active_ms: when it was decided and when every member had taken a step (0: not yet).
        drain_ms, drain_reason, drain_grace_ms: of the drain under way or the last one.
        ending: the outcome the job is heading for.
        launches, nodes: all there ever were; of the past are nodes that are gone and in no round any more, and launches
            that were given up and have stopped.
        previous_nodes: the size of the world before the last one.
        checkpoint: the last committed one.
        app_failures, infra_failures: failures so far, by who is to blame; `last_failure` the last one.
        infra_charged: of those of the infrastructure, how many its budget is charged with: healthy time gives back.
        healthy_ms: healthy time that has given nothing back yet; `healthy_round` the last round it was counted of.
        device_errors: nodes that failed with an error of their hardware lately, and when.
        stuck: what was said of workers of the last round that live but do not get on; empty when nothing was.
        stuck_ms: when that was said last.
        gap_until_ms: when the last gap in the samples of the last round that is on record ended; 0 when none is.
        spent_microdollars: cost of the nodes that are gone; `cost_microdollars` adds those that run.
        illegal: events the state did not allow; `strays` facts about nodes it does not know.
        unknown_type: an event type this software does not know; no decision is taken after one.
    """

    tenant: str
    id: str
    spec: JobSpec | None = None
    phase: Phase = "submitted"
    submitted_ms: int = 0
    submitted_id: str = ""
    idempotency_key: str = ""
    metadata: str = ""
    band: Band = "batch"
    sequence: int = 0
    last_event_id: str = ""
    last_event_ms: int = 0
    min_nodes: int = 1
    max_nodes: int = 1
    paused: str = ""
    cancel_requested: str | None = None
    target_nodes: int = 0
    decisions: int = 0
    decision_ids: tuple[str, ...] = ()
    decision_sequence: int = 0
    last_scale: ev.ScaleDecided | None = None
    last_placement: ev.PlacementDecided | None = None
    placement_ms: int = 0
    round: int = 0
    members: tuple[ev.Member, ...] = ()
    previous_nodes: int = 0
    round_samples_after: int = 0
    round_decided_ms: int = 0
    round_active_ms: int = 0
    drain_ms: int = 0
    drain_reason: str = ""
    drain_grace_ms: int = 0
    ending: ev.Outcome | None = None
    ending_reason: str = ""
    launches: Parts[LaunchState] = Parts()
    nodes: Parts[NodeState] = Parts()
    changes: tuple[AppliedChange, ...] = ()
    measured: dict[int, Measured] = {}
    checkpoint: ev.CheckpointRef | None = None
    app_failures: int = 0
    infra_failures: int = 0
    infra_charged: int = 0
    healthy_ms: int = 0
    healthy_round: int = 0
    last_failure: CountedFailure | None = None
    stuck: str = ""
    stuck_ms: int = 0
    gap_until_ms: int = 0
    device_errors: dict[str, int] = {}
    failure_text: str = ""
    spent_microdollars: int = 0
    samples_published: int = 0
    samples_dropped: int = 0
    finished_ms: int = 0
    illegal: int = 0
    last_illegal: str = ""
    strays: int = 0
    unknown_type: str = ""

    @property
    def terminal(self) -> bool:
        """Whether the job is over for good."""
        return self.phase in TERMINAL

    @property
    def member_nodes(self) -> tuple[str, ...]:
        """Nodes of the last round, by group rank."""
        return tuple([member.node for member in self.members])


def initial(tenant: str, job: str) -> JobState:
    """A job of which nothing is known yet."""
    return JobState(tenant=tenant, id=job)


def live_nodes(state: JobState) -> tuple[NodeState, ...]:
    """Nodes that are wanted: planned or joined, neither leaving nor gone."""
    return tuple([node for node in state.nodes.present.values() if node.status in ("planned", "joined")])


def node_charge(state: JobState, node: NodeState, until_ms: int) -> int:
    """What a node costs from its launch until `until_ms`, in micro-dollars."""
    price = state.launches[node.assignment].price_microdollars_per_hour
    return max(until_ms - node.charged_from_ms, 0) * price // 3_600_000


def cost_microdollars(state: JobState, as_of_ms: int) -> int:
    """What the job has cost by `as_of_ms`: each node from its launch until it was gone, at its placement's price."""
    running = sum(
        node_charge(state, node, as_of_ms)
        for node in state.nodes.present.values()
        if node.charged_from_ms and node.status not in GONE
    )
    return state.spent_microdollars + running


def restart_ms(state: JobState) -> int:
    """What a change of size costs this job: the median of what its changes cost, or the policy's guess."""
    assert state.spec is not None
    measured = [change.restart_ms for change in state.changes]
    return median(measured) if measured else state.spec.scaling.default_restart_ms


def situation(state: JobState, rules_version: int = POLICY_VERSION) -> Situation:
    """What the scaling rules of this version need to know of the job."""
    assert state.spec is not None
    since, what = _in_flight(state)
    return Situation(
        current_nodes=state.target_nodes,
        min_nodes=state.min_nodes,
        max_nodes=state.max_nodes,
        start_nodes=state.spec.start_nodes,
        quantum=state.spec.quantum,
        round=state.round,
        paused=state.paused,
        in_flight_since_ms=since,
        in_flight=what,
        changes=state.changes,
        measured=state.measured,
        restart_ms=restart_ms(state),
        deadline_ms=state.spec.deadline_ms,
        rules_version=rules_version,
    )


def _in_flight(state: JobState) -> tuple[int | None, str]:
    expected = sum([node.status == "planned" for node in state.nodes.present.values()])
    if expected:
        return state.placement_ms, f"{expected} of {state.target_nodes} nodes have not joined yet"
    if state.phase == "draining":
        return state.drain_ms, f"round {state.round} drains"
    if state.phase == "running" and not state.round_active_ms:
        return state.round_decided_ms, f"round {state.round} has not taken its first step on every node"
    if state.phase == "running" and state.target_nodes != len(state.members):
        return state.placement_ms, f"the world goes from {len(state.members)} to {state.target_nodes} nodes"
    return None, ""
