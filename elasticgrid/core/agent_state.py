"""What a node agent knows, what it is told and what it is to do: the values of its state machine.

`agent_plan.evolve` turns a state and one input into the next state and a list of instructions.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from elasticgrid.core.events import (
    CheckpointRef,
    DrainDecided,
    NodeCheckpointed,
    NodeDrained,
    NodeFailed,
    NodeFinished,
    NodeLeft,
    NodeStarted,
    OutcomeDecided,
    WorldDecided,
)


class _Value(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the agent's state, an input or an instruction."""


# --------------------------------------------------------------------------------------------------------------------
# State
# --------------------------------------------------------------------------------------------------------------------


class Worker(_Value, frozen=True, kw_only=True):
    """One worker process of the round.

    Attributes:
        step: steps it is known to have completed.
        stopping: it said that it stops because it was asked to.
        closed: its hook said goodbye, so `step` is the last one.
        code: its exit code or minus the signal's number; None while it runs.
    """

    rank: int
    step: int
    stopping: bool = False
    closed: bool = False
    code: int | None = None
    last_lines: str = ""
    samples_published: int = 0
    samples_dropped: int = 0


class Cause(_Value, frozen=True, kw_only=True):
    """The decision that something was done for."""

    event_id: str = ""
    correlation_id: str = ""


class Round(_Value, frozen=True, kw_only=True):
    """The round this node is, or was last, a member of.

    Attributes:
        announced: the latest checkpoints (step, uri) that workers named; a second worker's word about one is ignored.
        checking: checkpoints whose files are being looked at.
        drain, drain_cause: the decision that ends the round, once it is known.
        stop_step: the step all workers of the round stop at, once it is agreed.
        terminating: the workers are being terminated for a reason other than one another's failure.
        first_failure: rank of the worker that failed first, None while none has.
        over: no worker runs any more and that was recorded.
        drained: `node.drained` was recorded.
        clean_end: the workers ended by themselves and with success.
    """

    world: WorldDecided
    group_rank: int
    cause: Cause
    workers: tuple[Worker, ...]
    started: bool = False
    announced: tuple[tuple[int, str], ...] = ()
    checking: int = 0
    drain: DrainDecided | None = None
    drain_cause: Cause = Cause()
    stop_step: int | None = None
    terminating: bool = False
    first_failure: int | None = None
    over: bool = False
    drained: bool = False
    clean_end: bool = False

    @property
    def resume_step(self) -> int:
        """Steps in the checkpoint the round began from."""
        return self.world.resume.step if self.world.resume is not None else 0

    @property
    def last_step(self) -> int:
        """Steps that the node's workers are known to have completed."""
        return max((worker.step for worker in self.workers), default=self.resume_step)

    @property
    def running(self) -> bool:
        """Whether any worker still runs."""
        return any(worker.code is None for worker in self.workers)


class Departure(_Value, frozen=True, kw_only=True):
    """Why the agent ends, and with which exit code."""

    reason: str
    exit_code: int
    cause: Cause


class NextWorld(_Value, frozen=True, kw_only=True):
    """A world that begins when the workers of the round before are gone."""

    world: WorldDecided
    cause: Cause


class AgentState(_Value, frozen=True, kw_only=True):
    """What the agent knows.

    Attributes:
        joined_sequence: where `node.joined` stands in the log, 0 while it does not; worlds decided before it are an
            earlier life's.
        applied_sequence: the last decision taken in.
        latest_round: the highest round heard of, a member of it or not.
        current: the round this node is or was last in.
        upcoming: the world to begin next.
        departure: set when the agent is to end.
        left: `node.left` was recorded; nothing matters any more.
        free_port: a port that was free when last looked at.
    """

    node: str
    joined_sequence: int = 0
    applied_sequence: int = 0
    latest_round: int = 0
    current: Round | None = None
    upcoming: NextWorld | None = None
    departure: Departure | None = None
    left: bool = False
    free_port: int = 0


# --------------------------------------------------------------------------------------------------------------------
# Inputs
# --------------------------------------------------------------------------------------------------------------------


class Joined(_Value, frozen=True, kw_only=True):
    """`node.joined` is in the log at `sequence`."""

    sequence: int


