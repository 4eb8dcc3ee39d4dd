"""What a worker's hook and its node's agent say to each other over a Unix socket, one JSON line a message.

The worker connects to the path in `ELASTICGRID_AGENT_SOCKET`. Stopping is agreed at a step boundary: the agent asks
`Where`, every worker of the round answers `At`, and the agents then tell all of them the same `StopAt`.
"""

from __future__ import annotations

import msgspec


class _Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the protocol."""


class Hello(_Message, frozen=True, kw_only=True, tag="hello"):
    """Worker: I am here. First on every connection.

    Attributes:
        stacks: the file that the places of all its threads are written to on SIGUSR2; empty when it does not do that.
    """

    rank: int
    round: int
    pid: int
    stacks: str = ""


class At(_Message, frozen=True, kw_only=True, tag="at"):
    """Worker: this many steps are completed. Sent when asked and, at most a few times a second, when it changed."""

    step: int


class Checkpointed(_Message, frozen=True, kw_only=True, tag="checkpointed"):
    """Worker: the training state after `step` steps is at `uri`."""

    step: int
    uri: str


class Stopping(_Message, frozen=True, kw_only=True, tag="stopping"):
    """Worker: `should_stop()` returned true after `step` steps; an exit with success after this is no completion."""

    step: int


class Closed(_Message, frozen=True, kw_only=True, tag="closed"):
    """Worker: the hook is closed; last on a connection."""

    step: int
    samples_published: int
    samples_dropped: int


class Expires(_Message, frozen=True, kw_only=True, tag="expires"):
    """Worker: something it does now is to end within `after_s` from now, or it is stuck.

    Attributes:
        id: unique in the worker.
        name: what it is, for people.
        limit_s: what it was given when it began, of which `after_s` is left; 0 for the same.
    """

    id: int
    after_s: float
    name: str = ""
    limit_s: float = 0.0


class Ended(_Message, frozen=True, kw_only=True, tag="ended"):
    """Worker: what was said to expire has ended."""

    id: int


class Where(_Message, frozen=True, kw_only=True, tag="where"):
    """Agent: how many steps are completed?"""


class StopAt(_Message, frozen=True, kw_only=True, tag="stop_at"):
    """Agent: `should_stop()` is true from the moment `step` steps are completed."""

    step: int


WorkerMessage = Hello | At | Checkpointed | Stopping | Closed | Expires | Ended
AgentMessage = Where | StopAt

worker_decoder: msgspec.json.Decoder[WorkerMessage] = msgspec.json.Decoder(WorkerMessage)
agent_decoder: msgspec.json.Decoder[AgentMessage] = msgspec.json.Decoder(AgentMessage)
_encoder = msgspec.json.Encoder()


def encode_line(message: WorkerMessage | AgentMessage) -> bytes:
    """One message as a line."""
    return _encoder.encode(message) + b"\n"
