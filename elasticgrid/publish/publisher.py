"""The hook for a training loop: samples out, stop and resume in.

It never blocks the training thread, never raises into it, holds a bounded number of samples and ends within a bounded
time. Outside the grid it counts steps and does nothing else.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import SupportsFloat, SupportsInt, TypeVar

import msgspec

from elasticgrid.core.samples import MAX_STEP_S
from elasticgrid.publish.buffer import SampleBuffer
from elasticgrid.publish.sender import Sender
from elasticgrid.publish.settings import HookSettings, read_settings
from elasticgrid.publish.state import TrainerState

_log = logging.getLogger("elasticgrid.publish")

T = TypeVar("T")

#: Samples kept while the bus is away; at ten steps a second that is nearly a quarter of an hour.
BUFFERED_SAMPLES = 8_192
CLOSE_TIMEOUT_S = 2.0
#: More than any step trains on, and still a whole number on every wire.
MAX_TOKENS = 2**62


class PublisherStats(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the samples, and what went wrong.

    Attributes:
        published: acknowledged by the bus.
        dropped: never to be sent: the buffer was full, or the hook was closed before the bus could be reached.
        refused: steps whose numbers could not be used, and calls with unusable arguments.
        buffered: waiting, or sent and not acknowledged yet.
        reconnects: connections to bus or agent beyond the first ones.
        problem: the last thing that went wrong; empty when nothing did.
    """

    published: int
    dropped: int
    refused: int
    buffered: int
    reconnects: int
    problem: str


class Step:
    """One training step: a `with` block. Its attributes may be set until the block ends.

    Attributes:
        tokens: tokens or items this rank trained on.
        queue_s: how long the step's work had waited for a free worker, in seconds.
        data_wait_s: waits for input within the block that `Publisher.data` did not measure, in seconds.
        loss: the training loss, when it is known.
    """

    __slots__ = (
        "_began",
        "_publisher",
        "_waited_before_s",
        "_waited_within_s",
        "data_wait_s",
        "loss",
        "queue_s",
        "tokens",
    )

    def __init__(
        self,
        publisher: Publisher,
        tokens: SupportsInt,
        queue_s: SupportsFloat,
        loss: SupportsFloat | None,
    ) -> None:
        self.tokens = tokens
        self.queue_s = queue_s
        self.data_wait_s: SupportsFloat = 0.0
        self.loss = loss
        self._publisher = publisher
        self._began: float | None = None
        self._waited_before_s = 0.0
        self._waited_within_s = 0.0

    def __enter__(self) -> Step:
        self._publisher._step_began(self)
        self._began = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended, began = time.perf_counter(), self._began
        self._began = None
        if began is not None:
            self._publisher._step_ended(self, ended - began, completed=kind is None)


