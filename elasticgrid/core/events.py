"""The event catalogue: every fact and decision there is, as one tagged union with one envelope.

A type's first word says who may write it: `job` (the gateway), `decision` (the decider), `launch` (the launcher),
`node` (an agent); `provider` facts are the gateway's too. Names never change meaning: a new meaning is a new type.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from elasticgrid.core.spec import JobSpec, Market, ProviderSpec


class _Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of an event."""


# --------------------------------------------------------------------------------------------------------------------
# Facts the gateway records
# --------------------------------------------------------------------------------------------------------------------


class JobSubmitted(_Value, frozen=True, kw_only=True, tag_field="type", tag="job.submitted"):
    """A job was accepted.

    Attributes:
        spec: the job as it will be run; `workdir` is absolute.
        idempotency_key: the submitter's key, empty when none was given.
    """

    spec: JobSpec
    idempotency_key: str = ""


class JobCancelRequested(_Value, frozen=True, kw_only=True, tag_field="type", tag="job.cancel_requested"):
    """Somebody wants the job to end."""

    reason: str = ""


class JobPauseRequested(_Value, frozen=True, kw_only=True, tag_field="type", tag="job.pause_requested"):
    """Hold the job at the size it has."""

    reason: str = ""


class JobResumeRequested(_Value, frozen=True, kw_only=True, tag_field="type", tag="job.resume_requested"):
    """Take decisions about the job again."""

    reason: str = ""


class JobResizeRequested(_Value, frozen=True, kw_only=True, tag_field="type", tag="job.resize_requested"):
    """The job has new bounds."""

    min_nodes: int
    max_nodes: int
    reason: str = ""


class ProviderDeclared(_Value, frozen=True, kw_only=True, tag_field="type", tag="provider.declared"):
    """A provider is part of the grid from now on, or has new properties (a new price, say)."""

    provider: ProviderSpec


class ProviderWithdrawn(_Value, frozen=True, kw_only=True, tag_field="type", tag="provider.withdrawn"):
    """A provider left the configuration: it takes no new work and drains."""

    name: str


class ProviderCordoned(_Value, frozen=True, kw_only=True, tag_field="type", tag="provider.cordoned"):
    """A provider takes no new nodes until it is uncordoned."""

    name: str
    reason: str = ""


class ProviderUncordoned(_Value, frozen=True, kw_only=True, tag_field="type", tag="provider.uncordoned"):
    """A cordoned provider takes nodes again."""

    name: str


# --------------------------------------------------------------------------------------------------------------------
# Decisions
# --------------------------------------------------------------------------------------------------------------------


class Signals(_Value, frozen=True, kw_only=True):
    """What a window of completed steps of one round says. Durations are microseconds.

    Attributes:
        round, nodes: the world the steps were taken in.
        steps: completed steps the medians are over.
        round_steps: completed steps of the round so far, warm-up left out.
        evidence_ms: server time between the first and the last of those.
        last_step: the last completed step's index, -1 when there is none.
        step_us, queue_us, data_wait_us: medians over steps of the slowest rank's duration, of the mean queue, of the
            mean data wait.
        step_mean_us, queue_mean_us: the means, for people.
        tokens: tokens of all steps in the window.
        window_us: sum of the steps' durations, so tokens / window_us is the throughput.
        busy_us: the same without the wait for data.
        clamped, dropped: samples whose queue was cut to their step, and samples that did not count.
        last_sample_ms: server time of the last sample taken in; age is `as_of_ms` minus this.
    """

    round: int = 0
    nodes: int = 0
    steps: int = 0
    round_steps: int = 0
    evidence_ms: int = 0
    last_step: int = -1
    step_us: int = 0
    queue_us: int = 0
    data_wait_us: int = 0
    step_mean_us: int = 0
    queue_mean_us: int = 0
    tokens: int = 0
    window_us: int = 0
    busy_us: int = 0
    clamped: int = 0
    dropped: int = 0
    last_sample_ms: int = 0


class RuleCheck(_Value, frozen=True, kw_only=True):
    """One rule that was asked: the numbers it compared and what it said.

    Attributes:
        rule: its name.
        spoke: whether it decided.
        numbers: what it compared, by name; integers in the units of their names.
        says: the sentence for people.
    """

    rule: str
    spoke: bool
    numbers: dict[str, int] = {}
    says: str = ""


ScaleAction = Literal["up", "down", "hold"]


