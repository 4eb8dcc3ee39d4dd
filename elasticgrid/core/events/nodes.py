"""Facts the node agents record."""

from __future__ import annotations

from typing import Literal

from elasticgrid.core.events.base import Value
from elasticgrid.core.events.decisions import CheckpointRef
from elasticgrid.core.events.launches import FailureClass


class NodeJoined(Value, frozen=True, kw_only=True, tag_field="type", tag="node.joined"):
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


class NodeStarted(Value, frozen=True, kw_only=True, tag_field="type", tag="node.started"):
    """The node's workers of a round took their first step."""

    node: str
    round: int
    step: int


class NodeCheckpointed(Value, frozen=True, kw_only=True, tag_field="type", tag="node.checkpointed"):
    """A checkpoint is complete: every file it names was there and had the size and hash it says."""

    node: str
    round: int
    checkpoint: CheckpointRef


class NodeDrained(Value, frozen=True, kw_only=True, tag_field="type", tag="node.drained"):
    """No worker of that round runs on the node any more, because the round ended.

    Attributes:
        last_step: steps its workers had completed.
        clean: whether they stopped by themselves; False when they were terminated.
        free_port: a port that was free just now, should the node be the next master.
        samples_published, samples_dropped: by the workers' hooks in this round.
        fenced: ranks of workers that even a kill did not end; nothing waits for them and the node leaves.
    """

    node: str
    round: int
    last_step: int
    clean: bool
    free_port: int
    samples_published: int = 0
    samples_dropped: int = 0
    fenced: tuple[int, ...] = ()


#: How a worker ended: by itself, with success or without, or because its agent stopped it.
ExitState = Literal["SUCCEEDED", "FAILED", "STOPPED"]


class WorkerExit(Value, frozen=True, kw_only=True):
    """How one worker ended: its exit code, or minus the signal's number.

    Attributes:
        message: what the worker said of its own failure, from its error file.
        error_file: where on the node that file is; empty when the worker wrote none.
        time_ms: when it failed, by the error file or else by when it was gone; 0 when not known.
        state: whether it failed itself or was stopped because of another's failure; None where agents said nothing of
            that yet.
    """

    rank: int
    code: int
    last_lines: str = ""
    message: str = ""
    error_file: str = ""
    time_ms: int = 0
    state: ExitState | None = None


class NodeFinished(Value, frozen=True, kw_only=True, tag_field="type", tag="node.finished"):
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


class NodeFailed(Value, frozen=True, kw_only=True, tag_field="type", tag="node.failed"):
    """A worker of the round on this node ended with failure; the node's others were stopped.

    Attributes:
        exits: every worker's end, the first failure first.
        failure: `app_failed` unless there is evidence of the infrastructure.
        fenced: ranks of workers that even a kill did not end; nothing waits for them and the node leaves.
    """

    node: str
    round: int
    last_step: int
    exits: tuple[WorkerExit, ...]
    failure: FailureClass
    free_port: int
    samples_published: int = 0
    samples_dropped: int = 0
    fenced: tuple[int, ...] = ()


class NodeLeft(Value, frozen=True, kw_only=True, tag_field="type", tag="node.left"):
    """The agent ends; nothing of the node runs after this."""

    node: str
    reason: str


NoticeSource = Literal["aws", "gcp", "azure", "file", "signal"]


class NodePreemptionNotice(Value, frozen=True, kw_only=True, tag_field="type", tag="node.preemption_notice"):
    """The node was told that it will be taken away.

    Attributes:
        source: who said so.
        deadline_ms: when it will be gone, Unix milliseconds; 0 when no time was given, as with a mere recommendation.
        text: what was said, raw.
    """

    node: str
    source: NoticeSource
    deadline_ms: int
    text: str = ""


class NodeStuck(Value, frozen=True, kw_only=True, tag_field="type", tag="node.stuck"):
    """Workers of the round on this node live but do not get on.

    Attributes:
        what: `no_step` (none was completed for far longer than one takes) or `expired` (a part of the training that
            was announced to end within a time did not).
        last_step: steps its workers had completed.
        since_ms: when the last step was completed, or the part began; Unix milliseconds.
        detail: which ranks, what was waited for and for how long.
        stacks: where the workers' threads were, as far as that could be found out.
    """

    node: str
    round: int
    what: Literal["no_step", "expired"]
    last_step: int
    since_ms: int
    detail: str = ""
    stacks: str = ""


class NodeReclassified(Value, frozen=True, kw_only=True, tag_field="type", tag="node.reclassified"):
    """What was recorded as a failure of the application is one of the infrastructure: a notice came right after it.

    Attributes:
        round: the round that failed on the node.
        failure: what it is now.
        text: the evidence.
    """

    node: str
    round: int
    failure: FailureClass
    text: str = ""
