"""Facts the node agents record."""

from __future__ import annotations

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
    """

    node: str
    round: int
    last_step: int
    clean: bool
    free_port: int
    samples_published: int = 0
    samples_dropped: int = 0


class WorkerExit(Value, frozen=True, kw_only=True):
    """How one worker ended: its exit code, or minus the signal's number."""

    rank: int
    code: int
    last_lines: str = ""


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
    """

    node: str
    round: int
    last_step: int
    exits: tuple[WorkerExit, ...]
    failure: FailureClass
    free_port: int
    samples_published: int = 0
    samples_dropped: int = 0


class NodeLeft(Value, frozen=True, kw_only=True, tag_field="type", tag="node.left"):
    """The agent ends; nothing of the node runs after this."""

    node: str
    reason: str
