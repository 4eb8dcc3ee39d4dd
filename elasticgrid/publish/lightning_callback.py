"""The hook for Lightning's `Trainer`::

    callback = ElasticGridCallback(elasticgrid.publisher(), checkpoint_every=500)
    trainer = lightning.Trainer(callbacks=[callback], ...)
    trainer.fit(model, data, ckpt_path=callback.resume_path)

Importing this module imports lightning and torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from elasticgrid.core.errors import InvalidInput
from elasticgrid.publish import checkpoint
from elasticgrid.publish.framework import Stopwatch, commit
from elasticgrid.publish.publisher import Publisher, publisher

FILE_NAME = "lightning.ckpt"


class ElasticGridCallback(Callback):  # type: ignore[misc] # the trainer brings its own lightning; it is not typed here
    """Reports every batch that ended with an optimizer step, saves checkpoints, and stops when the world ends.

    The wait between two batches counts as wait for data, without validating; where another callback saved meanwhile,
    as `checkpoint_s`. The loss is read where it is on the host.

    Args:
        pub: the hook; None makes one from the environment.
        checkpoint_every: optimizer steps between checkpoints; 0 for the one at the world's end alone.
        tokens_per_step: tokens or items of a step on this rank.

    Raises:
        InvalidInput: a negative number of steps.
    """

    def __init__(self, pub: Publisher | None = None, *, checkpoint_every: int = 0, tokens_per_step: int = 0) -> None:
        if checkpoint_every < 0:
            raise InvalidInput("a checkpoint every so many steps, or 0", where=f"checkpoint_every {checkpoint_every}")
        super().__init__()
        self.pub = publisher() if pub is None else pub
        self._checkpoint_every = checkpoint_every
        self._tokens_per_step = tokens_per_step
        self._watch = Stopwatch()
        self._global_step = 0
        self._wait_s = 0.0
        self._compute_s = 0.0
        self._checkpoint_s = 0.0
        self._saved_meanwhile = False

    @property
    def resume_path(self) -> str | None:
        """For `Trainer.fit(ckpt_path=...)`: the checkpoint to resume from, or None at the beginning."""
        uri = self.pub.resume_uri
        return None if uri is None else str(Path(uri, FILE_NAME))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training begins."""
        self._global_step = trainer.global_step
        self._watch.lap_s()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """A batch is there."""
        lap_s = self._watch.lap_s()
        if self._saved_meanwhile:
            self._checkpoint_s += lap_s
            self._saved_meanwhile = False
        else:
            self._wait_s += lap_s

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A batch was trained on; with accumulated gradients not every one ends with a step."""
        self._compute_s += self._watch.lap_s()
        if trainer.global_step == self._global_step:
            return
        self._global_step = trainer.global_step
        self.pub.report(
            duration_s=self._wait_s + self._compute_s,
            tokens=self._tokens_per_step,
            data_wait_s=self._wait_s,
            checkpoint_s=self._checkpoint_s,
            loss=_loss_on_host(outputs),
        )
        self._wait_s = self._compute_s = self._checkpoint_s = 0.0
        stop = self.pub.should_stop()
        if stop or (self._checkpoint_every and self.pub.steps_completed % self._checkpoint_every == 0):
            self._save(trainer)
        if stop:
            trainer.should_stop = True

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Somebody saves a checkpoint."""
        self._saved_meanwhile = True

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A validation is over."""
        self._watch.lap_s()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training is over."""
        self.pub.flush()

    def _save(self, trainer: Trainer) -> None:
        root = self.pub.checkpoint_dir or Path(trainer.default_root_dir, "checkpoints")
        folder = Path(checkpoint.path_of(root, self.pub.steps_completed, round=self.pub.round))
        trainer.save_checkpoint(folder / FILE_NAME)  # on every rank; it returns when all are done
        if trainer.is_global_zero:
            commit(self.pub, folder)
        self._checkpoint_s += self._watch.lap_s()
        self._saved_meanwhile = False


def _loss_on_host(outputs: Any) -> float | None:
    """The loss, unless reading it would wait for an accelerator."""
    loss: Any = outputs.get("loss") if isinstance(outputs, dict) else outputs
    on_host = isinstance(loss, torch.Tensor) and loss.device.type == "cpu" and loss.numel() == 1
    return float(loss) if on_host else None
