"""Decisions, which only the decider records, and the values they are made of."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from elasticgrid.core.events.base import Value
from elasticgrid.core.spec import Market


class Signals(Value, frozen=True, kw_only=True):
    """What a window of completed steps of one round says. Durations are microseconds.

    Attributes:
        round, nodes: the world the steps were taken in.
        steps: completed steps the medians are over.
        round_steps: completed steps of the round so far, or since its last gap; warm-up left out.
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
        gap_from_ms: server time of the last sample before the last gap in the round's samples; 0 when there was none.
            Medians, sums and `round_steps` are then of steps behind it.
        gap_until_ms: server time of the first sample after it.
        gap_threshold_ms: longer than this it had to be.
        gap_steps, gap_work_us, gap_longest_us: steps that were completed right behind it: how many, how long they took
            together, and the longest.
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
    gap_from_ms: int = 0
    gap_until_ms: int = 0
    gap_threshold_ms: int = 0
    gap_steps: int = 0
    gap_work_us: int = 0
    gap_longest_us: int = 0


class RuleCheck(Value, frozen=True, kw_only=True):
    """One rule that was asked: the numbers it compared and what it said.

    Attributes:
        rule: its name.
        spoke: whether it decided.
        numbers: what it compared, by name; integers in the units of their names.
        says: the sentence for people.
    """

    rule: str
    spoke: bool
    numbers: dict[str, int] = msgspec.field(default_factory=dict)
    says: str = ""


ScaleAction = Literal["up", "down", "hold"]


class ScaleDecided(Value, frozen=True, kw_only=True, tag_field="type", tag="decision.scale"):
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


#: More nodes than one assignment may have; a number from elsewhere must not make a reader allocate without end.
MAX_NODES: Final = 100_000


class Assignment(Value, frozen=True, kw_only=True):
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
    nodes: Annotated[int, msgspec.Meta(ge=0, le=MAX_NODES)]
    price_microdollars_per_hour: int
    market: Market = "on_demand"
    leaving: tuple[str, ...] = ()


class Candidate(Value, frozen=True, kw_only=True):
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


class PlacementDecided(Value, frozen=True, kw_only=True, tag_field="type", tag="decision.placement"):
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


class DrainDecided(Value, frozen=True, kw_only=True, tag_field="type", tag="decision.drain"):
    """The round ends: its workers stop together at a step boundary, commit a checkpoint and exit.

    Attributes:
        round: the round that ends; 0 when none does and nodes that are in none are told to leave.
        reason: `resize`, `preempted`, `failure`, `node_lost`, `stuck`, `cancelled`, `completed`, `failed`.
        leaving: nodes whose agents end when drained; all others stay and wait for their next world.
        grace_ms: how long until workers that did not stop are terminated.
    """

    round: int
    reason: str
    leaving: tuple[str, ...] = ()
    grace_ms: int = 0


class Member(Value, frozen=True, kw_only=True):
    """A node in a world.

    Attributes:
        node: its id.
        group_rank: its place among the nodes, 0-based; survivors keep their order.
    """

    node: str
    group_rank: int


class CheckpointRef(Value, frozen=True, kw_only=True):
    """A committed checkpoint: training state after `step` optimizer steps."""

    step: int
    uri: str
    sha256: str = ""
    bytes: int = 0


class WorldDecided(Value, frozen=True, kw_only=True, tag_field="type", tag="decision.world"):
    """Who trains together now: a round begins.

    Attributes:
        round: counts up from 1.
        members: in order of group rank.
        nproc_per_node: workers on each node; world size = members x nproc_per_node.
        master_addr, master_port: on the node with group rank 0, chosen for this round.
        resume: the last committed checkpoint; None starts from nothing.
        restarts: earlier rounds that failed by themselves; None where who decides does not say.
    """

    round: int
    members: tuple[Member, ...]
    nproc_per_node: int
    master_addr: str
    master_port: int
    resume: CheckpointRef | None = None
    restarts: int | None = None

    @property
    def world_size(self) -> int:
        """Workers in the world."""
        return len(self.members) * self.nproc_per_node


Outcome = Literal["completed", "failed", "cancelled"]


class OutcomeDecided(Value, frozen=True, kw_only=True, tag_field="type", tag="decision.outcome"):
    """The job is over, once and for all."""

    outcome: Outcome
    reason: str
    last_step: int = 0


GapCause = Literal["late", "long_step", "stuck", "unknown"]


class GapDecided(Value, frozen=True, kw_only=True, tag_field="type", tag="decision.gap"):
    """No sample of a round came for far longer than a step takes, then they went on: a gap, with its cause.

    It changes nothing of the job. Steps from before it are no evidence for a change of size any more.

    Attributes:
        round: the round that trains before and after it.
        from_ms: server time of the last sample before it.
        until_ms: server time of the first sample after it.
        threshold_ms: longer than this it had to be: ten times the usual step, and five minutes.
        cause: `late` when steps were taken meanwhile and their samples arrived later (a bus that was cut, a spool that
            was sent), `long_step` when one step lasted for most of it, `stuck` when a node said meanwhile that its
            workers were stuck, `unknown` when none of that is on record.
        steps, work_us, longest_step_us: what the cause was judged by: steps completed within ten seconds behind it, how
            long they took together, and the longest.
        signals: the evidence, by value, so that the decision verifies when the samples have aged out.
    """

    round: int
    from_ms: int
    until_ms: int
    threshold_ms: int
    cause: GapCause
    steps: int = 0
    work_us: int = 0
    longest_step_us: int = 0
    signals: Signals = Signals()


DecisionData: TypeAlias = ScaleDecided | PlacementDecided | DrainDecided | WorldDecided | OutcomeDecided | GapDecided
