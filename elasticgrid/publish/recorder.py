"""What a training step costs the training thread: two readings of a clock, a few checks, one tuple appended."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import SupportsFloat, SupportsInt

from elasticgrid.core.samples import MAX_STEP_S
from elasticgrid.publish.buffer import SampleBuffer
from elasticgrid.publish.state import TrainerState

_log = logging.getLogger("elasticgrid.publish")
_now = time.perf_counter

#: More than any step trains on, and still a whole number on every wire.
MAX_TOKENS = 2**62


class Recorder:
    """Turns finished steps into samples, for one training thread. Takes no lock and waits for nothing.

    Attributes:
        start: called at the first use, then None.
        samples: where samples go; None when they go nowhere.
        refused: steps whose numbers could not be used, and calls with unusable arguments.
        open_step: the step whose block is open.
        waited_before_s, waited_within_s: for data, since the last step and within the open one.
        checkpoint_s, checkpoint_within_s: saving checkpoints since the last sample; of it, within the open step.
    """

    __slots__ = (
        "checkpoint_s",
        "checkpoint_within_s",
        "open_step",
        "refused",
        "samples",
        "start",
        "state",
        "waited_before_s",
        "waited_within_s",
    )

    def __init__(self, state: TrainerState, samples: SampleBuffer | None, start: Callable[[], None] | None) -> None:
        self.state = state
        self.samples = samples
        self.start = start
        self.refused = 0
        self.open_step: Step | None = None
        self.waited_before_s = 0.0
        self.waited_within_s = 0.0
        self.checkpoint_s = 0.0
        self.checkpoint_within_s = 0.0

    def wake_up(self) -> None:
        """Call `start`, the first time."""
        start, self.start = self.start, None
        if start is not None:
            start()

    def waited(self, seconds: float) -> None:
        """So long was waited for data."""
        if self.open_step is None:
            self.waited_before_s += seconds
        else:
            self.waited_within_s += seconds

    def checkpoint_took(self, seconds: float) -> None:
        """So long a checkpoint was being saved."""
        self.checkpoint_s += seconds
        if self.open_step is not None:
            self.checkpoint_within_s += seconds

    def completed(
        self,
        duration_s: SupportsFloat,
        tokens: SupportsInt,
        queue_s: SupportsFloat,
        data_wait_s: SupportsFloat,
        loss: SupportsFloat | None,
        compute_s: SupportsFloat | None,
        waited_s: float,
        ended_s: float,
    ) -> None:
        """A step is done: count it, and sample it if its numbers can be used.

        Args:
            duration_s, tokens, queue_s, data_wait_s, loss, compute_s: as the trainer gave them.
            waited_s: what was measured of waits for data besides.
            ended_s: by `time.perf_counter`.
        """
        state = self.state
        state.steps_completed = done = state.steps_completed + 1
        checkpoint_s = self.checkpoint_s
        if checkpoint_s:
            self.checkpoint_s = 0.0
        try:
            duration_s, tokens = float(duration_s), int(tokens)
            queue_s, data_wait_s = float(queue_s), float(data_wait_s) + waited_s
            loss = math.nan if loss is None else float(loss)
            compute_s = duration_s - data_wait_s if compute_s is None else float(compute_s)
        except Exception as error:
            self.refuse(f"step {done}: {error!r}")
            return
        if not (
            0.0 <= duration_s <= MAX_STEP_S
            and 0.0 <= queue_s <= MAX_STEP_S
            and 0.0 <= data_wait_s <= MAX_STEP_S
            and -MAX_STEP_S <= compute_s <= MAX_STEP_S
            and 0 <= tokens <= MAX_TOKENS
        ):
            self.refuse(
                f"step {done}: one of these is out of range: duration_s {duration_s}, queue_s {queue_s},"
                f" data_wait_s {data_wait_s}, compute_s {compute_s}, tokens {tokens}"
            )
            return
        samples = self.samples
        if samples is not None:
            if compute_s < 0.0:  # a wait that was given may be longer than the block was
                compute_s = 0.0
            samples.add(done, duration_s, queue_s, data_wait_s, tokens, ended_s, loss, compute_s, checkpoint_s)

    def refuse(self, problem: str) -> None:
        """Count what cannot be used, and say the first of it."""
        self.refused += 1
        self.state.problem = problem
        if self.refused == 1:
            _log.warning("the elasticgrid hook refuses what it was given (said once): %s", problem)


class Step:
    """One training step: a `with` block. Its attributes may be set until the block ends.

    Attributes:
        tokens: tokens or items this rank trained on.
        queue_s: how long the step's work had waited for a free worker, in seconds.
        data_wait_s: waits for input within the block that `Publisher.data` did not measure, in seconds.
        compute_s: how long the worker computed, in seconds; None for all of the step that was no wait for data and no
            checkpoint.
        loss: the training loss, when it is known. A loss on an accelerator is read when the block ends, which waits for
            the accelerator: give it when it is on the host, or every so many steps.
    """

    __slots__ = ("_began_s", "_recorder", "compute_s", "data_wait_s", "loss", "queue_s", "tokens")

    def __init__(
        self, recorder: Recorder, tokens: SupportsInt, queue_s: SupportsFloat, loss: SupportsFloat | None
    ) -> None:
        self.tokens = tokens
        self.queue_s = queue_s
        self.data_wait_s: SupportsFloat = 0.0
        self.compute_s: SupportsFloat | None = None
        self.loss = loss
        self._recorder = recorder
        self._began_s: float | None = None

    def __enter__(self) -> Step:
        recorder = self._recorder
        if recorder.start is not None:
            recorder.wake_up()
        recorder.open_step = self
        self._began_s = _now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended_s, began_s = _now(), self._began_s
        if began_s is None:
            return
        self._began_s = None
        recorder = self._recorder
        if recorder.open_step is self:
            recorder.open_step = None
        duration_s, waited_s = ended_s - began_s, 0.0
        before_s, within_s, saving_s = recorder.waited_before_s, recorder.waited_within_s, recorder.checkpoint_within_s
        if before_s or within_s or saving_s:
            recorder.waited_before_s = recorder.waited_within_s = recorder.checkpoint_within_s = 0.0
            duration_s = max(0.0, duration_s + before_s - saving_s)
            waited_s = before_s + within_s
        if kind is None:
            recorder.completed(
                duration_s, self.tokens, self.queue_s, self.data_wait_s, self.loss, self.compute_s, waited_s, ended_s
            )


class Checkpointing:
    """Saving a checkpoint: a `with` block whose time is counted as `checkpoint_s` and not as the step's.

    Attributes:
        step: optimizer steps in the checkpoint; set to those completed when the block began.
        uri: set it to where the checkpoint is committed, and the block's end tells it as `Publisher.checkpointed` does.
    """

    __slots__ = ("_began_s", "_publish", "_recorder", "step", "uri")

    def __init__(self, recorder: Recorder, publish: Callable[[int, str], None]) -> None:
        self._recorder = recorder
        self._publish = publish
        self._began_s = 0.0
        self.step = recorder.state.steps_completed
        self.uri: str | None = None

    def __enter__(self) -> Checkpointing:
        self._began_s = _now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recorder.checkpoint_took(_now() - self._began_s)
        if kind is None and self.uri is not None:
            self._publish(self.step, self.uri)
