"""What a node agent knows, what it is told and what it is to do: the values of its state machine.

`agent_plan.evolve` turns a state and one input into the next state and a list of instructions.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from elasticgrid.core.events import (
    CheckpointRef,
    DrainDecided,
    ExitState,
    FailureClass,
    NodeCheckpointed,
    NodeDrained,
    NodeFailed,
    NodeFinished,
    NodeLeft,
    NodePreemptionNotice,
    NodeReclassified,
    NodeStarted,
    NodeStuck,
    NoticeSource,
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
        heard: it said something in this round, so it is past its start.
        code: its exit code or minus the signal's number; None while it runs.
        message, error_file: what it said of its own failure, and in which file.
        ended_ms: when it failed, by that file or else by when it was gone; 0 while not known.
        out_of_memory: the machine ended it for its use of memory.
        fenced: even a kill did not end it; it is treated as gone.
    """

    rank: int
    step: int
    stopping: bool = False
    closed: bool = False
    heard: bool = False
    code: int | None = None
    last_lines: str = ""
    message: str = ""
    error_file: str = ""
    ended_ms: int = 0
    out_of_memory: bool = False
    fenced: bool = False
    samples_published: int = 0
    samples_dropped: int = 0


class Cause(_Value, frozen=True, kw_only=True):
    """The event that something was done for: a decision, or what the launcher says of the node's launch."""

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
        stuck: workers live but do not get on, and that was recorded.
        blamed: whose failure was recorded, None while none was; `failed_ms` when the first worker failed.
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
    stuck: bool = False
    blamed: FailureClass | None = None
    failed_ms: int = 0

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
        notice_ms: when the node was first said to be taken away; 0 while it was not.
        notice_deadline_ms: by when it will be gone; 0 while no time was given.
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
    notice_ms: int = 0
    notice_deadline_ms: int = 0


WorkerState: TypeAlias = Literal["INIT", "HEALTHY", "UNHEALTHY"] | ExitState

#: SIGKILL and SIGTERM, what the agent ends workers with, also as a shell or a handler of its own passes them on: by
#: themselves they say nothing of why.
_OURS: Final = frozenset({-9, -15, 128 + 9, 128 + 15})


def worker_state(current: Round, worker: Worker) -> WorkerState:
    """How a worker of the round is, in one word.

    INIT until it said something, UNHEALTHY while the round is stuck; then as `exit_state` says.
    """
    if worker.code is not None:
        return exit_state(current, worker, worker.code)
    if current.stuck:
        return "UNHEALTHY"
    return "HEALTHY" if worker.heard else "INIT"


def exit_state(current: Round, worker: Worker, code: int) -> ExitState:
    """How a worker of the round ended with `code`: STOPPED when it did because it was to."""
    if code == 0:
        told = current.stop_step is not None and worker.step >= current.stop_step
        return "STOPPED" if worker.stopping or told else "SUCCEEDED"
    return "STOPPED" if current.terminating or ended_for_another(current, worker) else "FAILED"


def ended_for_another(current: Round, worker: Worker) -> bool:
    """Whether a worker was ended because another one had failed. One that says why it failed failed by itself."""
    is_first = current.first_failure in (None, worker.rank)
    return not is_first and worker.code in _OURS and not worker.message


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
        time_ms: when it failed, by its error file or else by when it was gone; 0 when not known.
        message, error_file: what it said of its own failure, and in which file.
        out_of_memory: the machine ended it for its use of memory.
        fenced: even a kill did not end it.
    """

    round: int
    rank: int
    code: int
    last_lines: str
    free_port: int
    time_ms: int = 0
    message: str = ""
    error_file: str = ""
    out_of_memory: bool = False
    fenced: bool = False


class NoticeReceived(_Value, frozen=True, kw_only=True):
    """The node will be taken away; `deadline_ms` by when, 0 when no time was given, and `time_ms` is now."""

    source: NoticeSource
    deadline_ms: int
    text: str
    time_ms: int


class WorkersStuck(_Value, frozen=True, kw_only=True):
    """Workers of the round live but do not get on; fields as in `NodeStuck`."""

    round: int
    what: Literal["no_step", "expired"]
    since_ms: int
    detail: str
    stacks: str


class EndRequested(_Value, frozen=True, kw_only=True):
    """The agent is to end for a reason outside the log: a signal, a lost bus, or the node is about to be taken away."""

    reason: str
    exit_code: int


class Unwanted(_Value, frozen=True, kw_only=True):
    """The log does not know this node's launch, or it says, in the event `cause`, that nothing of it is to run."""

    reason: str
    exit_code: int
    cause: Cause = Cause()


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
    | NoticeReceived
    | WorkersStuck
    | EndRequested
    | Unwanted
)


# --------------------------------------------------------------------------------------------------------------------
# Instructions
# --------------------------------------------------------------------------------------------------------------------

NodeFact: TypeAlias = (
    NodeStarted
    | NodeCheckpointed
    | NodeDrained
    | NodeFinished
    | NodeFailed
    | NodeLeft
    | NodePreemptionNotice
    | NodeStuck
    | NodeReclassified
)


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


class AwaitDeadline(_Value, frozen=True, kw_only=True):
    """Say `EndRequested` while there is still time to end the workers and to say so before `deadline_ms`."""

    deadline_ms: int


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
    StartWorkers
    | AgreeOnStop
    | StartGrace
    | TerminateWorkers
    | CheckCheckpoint
    | AwaitDeadline
    | Record
    | Leave
    | Ignored
)

#: How many named checkpoints are remembered to recognise a second worker's word.
ANNOUNCED_KEPT: Final = 16
