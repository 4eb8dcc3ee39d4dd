"""The hook for Hugging Face Transformers' `Trainer`::

    pub = elasticgrid.publisher()
    args = TrainingArguments(output_dir=pub.checkpoint_dir or "checkpoints", ...)
    trainer = Trainer(model, args, callbacks=[ElasticGridCallback(pub)], ...)
    trainer.train(resume_from_checkpoint=pub.resume_uri)

Importing this module imports transformers and torch.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch.distributed
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from elasticgrid.publish.framework import Stopwatch, commit
from elasticgrid.publish.publisher import Publisher, publisher

_log = logging.getLogger("elasticgrid.publish")


class ElasticGridCallback(TrainerCallback):  # type: ignore[misc] # the trainer brings its own transformers; it is not typed here
    """Reports every optimizer step, commits every checkpoint that the trainer saves, and stops when the world ends.

    The wait between two steps counts as wait for data, without logging, evaluating and saving; saving is told as
    `checkpoint_s`. A sample has the loss that was logged last. When the world ends the trainer saves and stops.

    Args:
        pub: the hook; None makes one from the environment.
        tokens_per_step: tokens or items of a step on this rank. None: what the trainer counted with
            `include_num_input_tokens_seen`, or the sequences of a step.
    """

    def __init__(self, pub: Publisher | None = None, *, tokens_per_step: int | None = None) -> None:
        self.pub = publisher() if pub is None else pub
        self._tokens_per_step = tokens_per_step
        self._tokens_seen = 0
        self._watch = Stopwatch()
        self._wait_s = 0.0
        self._checkpoint_s = 0.0
        self._loss: float | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Training begins, at the step it resumes from."""
        if state.global_step != self.pub.resume_step:
            _log.warning(
                "the trainer begins after step %d, the job after step %d: call train(resume_from_checkpoint="
                "pub.resume_uri)",
                state.global_step,
                self.pub.resume_step,
            )
        self._tokens_seen = state.num_input_tokens_seen
        self._watch.lap_s()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The batches of a step are there."""
        self._wait_s = self._watch.lap_s()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """An optimizer step is done."""
        checkpoint_s, self._checkpoint_s = self._checkpoint_s, 0.0
        self.pub.report(
            duration_s=self._wait_s + self._watch.lap_s(),
            tokens=self._tokens(args, state),
            data_wait_s=self._wait_s,
            checkpoint_s=checkpoint_s,
            loss=self._loss,
        )
        if self.pub.should_stop():
            control.should_save = True
            control.should_training_stop = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Numbers were logged."""
        self._loss = (logs or {}).get("loss", self._loss)
        self._watch.lap_s()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """An evaluation is over."""
        self._watch.lap_s()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A checkpoint was written by this rank."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.barrier()  # every rank writes files of its own
        if state.is_world_process_zero:
            commit(self.pub, Path(args.output_dir, f"checkpoint-{state.global_step}"))
        self._checkpoint_s += self._watch.lap_s()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Training is over."""
        self.pub.flush()

    def _tokens(self, args: TrainingArguments, state: TrainerState) -> int:
        if self._tokens_per_step is not None:
            return self._tokens_per_step
        seen, self._tokens_seen = state.num_input_tokens_seen - self._tokens_seen, state.num_input_tokens_seen
        if seen > 0:  # counted over all ranks
            return int(seen) // self.pub.world_size
        return int(args.train_batch_size * args.gradient_accumulation_steps)
