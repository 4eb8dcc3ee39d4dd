"""The samples that wait to be sent: bounded, the oldest is dropped first, every drop is counted."""

from __future__ import annotations

import threading
import time
from collections import deque

from elasticgrid.core.samples import MAX_BATCH, StepSample

#: What a step leaves behind: StepSample's fields but for `nodes`, with the end of the step in `perf_counter` seconds.
_Record = tuple[int, int, float, float, float, int, float, float, float, float]


class SampleBuffer:
    """Written by the training thread, read by the sending thread.

    A step appends one tuple and takes no lock. The lock is between those who take, count and discard, and is held for
    a few memory operations.

    Args:
        limit: how many samples are held at most, with those in flight; more than `batch`.
        nodes: nodes in the world, for the samples.
        batch: how many samples are in flight at most.
    """

    def __init__(self, limit: int, *, nodes: int = 1, batch: int = MAX_BATCH) -> None:
        self._nodes = nodes
        self._batch = batch
        self._lock = threading.Lock()
        self._waiting: deque[_Record] = deque(maxlen=limit - batch)
        self._added = 0  # by the training thread alone
        self._taken = 0
        self._in_flight = 0
        self._lost = 0
        self._clock_offset_s = time.time() - time.perf_counter()

    def add(
        self,
        step: int,
        duration_s: float,
        queue_s: float,
        data_wait_s: float,
        tokens: int,
        ended_s: float,
        loss: float,
        compute_s: float,
        checkpoint_s: float,
    ) -> None:
        """Append a sample with the next `seq`; the oldest waiting one makes room when the buffer is full.

        Args:
            step, duration_s, queue_s, data_wait_s, tokens, loss, compute_s, checkpoint_s: as in `StepSample`.
            ended_s: when the step ended, by `time.perf_counter`.
        """
        seq = self._added
        self._waiting.append(
            (seq, step, duration_s, queue_s, data_wait_s, tokens, ended_s, loss, compute_s, checkpoint_s)
        )
        self._added = seq + 1

    def take(self) -> list[StepSample]:
        """A batch of the oldest samples; they are in flight until `settle`."""
        offset_s = self._clock_offset_s
        nodes = self._nodes
        waiting = self._waiting
        with self._lock:
            # Only `take` and `discard` make it shorter, so what was counted is still there.
            records = [waiting.popleft() for _ in range(min(self._batch - self._in_flight, len(waiting)))]
            self._taken += len(records)
            self._in_flight += len(records)
        return [
            StepSample(
                seq,
                step,
                duration_s,
                queue_s,
                data_wait_s,
                tokens,
                nodes,
                int((ended_s + offset_s) * 1000),
                loss,
                compute_s,
                checkpoint_s,
            )
            for seq, step, duration_s, queue_s, data_wait_s, tokens, ended_s, loss, compute_s, checkpoint_s in records
        ]

    def settle(self, samples: int, *, lost: bool = False) -> None:
        """So many samples in flight are somewhere safe, or are lost and count as dropped."""
        with self._lock:
            self._in_flight -= samples
            if lost:
                self._lost += samples

    def lose(self, samples: int) -> None:
        """So many samples that were settled before are lost after all."""
        with self._lock:
            self._lost += samples

    def discard(self) -> None:
        """Drop what waits: nobody will send it."""
        with self._lock:
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
        with self._lock:
            # A sample that is just being added may be counted in one place and not yet in the other.
            return max(0, self._added - self._taken - len(self._waiting)) + self._lost
