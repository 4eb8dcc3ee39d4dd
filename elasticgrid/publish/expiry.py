"""Parts of the training that are to end in time: what the agent needs to tell a hang from a long wait."""

from __future__ import annotations

import itertools
import time
from types import TracebackType

from elasticgrid.publish.state import TrainerState

_numbers = itertools.count(1)


class Expiry:
    """A `with` block that is to end within a time. The block itself is never touched: only the agent is told.

    A block that is over within a tenth of a second is never told at all, so it costs next to nothing.
    """

    __slots__ = ("_after_s", "_name", "_number", "_state")

    def __init__(self, state: TrainerState, after_s: float, name: str) -> None:
        self._state = state
        self._after_s = after_s
        self._name = name
        self._number = 0

    def __enter__(self) -> Expiry:
        if self._after_s > 0.0:
            self._number = next(_numbers)
            until_s = time.monotonic() + self._after_s
            # Replaced, not changed: the sending thread may be walking through the old one.
            self._state.expiring = {**self._state.expiring, self._number: (until_s, self._after_s, self._name)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = dict(self._state.expiring)
        left.pop(self._number, None)
        self._state.expiring = left
