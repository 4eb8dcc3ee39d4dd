"""Step samples: what a worker says about each training step, and what of it is let in.

On the wire a message carries one `SampleBatch` as an array-like MessagePack value (`encode_batch`); the subject says
whose it is. Bad numbers are refused here, at the edge, so that nothing behind it has to ask.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

MAX_BATCH = 512
#: Longest believable step: 30 days.
MAX_STEP_S = 30 * 86_400.0
US_PER_S = 1_000_000


class StepSample(msgspec.Struct, frozen=True, array_like=True):
    """One step of one rank, in the units a trainer measures in.

    Attributes:
        seq: counts this rank's samples in this round from 0; a hole is a lost sample.
        step: the optimizer step, counted over the whole job from 1: how many steps are done at its end.
        duration_s: from the beginning of the step to its end.
        queue_s: of it, how long its work waited for a free worker (more workers help).
        data_wait_s: of it, how long the worker waited for input (more workers do not help).
        tokens: tokens (or items) trained on by this rank in this step.
        nodes: nodes in the world as the rank knows it.
        time_ms: the worker's clock at the end of the step, Unix milliseconds; for people only.
        loss: the training loss, for people only; NaN when not given.
        compute_s: of the duration, how long the worker computed, for people only; NaN when not given.
        checkpoint_s: how long saving checkpoints took since this rank's sample before, for people only; no part of the
            duration.

    New fields come at the end and have a default: what an older writer left out is then read as not given.
    """

    seq: int
    step: int
    duration_s: float
    queue_s: float
    data_wait_s: float
    tokens: int
    nodes: int
    time_ms: int
    loss: float = math.nan
    compute_s: float = math.nan
    checkpoint_s: float = 0.0


class SampleBatch(msgspec.Struct, frozen=True, array_like=True):
    """Samples of one rank of one round, in the order they were taken."""

    version: int
    round: int
    rank: int
    samples: list[StepSample]


class AdmittedSample(msgspec.Struct, frozen=True):
    """A sample whose numbers can be computed with: integers, in range. Durations are microseconds."""

    round: int
    rank: int
    seq: int
    step: int
    duration_us: int
    queue_us: int
    data_wait_us: int
    tokens: int
    nodes: int
    queue_clamped: bool


SAMPLE_VERSION = 1

Refusal = Literal[
    "undecodable",
    "wrong_version",
    "too_many",
    "not_finite",
    "negative",
    "too_long",
    "bad_rank",
    "bad_step",
    "bad_nodes",
]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SampleBatch)


def encode_batch(batch: SampleBatch) -> bytes:
    """The batch as it goes over the bus."""
    return _encoder.encode(batch)


def decode_batch(data: bytes) -> SampleBatch | Refusal:
    """The batch in `data`, or why there is none. Never raises."""
    try:
        batch = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return "undecodable"
    if batch.version != SAMPLE_VERSION:
        return "wrong_version"
    if len(batch.samples) > MAX_BATCH:
        return "too_many"
    return batch


def admit(batch: SampleBatch, sample: StepSample) -> AdmittedSample | Refusal:
    """The sample with its numbers made exact, or the reason it is refused.

    A queue longer than its step is clamped to the step and marked, since a step cannot wait longer than it lasts; the
    same holds for the wait for data.
    """
    for value in (sample.duration_s, sample.queue_s, sample.data_wait_s):
        if not math.isfinite(value):
            return "not_finite"
        if value < 0:
            return "negative"
        if value > MAX_STEP_S * 1000:
            return "too_long"
    if sample.duration_s > MAX_STEP_S:
        return "too_long"
    if batch.rank < 0 or batch.round < 0:
        return "bad_rank"
    if sample.step < 1 or sample.seq < 0:
        return "bad_step"
    if sample.tokens < 0:
        return "negative"
    if sample.nodes < 1:
        return "bad_nodes"
    duration_us = round(sample.duration_s * US_PER_S)
    queue_us = round(sample.queue_s * US_PER_S)
    return AdmittedSample(
        round=batch.round,
        rank=batch.rank,
        seq=sample.seq,
        step=sample.step,
        duration_us=duration_us,
        queue_us=min(queue_us, duration_us),
        data_wait_us=min(round(sample.data_wait_s * US_PER_S), duration_us),
        tokens=sample.tokens,
        nodes=sample.nodes,
        queue_clamped=queue_us > duration_us,
    )