class Publisher:
    """What `publisher` returns. All methods may be called from the training thread at any rate."""

    def __init__(self, settings: HookSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._state = TrainerState(resume_step=settings.resume_step)
        self._state.problem = settings.problem
        self._samples = SampleBuffer(BUFFERED_SAMPLES)
        self._sender: Sender | None = None
        self._refused = 0
        self._open_step: Step | None = None
        self._waited_before_s = 0.0
        if settings.has_bus or settings.has_agent:
            self._sender = Sender(settings, self._state, self._samples)
            weakref.finalize(self, self._sender.close, CLOSE_TIMEOUT_S, wait=False).atexit = False
        _publishers.add(self)

    @property
    def active(self) -> bool:
        """Whether there is an agent or a bus to talk to: not outside the grid, in a forked child or after `close`."""
        return self._sender is not None

    @property
    def rank(self) -> int:
        """This worker among all of the world, from 0."""
        return self._settings.rank

    @property
    def world_size(self) -> int:
        """Workers in the world."""
        return self._settings.world_size

    @property
    def round(self) -> int:
        """Which world this is; it counts up with every change of members. 0 outside the grid."""
        return self._settings.round

    @property
    def resume_step(self) -> int:
        """Optimizer steps that were done before this process began; 0 at the beginning."""
        return self._settings.resume_step

    @property
    def resume_uri(self) -> str | None:
        """The checkpoint to load, or None at the beginning."""
        return self._settings.resume_uri or None

    @property
    def checkpoint_dir(self) -> str | None:
        """Where checkpoints go so that every node of the job sees them, or None outside the grid."""
        return self._settings.checkpoint_dir or None

    @property
    def steps_completed(self) -> int:
        """Optimizer steps done, counted over the whole job."""
        return self._state.steps_completed

    @property
    def stats(self) -> PublisherStats:
        """What became of the samples so far."""
        state = self._state
        return PublisherStats(
            published=state.published,
            dropped=self._samples.dropped,
            refused=self._refused,
            buffered=self._samples.unsent,
            reconnects=state.reconnects,
            problem=state.problem,
        )

    def step(self, *, tokens: SupportsInt = 0, queue_s: SupportsFloat = 0.0, loss: SupportsFloat | None = None) -> Step:
        """A `with` block around one optimizer step; its duration is measured.

        When the block ends, the step counts as completed and its sample is on its way. When it raises, the exception
        goes through and the step counts as not done.

        Args:
            tokens: tokens or items this rank trains on.
            queue_s: how long the step's work had waited for a free worker, in seconds.
            loss: the training loss.
        """
        return Step(self, tokens, queue_s, loss)

    def data(self, loader: Iterable[T]) -> Iterator[T]:
        """The items of `loader`, with the time spent waiting for each counted as `data_wait_s` of its step.

        The wait for an item belongs to the step that follows, and to that step's duration.
        """
        items = iter(loader)
        while True:
            began = time.perf_counter()
            try:
                item = next(items)
            except StopIteration:
                return
            self._waited(time.perf_counter() - began)
            yield item

    def should_stop(self) -> bool:
        """Whether the world ends here: commit a checkpoint, tell it with `checkpointed`, and exit with success.

        Ask after every step. It is true on every rank after the same step.
        """
        state = self._state
        if state.stop_at is None or state.steps_completed < state.stop_at:
            return False
        if state.stopped_at is None:
            state.stopped_at = state.steps_completed
            self._wake()
        return True

    def checkpointed(self, step: int, uri: str | os.PathLike[str]) -> None:
        """Tell that the training state after `step` steps is committed at `uri`."""
        try:
            told = (int(step), os.fspath(uri))
        except Exception as error:
            self._refuse(f"checkpointed({step!r}, {uri!r}): {error}")
            return
        if told[0] < 0 or not isinstance(told[1], str) or not told[1]:
            self._refuse(f"checkpointed({step!r}, {uri!r}): a step from 0 and a path are needed")
            return
        self._state.checkpointed = told
        self._start()
        self._wake()

    def flush(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Wait until all samples are acknowledged and the agent was told everything; False when time was up."""
        sender = self._sender
        return True if sender is None else sender.flush(timeout_s)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send what can be sent within `timeout_s` and end; what is left counts as dropped. Safe to call again."""
        with self._lock:
            sender, self._sender = self._sender, None
        if sender is not None:
            sender.close(timeout_s)
        self._samples.discard()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _step_began(self, step: Step) -> None:
        self._start()
        with self._lock:
            step._waited_before_s, self._waited_before_s = self._waited_before_s, 0.0
            self._open_step = step

    def _waited(self, seconds: float) -> None:
        with self._lock:
            step = self._open_step
            if step is None:
                self._waited_before_s += seconds
            else:
                step._waited_within_s += seconds

    def _step_ended(self, step: Step, duration_s: float, *, completed: bool) -> None:
        with self._lock:
            if self._open_step is step:
                self._open_step = None
            if not completed:
                return
            self._state.steps_completed += 1
            done = self._state.steps_completed
        try:
            tokens, queue_s, data_wait_s = int(step.tokens), float(step.queue_s), float(step.data_wait_s)
            loss = math.nan if step.loss is None else float(step.loss)
        except Exception as error:
            self._refuse(f"step {done}: {error!r}")
            return
        duration_s += step._waited_before_s
        data_wait_s += step._waited_before_s + step._waited_within_s
        for name, value in (("queue_s", queue_s), ("data_wait_s", data_wait_s)):
            if not 0.0 <= value <= MAX_STEP_S:
                self._refuse(f"step {done}: {name} is {value}")
                return
        if not 0 <= tokens <= MAX_TOKENS:
            self._refuse(f"step {done}: tokens is {tokens}")
            return
        sender = self._sender
        if sender is not None and sender.has_bus:
            self._samples.add(
                step=done,
                duration_s=duration_s,
                queue_s=queue_s,
                data_wait_s=data_wait_s,
                tokens=tokens,
                nodes=self._settings.nodes,
                time_ms=time.time_ns() // 1_000_000,
                loss=loss,
            )

    def _start(self) -> None:
        sender = self._sender
        if sender is not None:
            sender.start()

    def _wake(self) -> None:
        sender = self._sender
        if sender is not None:
            sender.wake()

    def _refuse(self, problem: str) -> None:
        with self._lock:
            self._refused += 1
            first = self._refused == 1
        self._state.problem = problem
        if first:
            _log.warning("the elasticgrid hook refuses what it was given (said once): %s", problem)

    def _be_silent(self) -> None:
        """In a forked child: the parent goes on publishing as this rank, so the child does not."""
        self._lock = threading.Lock()
        self._sender = None
        self._samples = SampleBuffer(BUFFERED_SAMPLES)
        self._state.stop_at = None


def publisher(environ: Mapping[str, str] | None = None) -> Publisher:
    """The hook of this worker, from its environment. Never raises and starts nothing before its first step.

    Outside the grid, and with an environment that cannot be read (`stats.problem` then says why), it counts steps and
    does nothing else.

    Args:
        environ: instead of `os.environ`.
    """
    settings = read_settings(os.environ if environ is None else environ)
    if settings.problem:
        _log.warning("the elasticgrid hook is silent: %s", settings.problem)
    return Publisher(settings)


_publishers: weakref.WeakSet[Publisher] = weakref.WeakSet()


def _silence_in_child() -> None:
    for each in list(_publishers):
        each._be_silent()


os.register_at_fork(after_in_child=_silence_in_child)
