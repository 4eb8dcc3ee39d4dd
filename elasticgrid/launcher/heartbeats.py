"""When each node was heard of last. Heartbeats are in no log; only a node that was not heard of becomes a fact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from elasticgrid.bus.subjects import HEARTBEATS_ROOT
from elasticgrid.clock import Clock
from elasticgrid.core.grid import JobKey

_log = structlog.get_logger("launcher")

#: How many strange senders are remembered, so that each is logged once.
MAX_STRANGERS: Final = 10_000


class Heartbeats:
    """Listens to the nodes.

    Args:
        client: the connection to listen on; with None nobody is heard and nobody is called silent.
        clock: for the times.
        knows: whether the log knows of this node.

    Attributes:
        strangers: messages from nodes that the log does not know.
    """

    def __init__(self, client: Client | None, clock: Clock, knows: Callable[[JobKey, str], bool]) -> None:
        self.strangers = 0
        self._client = client
        self._clock = clock
        self._knows = knows
        self._heard_ms: dict[tuple[JobKey, str], int] = {}
        self._listening_since_ms: int | None = None
        self._said: set[str] = set()

    async def listen(self) -> None:
        """Begin to listen."""
        if self._client is not None:
            await self._client.subscribe(f"{HEARTBEATS_ROOT}.>", cb=self._on_message)
            self.check_connection()

    def check_connection(self) -> None:
        """Look whether nodes can be heard at all; call it often. Time without a connection is nobody's silence."""
        if self._client is None or not self._client.is_connected:
            self._listening_since_ms = None
        elif self._listening_since_ms is None:
            self._listening_since_ms = self._clock.now_ms()

    def silent_ms(self, key: JobKey, node: str, since_ms: int) -> int | None:
        """For how long nothing was heard of the node, at most since `since_ms`; None when nobody can be heard."""
        if self._listening_since_ms is None:
            return None
        latest_ms = max(since_ms, self._listening_since_ms, self._heard_ms.get((key, node), 0))
        return max(0, self._clock.now_ms() - latest_ms)

    def forget(self, key: JobKey, node: str) -> None:
        """The node is over."""
        self._heard_ms.pop((key, node), None)

    async def _on_message(self, message: Msg) -> None:
        parts = message.subject.removeprefix(f"{HEARTBEATS_ROOT}.").split(".")
        if len(parts) == 3 and self._knows((parts[0], parts[1]), parts[2]):
            self._heard_ms[(parts[0], parts[1]), parts[2]] = self._clock.now_ms()
            return
        self.strangers += 1
        if message.subject not in self._said and len(self._said) < MAX_STRANGERS:
            self._said.add(message.subject)
            _log.warning("a heartbeat of a node that the log does not know", subject=message.subject)