class ScaleDecided(_Value, frozen=True, kw_only=True, tag_field="type", tag="decision.scale"):
    """How big the job should be.

    Attributes:
        action, current_nodes, target_nodes: from which size to which.
        rule: the rule that spoke; `reason` is its sentence.
        checks: every rule that was asked, in order, up to the one that spoke.
        signals: the evidence, by value, so that the decision verifies when the samples have aged out.
        next_change_ms: when time alone may change the answer; None when only new evidence can.
    """

    action: ScaleAction
    current_nodes: int
    target_nodes: int
    rule: str
    reason: str
    checks: tuple[RuleCheck, ...] = ()
    signals: Signals = Signals()
    next_change_ms: int | None = None


class Assignment(_Value, frozen=True, kw_only=True):
    """Nodes of one provider for one job, launched together.

    Attributes:
        id: unique within the job.
        action: `keep` what runs, `add` new nodes, `drop` nodes that leave.
        nodes: how many nodes this line is about.
        leaving: with `drop`, which nodes leave.
    """

    id: str
    provider: str
    action: Literal["keep", "add", "drop"]
    nodes: int
    price_microdollars_per_hour: int
    market: Market = "on_demand"
    leaving: tuple[str, ...] = ()


class Candidate(_Value, frozen=True, kw_only=True):
    """A provider that was looked at for new nodes.

    Attributes:
        taken: nodes it was given in this placement.
        free: nodes it could have held.
        refused: the one reason it took no (more) nodes: `constraint`, `cordoned`, `withdrawn`, `capacity`, `slice`,
            `mark`, `price`, `spot_cap`, or empty when it was not needed further.
        detail: the numbers or texts behind the reason.
        until_ms: when the reason ends, if time ends it.
    """

    provider: str
    taken: int = 0
    free: int = 0
    price_microdollars_per_hour: int = 0
    market: Market = "on_demand"
    refused: str = ""
    detail: str = ""
    until_ms: int | None = None


