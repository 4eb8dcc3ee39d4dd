"""Windows rebuilt from recorded samples, as they were when a decision was taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import msgspec

from elasticgrid.bus.subjects import parse_sample_subject
from elasticgrid.core.events import Signals
from elasticgrid.core.evidence import EvidenceFold
from elasticgrid.core.grid import JobKey
from elasticgrid.core.job import JobState
from elasticgrid.core.window import Window, open_window, signals_of
from elasticgrid.log.archive_format import SampleCoverage, SampleMessage

#: Decisions may reach the log in another order than they were taken in: so many messages are looked behind.
_MEMORY = 8_192


class _Replaced(msgspec.Struct, frozen=True):
    """What a message replaced."""

    sequence: int
    time_ms: int
    key: JobKey
    window: Window | None


class SampleWindows:
    """Folds sample messages as far as decisions had read them.

    Args:
        messages: in order.
        coverage: which part of the samples stream they are. A decision whose window reaches beyond it, or over a gap
            in it, has no answer here.
    """

    def __init__(self, messages: Iterable[SampleMessage], coverage: SampleCoverage) -> None:
        self._messages: Iterator[SampleMessage] = iter(messages)
        self._next: SampleMessage | None = next(self._messages, None)
        self._coverage = coverage
        self._through = coverage.held.after
        self._evidence = EvidenceFold()
        self._replaced: deque[_Replaced] = deque(maxlen=_MEMORY)
        self._forgotten = 0
        self._cut_rounds: dict[JobKey, int] = {}

    def open(self, state: JobState) -> None:
        """The job's state after an event of it: a round may have begun, or the job ended."""
        key = (state.tenant, state.id)
        if state.terminal:
            self._evidence.close(key)
            self._cut_rounds.pop(key, None)
            return
        self._evidence.open(state)
        if self._is_later(state.round_samples_after, state.round_decided_ms):
            self._cut_rounds[key] = state.round

    def signals(
        self, state: JobState, through: int, as_of_ms: int, *, read: Callable[[Window], Signals] = signals_of
    ) -> Signals | None:
        """What the window of the job's round said when the stream had been read through a sequence, at a time.

        `read` is how the policy of that time read a window. None when the samples that it takes are not all here. A
        server that crashes may lose samples that were read already and give their sequences to later ones: these are
        known by their time.
        """
        if state.round == 0:
            return Signals()
        if state.spec is None or not self._coverage.covers(state.round_samples_after, through):
            return None
        if self._cut_rounds.get((state.tenant, state.id)) == state.round or self._is_later(through, as_of_ms):
            return None
        if through <= state.round_samples_after:
            nodes = len(state.members)
            empty = open_window(state.round, nodes, nodes * state.spec.nproc_per_node, state.spec.scaling)
            return read(empty)
        self._advance(through)
        window = self._window((state.tenant, state.id), through)
        if window is None or window.round != state.round:
            return None
        return read(window)

    def _advance(self, through: int) -> None:
        while self._next is not None and self._next.sequence <= through:
            message = self._next
            key = parse_sample_subject(message.subject)
            if key is not None:
                if len(self._replaced) == _MEMORY:
                    self._forgotten = self._replaced[0].sequence
                self._replaced.append(_Replaced(message.sequence, message.time_ms, key, self._evidence.window(key)))
                self._evidence.apply(key, message.sequence, message.time_ms, message.data)
            self._next = next(self._messages, None)
        self._through = max(self._through, through)

    def _is_later(self, through: int, time_ms: int) -> bool:
        """Whether the last message as of a sequence came after this time, so that it cannot be what was read then."""
        self._advance(min(through, self._coverage.held.through))
        for replaced in reversed(self._replaced):
            if replaced.sequence <= through:
                return replaced.time_ms > time_ms
        return False

    def _window(self, key: JobKey, through: int) -> Window | None:
        window = self._evidence.window(key)
        if through >= self._through:
            return window
        if through < self._forgotten:
            return None
        for replaced in reversed(self._replaced):
            if replaced.sequence <= through:
                break
            if replaced.key == key:
                window = replaced.window
        return window