class DecisionRead(_Value, frozen=True, kw_only=True):
    """A decision about the job was read from the log."""

    sequence: int
    event_id: str
    correlation_id: str
    data: WorldDecided | DrainDecided | OutcomeDecided


class WorkerStepped(_Value, frozen=True, kw_only=True):
    """A worker had completed `step` steps."""

    round: int
    rank: int
    step: int


class WorkerStopping(_Value, frozen=True, kw_only=True):
    """A worker stops after `step` steps because it was asked to."""

    round: int
    rank: int
    step: int


class WorkerClosed(_Value, frozen=True, kw_only=True):
    """A worker's hook said goodbye."""

    round: int
    rank: int
    step: int
    samples_published: int
    samples_dropped: int


class CheckpointNamed(_Value, frozen=True, kw_only=True):
    """A worker says that the state after `step` steps is at `uri`."""

    round: int
    step: int
    uri: str


class CheckpointChecked(_Value, frozen=True, kw_only=True):
    """The files of a named checkpoint were looked at; None when it is not complete."""

    round: int
    checkpoint: CheckpointRef | None


class StopAgreed(_Value, frozen=True, kw_only=True):
    """All agents of the round told their workers to stop after `step` steps."""

    round: int
    step: int


class AgreementFailed(_Value, frozen=True, kw_only=True):
    """The agents of the round cannot agree on a step to stop at."""

    round: int


class GraceOver(_Value, frozen=True, kw_only=True):
    """The time that workers had to stop by themselves is over."""

    round: int


class WorkerExited(_Value, frozen=True, kw_only=True):
    """A worker is gone, and everything it had said was heard.

    Attributes:
        free_port: a port that was free just now.
    """

    round: int
    rank: int
    code: int
    last_lines: str
    free_port: int


class EndRequested(_Value, frozen=True, kw_only=True):
    """The agent is to end for a reason outside the log: a signal, or the bus was gone for too long."""

    reason: str
    exit_code: int


AgentInput: TypeAlias = (
    Joined
    | DecisionRead
    | WorkerStepped
    | WorkerStopping
    | WorkerClosed
    | CheckpointNamed
    | CheckpointChecked
    | StopAgreed
    | AgreementFailed
    | GraceOver
    | WorkerExited
    | EndRequested
)


# --------------------------------------------------------------------------------------------------------------------
# Instructions
# --------------------------------------------------------------------------------------------------------------------

NodeFact: TypeAlias = NodeStarted | NodeCheckpointed | NodeDrained | NodeFinished | NodeFailed | NodeLeft


class StartWorkers(_Value, frozen=True, kw_only=True):
    """Start the workers of a round; this node has that place among its nodes."""

    world: WorldDecided
    group_rank: int


class AgreeOnStop(_Value, frozen=True, kw_only=True):
    """Agree with the other agents of the round on a step to stop at; the node with group rank 0 leads.

    Attributes:
        patience_ms: how long to wait for workers that have not yet shown how long their steps take.
    """

    round: int
    leads: bool
    members: tuple[str, ...]
    patience_ms: int


class StartGrace(_Value, frozen=True, kw_only=True):
    """Say `GraceOver` after this long."""

    round: int
    grace_ms: int


class TerminateWorkers(_Value, frozen=True, kw_only=True):
    """End what runs of the round: a request first, and after a few seconds without asking."""

    round: int


class CheckCheckpoint(_Value, frozen=True, kw_only=True):
    """Look whether the checkpoint is complete; say `CheckpointChecked`, in the order asked."""

    round: int
    step: int
    uri: str


class Record(_Value, frozen=True, kw_only=True):
    """Append a fact; facts reach the log in the order recorded."""

    data: NodeFact
    cause: Cause


class Leave(_Value, frozen=True, kw_only=True):
    """End the process when all facts are in the log."""

    exit_code: int


class Ignored(_Value, frozen=True, kw_only=True):
    """The input meant nothing here; to be counted."""

    what: str


Instruction: TypeAlias = (
    StartWorkers | AgreeOnStop | StartGrace | TerminateWorkers | CheckCheckpoint | Record | Leave | Ignored
)

#: How many named checkpoints are remembered to recognise a second worker's word.
ANNOUNCED_KEPT: Final = 16
