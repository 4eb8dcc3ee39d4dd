"""The hook for trainers in other languages: `python -m elasticgrid.publish.stdin` reads JSON lines.

The trainer starts it as a child, with the environment it was itself started with, and writes a line per event::

    {"type": "step", "duration_s": 1.03, "tokens": 16384}
    {"type": "checkpointed", "step": 120, "uri": "/shared/checkpoints/120"}
    {"type": "should_stop"}

A step may also have `queue_s`, `data_wait_s`, `compute_s`, `checkpoint_s` and `loss`. `should_stop`, and nothing else,
is answered with a line on the standard output: `{"should_stop": false, "steps_completed": 120}`. At the end of its
input it sends what is left, for a bounded time, and ends with status 0. A line that is none of these is counted, the
first one is told on the standard error, and changes nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import BinaryIO

import msgspec

from elasticgrid.publish.publisher import Publisher, publisher

MAX_LINE_BYTES = 64 * 1024


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the input."""


class StepLine(_Line, frozen=True, kw_only=True, tag="step"):
    """A step was completed; the fields are those of `Publisher.report`."""

    duration_s: float
    tokens: int = 0
    queue_s: float = 0.0
    data_wait_s: float = 0.0
    compute_s: float | None = None
    checkpoint_s: float = 0.0
    loss: float | None = None


class CheckpointedLine(_Line, frozen=True, kw_only=True, tag="checkpointed"):
    """The training state after `step` steps is committed at `uri`."""

    step: int
    uri: str


class ShouldStopLine(_Line, frozen=True, kw_only=True, tag="should_stop"):
    """Does the world end here?"""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `ShouldStopLine`."""

    should_stop: bool
    steps_completed: int


_decoder = msgspec.json.Decoder(StepLine | CheckpointedLine | ShouldStopLine)
_encoder = msgspec.json.Encoder()


def serve(lines: BinaryIO, answers: BinaryIO, pub: Publisher) -> int:
    """Do what the lines say until they end; returns how many were not understood."""
    bad = 0
    for line in _lines(lines):
        try:
            message = _decoder.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            bad += 1
            if bad == 1:
                print(
                    f"elasticgrid: a line is ignored (said once): {error}: {line[:80]!r}", file=sys.stderr, flush=True
                )
            continue
        if isinstance(message, StepLine):
            pub.report(
                duration_s=message.duration_s,
                tokens=message.tokens,
                queue_s=message.queue_s,
                data_wait_s=message.data_wait_s,
                compute_s=message.compute_s,
                checkpoint_s=message.checkpoint_s,
                loss=message.loss,
            )
        elif isinstance(message, CheckpointedLine):
            pub.checkpointed(message.step, message.uri)
        else:
            answer = Answer(should_stop=pub.should_stop(), steps_completed=pub.steps_completed)
            answers.write(_encoder.encode(answer) + b"\n")
            answers.flush()
    return bad


def _lines(source: BinaryIO) -> Iterator[bytes]:
    """Lines that are not empty; of one that is too long, its beginning alone, which is no message."""
    while line := source.readline(MAX_LINE_BYTES):
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = source.readline(MAX_LINE_BYTES)
        if line.strip():
            yield line


def main() -> None:
    """Serve the standard input."""
    signal.signal(signal.SIGTERM, _end)
    with publisher(os.environ) as pub:
        try:
            bad = serve(sys.stdin.buffer, sys.stdout.buffer, pub)
        except BrokenPipeError:  # nobody reads the answers any more: the trainer is gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            bad = 0
    stats = pub.stats
    print(
        f"elasticgrid: {pub.steps_completed - pub.resume_step} steps, {stats.published} samples published,"
        f" {stats.spooled} spooled, {stats.dropped} dropped, {stats.refused + bad} lines refused",
        file=sys.stderr,
    )


def _end(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - what a signal handler is given
    """The input ends here; what was read is still sent."""
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    main()
