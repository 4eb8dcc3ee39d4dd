"""The windows of all jobs, folded from the samples stream.

A window belongs to one round. Samples of a round that is not known yet are kept until it is, so that what a window
holds depends only on the samples and not on how fast the two streams were read.
"""

from __future__ import annotations

import msgspec

from elasticgrid.core.events import Signals
from elasticgrid.core.grid import JobKey
from elasticgrid.core.job import JobState
from elasticgrid.core.samples import AdmittedSample, Refusal, admit, decode_batch
from elasticgrid.core.window import Window, observe, open_window, signals_of

#: Messages of rounds not known yet that are kept per job.
MAX_EARLY_MESSAGES = 4_096


class _Early(msgspec.Struct, frozen=True):
    round: int
    samples: tuple[AdmittedSample, ...]
    server_ms: int


class EvidenceFold:
    """Folds sample messages, in the order of their sequences, into one window per job."""

    def __init__(self) -> None:
        self.sequence = 0
        self.messages = 0
        self.samples = 0
        self.refused: dict[str, int] = {}
        self._windows: dict[JobKey, Window] = {}
        self._early: dict[JobKey, list[_Early]] = {}

    def open(self, state: JobState) -> None:
        """Begin the window of the job's current round, unless it is open already."""
        key = (state.tenant, state.id)
        window = self._windows.get(key)
        if state.spec is None or state.round == 0 or (window is not None and window.round >= state.round):
            return
        nodes = len(state.members)
        window = open_window(state.round, nodes, nodes * state.spec.nproc_per_node, state.spec.scaling)
        for early in self._early.pop(key, ()):
            if early.round == state.round:
                window = observe(window, early.samples, early.server_ms)
            elif early.round > state.round:
                self._early.setdefault(key, []).append(early)
        self._windows[key] = window

    def close(self, key: JobKey) -> None:
        """Forget a job that is over."""
        self._windows.pop(key, None)
        self._early.pop(key, None)

    def apply(self, key: JobKey, sequence: int, server_ms: int, data: bytes) -> bool:
        """Fold one message and return whether a step was completed by it. No message makes it raise."""
        self.sequence = max(self.sequence, sequence)
        self.messages += 1
        batch = decode_batch(data)
        if isinstance(batch, str):
            self._refuse(batch)
            return False
        admitted = []
        for sample in batch.samples:
            verdict = admit(batch, sample)
            if isinstance(verdict, str):
                self._refuse(verdict)
            else:
                admitted.append(verdict)
        self.samples += len(admitted)
        window = self._windows.get(key)
        current = window.round if window is not None else 0
        if batch.round > current:
            early = self._early.setdefault(key, [])
            early.append(_Early(batch.round, tuple(admitted), server_ms))
            del early[:-MAX_EARLY_MESSAGES]
            return False
        if window is None or batch.round < current:
            self.refused["other_round"] = self.refused.get("other_round", 0) + len(admitted)
            return False
        after = observe(window, admitted, server_ms)
        self._windows[key] = after
        return after.last_step > window.last_step

    def _refuse(self, reason: Refusal) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def window(self, key: JobKey) -> Window | None:
        """The job's window as of now."""
        return self._windows.get(key)

    def signals(self, key: JobKey) -> Signals:
        """What the job's window says now."""
        window = self._windows.get(key)
        return signals_of(window) if window is not None else Signals()