class PlacementDecided(_Value, frozen=True, kw_only=True, tag_field="type", tag="decision.placement"):
    """Where the nodes run.

    Attributes:
        demand_nodes: nodes the job should have; `placed_nodes` how many it gets now.
        assignments: what to keep, add and drop.
        candidates: every provider looked at and why it was refused.
        waiting: why nothing (or less than wanted) was placed, empty when all was.
        policy_broken: which policy had to give and why, empty when none had to.
        price_microdollars_per_hour: of all nodes after it is applied.
    """

    demand_nodes: int
    placed_nodes: int
    assignments: tuple[Assignment, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    waiting: str = ""
    policy_broken: str = ""
    price_microdollars_per_hour: int = 0


class DrainDecided(_Value, frozen=True, kw_only=True, tag_field="type", tag="decision.drain"):
    """The round ends: its workers stop together at a step boundary, commit a checkpoint and exit.

    Attributes:
        round: the round that ends; 0 when no round has begun and nodes are only told to leave.
        reason: `resize`, `failure`, `node_lost`, `cancelled`, `completed`, `failed`.
        leaving: nodes whose agents end when drained; all others stay and wait for their next world.
        grace_ms: how long until workers that did not stop are terminated.
    """

    round: int
    reason: str
    leaving: tuple[str, ...] = ()
    grace_ms: int = 0


class Member(_Value, frozen=True, kw_only=True):
    """A node in a world.

    Attributes:
        node: its id.
        group_rank: its place among the nodes, 0-based; survivors keep their order.
    """

    node: str
    group_rank: int


class CheckpointRef(_Value, frozen=True, kw_only=True):
    """A committed checkpoint: training state after `step` optimizer steps."""

    step: int
    uri: str
    sha256: str = ""
    bytes: int = 0


class WorldDecided(_Value, frozen=True, kw_only=True, tag_field="type", tag="decision.world"):
    """Who trains together now: a round begins.

    Attributes:
        round: counts up from 1.
        members: in order of group rank.
        nproc_per_node: workers on each node; world size = members x nproc_per_node.
        master_addr, master_port: on the node with group rank 0, chosen for this round.
        resume: the last committed checkpoint; None starts from nothing.
    """

    round: int
    members: tuple[Member, ...]
    nproc_per_node: int
    master_addr: str
    master_port: int
    resume: CheckpointRef | None = None

    @property
    def world_size(self) -> int:
        """Workers in the world."""
        return len(self.members) * self.nproc_per_node


Outcome = Literal["completed", "failed", "cancelled"]


class OutcomeDecided(_Value, frozen=True, kw_only=True, tag_field="type", tag="decision.outcome"):
    """The job is over, once and for all."""

    outcome: Outcome
    reason: str
    last_step: int = 0


# --------------------------------------------------------------------------------------------------------------------
# Facts the launcher records
# --------------------------------------------------------------------------------------------------------------------

FailureClass = Literal[
    "stockout",
    "quota_used",
    "quota_zero",
    "rate_limited",
    "transient",
    "auth",
    "invalid",
    "boot_failed",
    "lost_young",
    "preempted",
    "app_failed",
    "infra_failed",
]


class LaunchRequested(_Value, frozen=True, kw_only=True, tag_field="type", tag="launch.requested"):
    """Intent: this attempt will be launched. In the log before anything is created.

    Attributes:
        attempt: unique within the job; `node_ids` are the nodes it will bring.
        price_microdollars_per_hour: of one node, as placed; what the cost is computed from.
    """

    attempt: str
    assignment: str
    provider: str
    engine: str
    nodes: int
    node_ids: tuple[str, ...]
    price_microdollars_per_hour: int
    market: Market = "on_demand"


class LaunchStarted(_Value, frozen=True, kw_only=True, tag_field="type", tag="launch.started"):
    """Outcome: the attempt's machines run and its agents were started. `handle` names it to the engine."""

    attempt: str
    handle: str


class LaunchFailed(_Value, frozen=True, kw_only=True, tag_field="type", tag="launch.failed"):
    """Outcome: nothing of the attempt runs.

    Attributes:
        failure: its class.
        text: what the provider said, raw, so that a better classifier can read it again.
    """

    attempt: str
    failure: FailureClass
    text: str


class LaunchStopRequested(_Value, frozen=True, kw_only=True, tag_field="type", tag="launch.stop_requested"):
    """Intent: what is left of the attempt will be stopped."""

    attempt: str
    reason: str


class LaunchStopped(_Value, frozen=True, kw_only=True, tag_field="type", tag="launch.stopped"):
    """Outcome: nothing of the attempt runs any more."""

    attempt: str
    reason: str


class NodeLost(_Value, frozen=True, kw_only=True, tag_field="type", tag="launch.node_lost"):
    """A node was seen to be gone without having said so.

    Attributes:
        evidence: `process_gone` (the engine confirms it), `silent` (no heartbeat for the time given in `text`).
    """

    node: str
    attempt: str
    evidence: Literal["process_gone", "silent"]
    text: str = ""


# --------------------------------------------------------------------------------------------------------------------
# Facts the agents record
# --------------------------------------------------------------------------------------------------------------------


class NodeJoined(_Value, frozen=True, kw_only=True, tag_field="type", tag="node.joined"):
    """An agent is up and waits for a world.

    Attributes:
        host: address other nodes reach it by; `free_port` is a port on it that was free just now.
    """

    node: str
    attempt: str
    provider: str
    host: str
    free_port: int
    pid: int


class NodeStarted(_Value, frozen=True, kw_only=True, tag_field="type", tag="node.started"):
    """The node's workers of a round took their first step."""

    node: str
    round: int
    step: int


class NodeCheckpointed(_Value, frozen=True, kw_only=True, tag_field="type", tag="node.checkpointed"):
    """A checkpoint is complete: every file it names was there and had the size and hash it says."""

    node: str
    round: int
    checkpoint: CheckpointRef


class NodeDrained(_Value, frozen=True, kw_only=True, tag_field="type", tag="node.drained"):
    """No worker of that round runs on the node any more, because the round ended.

    Attributes:
        last_step: steps its workers had completed.
        clean: whether they stopped by themselves; False when they were terminated.
        free_port: a port that was free just now, should the node be the next master.
        samples_published, samples_dropped: by the workers' hooks in this round.
    """

    node: str
    round: int
    last_step: int
    clean: bool
    free_port: int
    samples_published: int = 0
    samples_dropped: int = 0


class WorkerExit(_Value, frozen=True, kw_only=True):
    """How one worker ended: its exit code, or minus the signal's number."""

    rank: int
    code: int
    last_lines: str = ""


class NodeFinished(_Value, frozen=True, kw_only=True, tag_field="type", tag="node.finished"):
    """All workers of the round on this node ended with success without having been asked to stop.

    Attributes:
        free_port: a port that was free just now; 0 when none is said.
    """

    node: str
    round: int
    last_step: int
    free_port: int = 0
    samples_published: int = 0
    samples_dropped: int = 0


class NodeFailed(_Value, frozen=True, kw_only=True, tag_field="type", tag="node.failed"):
    """A worker of the round on this node ended with failure; the node's others were stopped.

    Attributes:
        exits: every worker's end, the first failure first.
        failure: `app_failed` unless there is evidence of the infrastructure.
    """

    node: str
    round: int
    last_step: int
    exits: tuple[WorkerExit, ...]
    failure: FailureClass
    free_port: int
    samples_published: int = 0
    samples_dropped: int = 0


class NodeLeft(_Value, frozen=True, kw_only=True, tag_field="type", tag="node.left"):
    """The agent ends; nothing of the node runs after this."""

    node: str
    reason: str


EventData: TypeAlias = (
    JobSubmitted
    | JobCancelRequested
    | JobPauseRequested
    | JobResumeRequested
    | JobResizeRequested
    | ProviderDeclared
    | ProviderWithdrawn
    | ProviderCordoned
    | ProviderUncordoned
    | ScaleDecided
    | PlacementDecided
    | DrainDecided
    | WorldDecided
    | OutcomeDecided
    | LaunchRequested
    | LaunchStarted
    | LaunchFailed
    | LaunchStopRequested
    | LaunchStopped
    | NodeLost
    | NodeJoined
    | NodeStarted
    | NodeCheckpointed
    | NodeDrained
    | NodeFinished
    | NodeFailed
    | NodeLeft
)

DecisionData: TypeAlias = ScaleDecided | PlacementDecided | DrainDecided | WorldDecided | OutcomeDecided


class Basis(_Value, frozen=True, kw_only=True):
    """What a decision was taken from; together with the log it re-derives the decision.

    Attributes:
        number: counts the job's decisions from 1; all events of one decision share it.
        as_of_ms: the time the decision was taken at, an argument of it.
        events_through, samples_through: stream sequences that had been read.
        policy, policy_version, config_digest: the rules and their numbers.
    """

    number: int
    as_of_ms: int
    events_through: int
    samples_through: int
    policy: str
    policy_version: int
    config_digest: str


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The envelope.

    Attributes:
        id: time-ordered, unique, the same on a second try.
        schema_version: of `data`'s type.
        time_ms: when it happened by its writer's clock, Unix milliseconds; the log adds when it was recorded.
        causation_id: the event that directly caused it; empty for what came from outside.
        correlation_id: the event the whole story began with: the job's submission.
        actor: who wrote it, such as `decider`, `launcher`, `agent:<node>`, `key:<prefix>`.
        basis: on decisions only.
    """

    id: str
    schema_version: int = 1
    time_ms: int
    tenant: str
    job: str
    causation_id: str = ""
    correlation_id: str = ""
    actor: str
    basis: Basis | None = None
    data: EventData


class UnknownEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a type (or later version) that this software does not know: carried and counted, never guessed at."""

    id: str
    type: str
    schema_version: int
    time_ms: int
    tenant: str
    job: str
    raw: bytes


class Recorded(msgspec.Struct, frozen=True):
    """An event as it stands in the log.

    Attributes:
        sequence: its place, from 1.
        recorded_ms: the log's clock when it was appended; what everything is folded by.
        event: the event.
        raw: its bytes, as appended.
    """

    sequence: int
    recorded_ms: int
    event: Event | UnknownEvent
    raw: bytes = b""


_TYPES: tuple[type[Any], ...] = EventData.__args__
#: Every event class by its type string.
EVENT_TYPES: dict[str, type[Any]] = {str(cls.__struct_config__.tag): cls for cls in _TYPES}
_TYPE_OF: dict[type[Any], str] = {cls: name for name, cls in EVENT_TYPES.items()}
#: The current schema version of each event type; a type not listed is at version 1.
SCHEMA_VERSIONS: dict[str, int] = dict.fromkeys(EVENT_TYPES, 1)

Writer = Literal["job", "decision", "launch", "node"]
_WRITERS: dict[str, Writer] = {
    "job": "job",
    "provider": "job",
    "decision": "decision",
    "launch": "launch",
    "node": "node",
}


def type_of(data: EventData) -> str:
    """The stable type string of an event's data, such as `decision.scale`."""
    return _TYPE_OF[type(data)]


def writer_of(event_type: str) -> Writer:
    """Who may write events of this type.

    Raises:
        KeyError: the type's first word names no writer.
    """
    return _WRITERS[event_type.split(".", 1)[0]]
