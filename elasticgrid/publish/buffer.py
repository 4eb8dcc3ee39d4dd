"""The samples that wait to be sent: bounded, the oldest is dropped first, every drop is counted."""

from __future__ import annotations

import threading
from collections import deque

from elasticgrid.core.samples import StepSample


class SampleBuffer:
    """Written by the training thread, read by the sending thread.

    Its lock is held for a few memory operations and never while anything is waited for.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._waiting: deque[StepSample] = deque()
        self._in_flight = 0
        self._next_seq = 0
        self._dropped = 0

    def add(
        self,
        *,
        step: int,
        duration_s: float,
        queue_s: float,
        data_wait_s: float,
        tokens: int,
        nodes: int,
        time_ms: int,
        loss: float,
    ) -> None:
        """Append a sample with the next `seq`; the oldest waiting one makes room when the buffer is full."""
        with self._lock:
            sample = StepSample(self._next_seq, step, duration_s, queue_s, data_wait_s, tokens, nodes, time_ms, loss)
            self._next_seq += 1
            if len(self._waiting) + self._in_flight >= self._limit:
                self._dropped += 1
                if not self._waiting:
                    return
                self._waiting.popleft()
            self._waiting.append(sample)

    def take(self, most: int) -> list[StepSample]:
        """Up to `most` of the oldest samples; they count as in flight until `settle`."""
        with self._lock:
            taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            self._in_flight += len(taken)
            return taken

    def settle(self, samples: int, *, sent: bool) -> None:
        """So many samples in flight were sent, or were given up and count as dropped."""
        with self._lock:
            self._in_flight -= samples
            if not sent:
                self._dropped += samples

    def discard(self) -> None:
        """Drop what waits: nobody will send it."""
        with self._lock:
            self._dropped += len(self._waiting)
            self._waiting.clear()

    @property
    def waiting(self) -> int:
        """Samples not taken yet."""
        return len(self._waiting)

    @property
    def unsent(self) -> int:
        """Samples waiting or in flight."""
        with self._lock:
            return len(self._waiting) + self._in_flight

    @property
    def dropped(self) -> int:
        """Samples that will never be sent."""
        return self._dropped
