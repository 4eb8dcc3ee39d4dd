"""The hook for Hugging Face Accelerate, as a tracker::

    accelerator = Accelerator(log_with=ElasticGridTracker(pub))
    accelerator.init_trackers("training")
    for step, batch in enumerate(loader, start=pub.resume_step + 1):
        ...
        accelerator.log({"loss": loss.item(), "tokens": tokens}, step=step)
        if pub.should_stop():
            break

A tracker is told numbers and stops nothing: ask `pub.should_stop()` and tell `pub.checkpointed(...)` in the loop.
Importing this module imports accelerate and torch.
"""

from __future__ import annotations

from typing import Any

from accelerate.tracking import GeneralTracker

from elasticgrid.core.errors import InvalidInput
from elasticgrid.publish.framework import Stopwatch
from elasticgrid.publish.publisher import Publisher, publisher


class ElasticGridTracker(GeneralTracker):  # type: ignore[misc] # the trainer brings its own accelerate; it is not typed here
    """Reports steps from the calls of `accelerator.log`, on every rank.

    The time between two calls for different steps is the duration of the steps between them. Of the values `loss`,
    `tokens`, `queue_s`, `data_wait_s`, `compute_s` and `checkpoint_s` are taken, for one step each; others are ignored,
    and so are more calls for the same step.

    Args:
        pub: the hook; None makes one from the environment.
        steps_per_log: optimizer steps between two calls.

    Raises:
        InvalidInput: `steps_per_log` is below 1.
    """

    name = "elasticgrid"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, pub: Publisher | None = None, *, steps_per_log: int = 1) -> None:
        if steps_per_log < 1:
            raise InvalidInput("between two logs there is at least one step", where=f"steps_per_log {steps_per_log}")
        super().__init__()
        self.pub = publisher() if pub is None else pub
        self._steps_per_log = steps_per_log
        self._watch = Stopwatch()
        self._step: int | None = None

    @property
    def tracker(self) -> Publisher:
        """The hook."""
        return self.pub

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Training is about to begin."""
        self._watch.lap_s()

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Steps were completed, with these values."""
        if step is not None and step == self._step:
            return
        self._step = step
        checkpoint_s = values.get("checkpoint_s", 0.0)
        lap_s = self._watch.lap_s()
        for _ in range(self._steps_per_log):
            self.pub.report(
                duration_s=max(0.0, lap_s / self._steps_per_log - _seconds(checkpoint_s)),
                tokens=values.get("tokens", 0),
                queue_s=values.get("queue_s", 0.0),
                data_wait_s=values.get("data_wait_s", 0.0),
                compute_s=values.get("compute_s"),
                checkpoint_s=checkpoint_s,
                loss=values.get("loss"),
            )

    def finish(self) -> None:
        """Training is over."""
        self.pub.flush()


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
