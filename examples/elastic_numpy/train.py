"""Trains a byte-level language model on work that arrives over time, in a world whose size may change.

Rank 0 takes arrived items at each step boundary and tells the others which. Every item is an episode with a wait of its
own, as rollouts and remote environments have, so more workers do serve more items even where they share a processor.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import numpy as np
from arrivals import Schedule, Taken, WorkQueue, started_at
from model import LanguageModel
from text import Text

import elasticgrid
from elasticgrid.publish import checkpoint

DEFAULT_STEPS = 400


def main() -> None:
    options = parse_options()
    signal.signal(signal.SIGTERM, end_now)
    with elasticgrid.publisher() as pub:
        train(options, pub)


def train(options: argparse.Namespace, pub: elasticgrid.Publisher) -> None:
    folder = Path(pub.checkpoint_dir or options.checkpoint_dir)
    rendezvous_dir = os.environ.get("ELASTICGRID_RENDEZVOUS_DIR") or str(folder / "rendezvous")
    model = LanguageModel(pub.rank, pub.world_size, rendezvous_dir, options.learning_rate)
    text = Text(options.window_bytes)
    files = checkpoint.load(pub.resume_uri) if pub.resume_uri else {}
    if files:
        model.restore(files)
    line = Lineage(pub, files)
    queue = None
    if pub.rank == 0:
        passed = json.loads(files["queue.json"]) if files else []
        schedule = Schedule.parse(options.phases)
        began_s = started_at(folder, time.time())
        queue = WorkQueue(schedule, began_s, taken=line.items_taken, limit=options.queue_limit, passed=passed)

    def save() -> None:
        if queue is not None:
            state = {**model.state(), "lineage.json": line.encode(), "queue.json": json.dumps(queue.passed).encode()}
            pub.checkpointed(pub.steps_completed, checkpoint.write(folder, pub.steps_completed, state, round=pub.round))
            checkpoint.prune(folder, keep=4)

    for taken in pub.data(steps(options, pub, model, queue, line)):
        with pub.step(queue_s=taken.queue_s) as step:
            mine = share(taken, pub.rank, pub.world_size)
            for _ in mine:
                time.sleep(options.item_latency_s)
            step.loss = model.update([text.window(item) for item in mine], taken.items)
            step.tokens = len(mine) * options.window_bytes
        line.items_taken = taken.first + taken.items
        if pub.rank == 0 and pub.steps_completed % 20 == 0:
            print(
                f"step {pub.steps_completed}: loss {step.loss:.3f}, {taken.items} items waited {taken.queue_s:.3f} s,"
                f" world of {pub.world_size}",
                flush=True,
            )
        if pub.should_stop():
            break
        if pub.steps_completed % options.checkpoint_every == 0 and pub.steps_completed < options.steps:
            save()
    save()
    part(model, pub)


def steps(
    options: argparse.Namespace,
    pub: elasticgrid.Publisher,
    model: LanguageModel,
    queue: WorkQueue | None,
    line: Lineage,
) -> Iterator[Taken]:
    """What each step trains on, the same on every rank."""
    transport = model.client.transport
    while pub.steps_completed < options.steps and line.items_taken < options.items:
        if queue is None:
            first, items, queue_s = transport.recv(0).view(np.float64)
            yield Taken(int(first), int(items), float(queue_s))
            continue
        taken = queue.take(options.batch_per_rank * pub.world_size, max_wait_s=options.max_wait_s)
        # The transport carries single precision; two of them hold a double, which counts items exactly up to 2^53.
        message = np.array(taken, dtype=np.float64).view(np.float32)
        for rank in range(1, pub.world_size):
            transport.send(rank, message)
        yield taken


def share(taken: Taken, rank: int, world_size: int) -> range:
    """The items of this rank: runs of equal length, the first ranks one longer when it does not come out even."""
    each, left = divmod(taken.items, world_size)
    begin = taken.first + rank * each + min(rank, left)
    return range(begin, begin + each + (rank < left))


class Lineage:
    """Which world took which steps on the line that leads to a checkpoint: no step is in two segments.

    Kept in every checkpoint as `lineage.json`: `segments` of [first step, last step, round], and `items_taken`.
    """

    def __init__(self, pub: elasticgrid.Publisher, files: dict[str, bytes]) -> None:
        self._pub = pub
        self._before: list[list[int]] = []
        self.items_taken = 0
        if files:
            before = json.loads(files["lineage.json"])
            self._before, self.items_taken = before["segments"], before["items_taken"]
        done = self._before[-1][1] if self._before else 0
        if done != pub.resume_step:
            raise SystemExit(f"the checkpoint has {done} steps, the world begins after {pub.resume_step}")

    def encode(self) -> bytes:
        first, last = self._pub.resume_step + 1, self._pub.steps_completed
        mine = [[first, last, self._pub.round]] if last >= first else []
        return json.dumps({"segments": self._before + mine, "items_taken": self.items_taken}).encode()


def part(model: LanguageModel, pub: elasticgrid.Publisher) -> None:
    """Leave together: nobody closes a connection that another rank still reads, or before the state is saved."""
    transport, token = model.client.transport, np.zeros(1, dtype=np.float32)
    if pub.rank == 0:
        for rank in range(1, pub.world_size):
            transport.recv(rank)
        for rank in range(1, pub.world_size):
            transport.send(rank, token)
    else:
        transport.send(0, token)
        transport.recv(0)
    model.client.close()


def end_now(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - what a signal handler is given
    """Leave without a checkpoint: what was asked politely is `should_stop`."""
    raise SystemExit(128 + signum)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, help="optimizer steps of the whole job (default: 400, or as --items says)")
    parser.add_argument("--items", type=int, help="end once so many are taken or dropped (default: no such end)")
    parser.add_argument("--phases", default="1:40", help="arrivals as SECONDS:ITEMS_PER_SECOND,...; the last goes on")
    parser.add_argument("--batch-per-rank", type=int, default=2, help="items a rank takes in one step at most")
    parser.add_argument("--item-latency-s", type=float, default=0.03, help="what an item's episode takes by the clock")
    parser.add_argument("--max-wait-s", type=float, default=2.0, help="train on a part of a batch after this long")
    parser.add_argument("--queue-limit", type=int, help="so many items may wait; older ones are dropped")
    parser.add_argument("--window-bytes", type=int, default=64, help="text of one item")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--checkpoint-every", type=int, default=25, help="steps between checkpoints")
    parser.add_argument("--checkpoint-dir", default="checkpoints", help="used outside the grid only")
    options = parser.parse_args()
    if options.steps is None:
        options.steps = DEFAULT_STEPS if options.items is None else sys.maxsize
    if options.items is None:
        options.items = sys.maxsize
    return options


if __name__ == "__main__":
    main()
