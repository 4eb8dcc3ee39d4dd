"""Which nodes of a run live: a node that was not heard of for too long, while it could have been, is lost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: When it was not looked for this long, this process itself was held up, and what it heard meanwhile waits unread.
LATE_LOOK_S: Final = 2.0


class Presence:
    """Signs of life, by node. All times are seconds that only grow.

    Args:
        timeout_s: silence after which a node is lost.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._heard: dict[str, float] = {}
        self._looked_s: float | None = None

    def heard(self, node: str, now_s: float) -> None:
        """A node gave a sign of life."""
        self._heard[node] = now_s

    def silent(self, nodes: Iterable[str], now_s: float, *, bus_is_there: bool) -> dict[str, float]:
        """How long each of `nodes` has been silent that has been for too long.

        A node counts from when it was first asked about. While the bus is away, and after a time in which nobody
        looked, nothing is known of anybody: all count anew.
        """
        late = self._looked_s is not None and now_s - self._looked_s > LATE_LOOK_S
        self._looked_s = now_s
        if late or not bus_is_there:
            self._heard = dict.fromkeys(self._heard, now_s)
        found: dict[str, float] = {}
        for node in nodes:
            silent_s = now_s - self._heard.setdefault(node, now_s)
            if silent_s >= self._timeout_s:
                found[node] = silent_s
        return found
