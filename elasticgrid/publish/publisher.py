"""The hook for a training loop: samples out, stop and resume in.

It never blocks the training thread, never raises into it, holds a bounded number of samples and ends within a bounded
time. Outside the grid it counts steps and does nothing else.
"""

from __future__ import annotations

import logging
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
from elasticgrid.publish.expiry import Expiry
from elasticgrid.publish.recorder import Checkpointing, Recorder, Step
from elasticgrid.publish.sender import Sender
from elasticgrid.publish.settings import HookSettings, read_settings
from elasticgrid.publish.state import TrainerState

__all__ = ["Checkpointing", "Expiry", "Publisher", "PublisherStats", "Step", "publisher"]

_log = logging.getLogger("elasticgrid.publish")

T = TypeVar("T")

#: Samples kept while the bus is away; at ten steps a second that is nearly a quarter of an hour.
BUFFERED_SAMPLES = 8_192
CLOSE_TIMEOUT_S = 1.5
#: Of the name of a block that expires.
MAX_NAME = 100


class PublisherStats(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the samples, and what went wrong.

    Attributes:
        published: acknowledged by the bus.
        dropped: never to be sent: the buffer was full, or the hook was closed before the bus could be reached.
        refused: steps whose numbers could not be used, and calls with unusable arguments.
        buffered: waiting, or sent and not acknowledged yet.
        reconnects: connections to bus or agent beyond the first ones.
        problem: the last thing that went wrong; empty when nothing did.
        spooled: in the node's folder, to be sent when the bus is back, by this process or the next on this node.
    """

    published: int
    dropped: int
    refused: int
    buffered: int
    reconnects: int
    problem: str
    spooled: int = 0


class Publisher:
    """What `publisher` returns. All methods may be called from the training thread at any rate."""

    def __init__(self, settings: HookSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._state = TrainerState(resume_step=settings.resume_step)
        self._state.problem = settings.problem
        self._samples = SampleBuffer(BUFFERED_SAMPLES, nodes=settings.nodes)
        self._sender: Sender | None = None
        if settings.has_bus or settings.has_agent:
            self._sender = Sender(settings, self._state, self._samples)
            weakref.finalize(self, self._sender.close, CLOSE_TIMEOUT_S, wait=False).atexit = False
        self._recorder = Recorder(
            self._state,
            self._samples if settings.has_bus else None,
            None if self._sender is None else self._sender.start,
        )
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
            refused=self._recorder.refused,
            buffered=self._samples.unsent,
            reconnects=state.reconnects,
            problem=state.problem,
            spooled=state.spooled,
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
        return Step(self._recorder, tokens, queue_s, loss)

    def report(
        self,
        *,
        duration_s: SupportsFloat,
        tokens: SupportsInt = 0,
        queue_s: SupportsFloat = 0.0,
        data_wait_s: SupportsFloat = 0.0,
        compute_s: SupportsFloat | None = None,
        checkpoint_s: SupportsFloat = 0.0,
        loss: SupportsFloat | None = None,
    ) -> None:
        """One optimizer step was completed just now and was measured by the caller: in place of a `step` block.

        Args:
            duration_s: from the beginning of the step to its end, the wait for its data included.
            tokens: tokens or items this rank trained on.
            queue_s: how long the step's work had waited for a free worker.
            data_wait_s: of the duration, how long the worker waited for input.
            compute_s: of the duration, how long it computed; None for all that was no wait for data.
            checkpoint_s: how long checkpoints were being saved since the step before, outside of the duration.
            loss: the training loss.
        """
        recorder = self._recorder
        if recorder.start is not None:
            recorder.wake_up()
        try:
            saving_s = float(checkpoint_s)
        except Exception as error:
            recorder.refuse(f"checkpoint_s: {error!r}")
        else:
            if saving_s > 0.0:
                recorder.checkpoint_took(saving_s)
        recorder.completed(duration_s, tokens, queue_s, data_wait_s, loss, compute_s, 0.0, time.perf_counter())

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
            self._recorder.waited(time.perf_counter() - began)
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

    def checkpoint(self) -> Checkpointing:
        """A `with` block around saving a checkpoint; its time is told as `checkpoint_s` with the next step.

        It is no part of a step's duration, inside a step's block or outside. Set `uri` in it to tell the checkpoint::

            with pub.checkpoint() as saving:
                saving.uri = checkpoint.write(folder, saving.step, files, round=pub.round)
        """
        return Checkpointing(self._recorder, self.checkpointed)

    def expires(self, after_s: SupportsFloat, name: str = "") -> Expiry:
        """A `with` block around something that is stuck when it has not ended after `after_s` seconds.

        The agent is told, and records where the worker's threads are when the time is over; the block itself is never
        interrupted. What follows is the job's `on_stuck`. Blocks may be nested::

            with pub.expires(60, "all-reduce"):
                all_reduce(gradients)
        """
        if self._recorder.start is not None:
            self._recorder.wake_up()
        try:
            limit_s = float(after_s)
        except Exception as error:
            self._recorder.refuse(f"expires({after_s!r}): {error!r}")
            limit_s = 0.0
        if not limit_s < MAX_STEP_S:  # also what is not a number
            self._recorder.refuse(f"expires({after_s!r}): seconds below {MAX_STEP_S:g} are needed")
            limit_s = 0.0
        return Expiry(self._state, limit_s, str(name)[:MAX_NAME])

    def checkpointed(self, step: int, uri: str | os.PathLike[str]) -> None:
        """Tell that the training state after `step` steps is committed at `uri`."""
        try:
            told = (int(step), os.fspath(uri))
        except Exception as error:
            self._recorder.refuse(f"checkpointed({step!r}, {uri!r}): {error}")
            return
        if told[0] < 0 or not isinstance(told[1], str) or not told[1]:
            self._recorder.refuse(f"checkpointed({step!r}, {uri!r}): a step from 0 and a path are needed")
            return
        self._state.checkpointed = told
        self._recorder.wake_up()
        self._wake()

    def flush(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Wait until all samples are acknowledged and the agent was told everything; False when time was up."""
        sender = self._sender
        return True if sender is None else sender.flush(timeout_s)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send what can be sent within `timeout_s` and end. Safe to call again.

        What is left goes to the node's folder when there is one, and else counts as dropped.
        """
        with self._lock:
            sender, self._sender = self._sender, None
        self._recorder.start = self._recorder.samples = None
        if sender is not None:
            sender.close(timeout_s)
        self._samples.discard()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wake(self) -> None:
        sender = self._sender
        if sender is not None:
            sender.wake()

    def _be_silent(self) -> None:
        """In a forked child: the parent goes on publishing as this rank, so the child does not."""
        self._lock = threading.Lock()
        self._sender = None
        self._recorder.start = self._recorder.samples = None
        self._samples = SampleBuffer(BUFFERED_SAMPLES)
        self._state.stop_at = None
        self._state.expiring = {}
        self._state.spooled = 0


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


def current_publisher() -> Publisher:
    """The hook that this process made and still uses, or else a new one."""
    return next((each for each in list(_publishers) if each.active), None) or publisher()


_publishers: weakref.WeakSet[Publisher] = weakref.WeakSet()


def _silence_in_child() -> None:
    for each in list(_publishers):
        each._be_silent()


os.register_at_fork(after_in_child=_silence_in_child)
