"""iroh-tinker's numpy model on one epoch of real text, in a world that may change: what it trains on is written down.

Every step has the same global batch, which every size of the world divides. Each rank writes which samples it took in
which step, so that a test can say of each sample how often it was trained on. It trains at a walk until a file tells
it to run: the rest of the epoch is only there to be long enough.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from types import FrameType

import numpy as np
from model import LanguageModel
from text import Text

import elasticgrid
from elasticgrid.publish import checkpoint
from elasticgrid.publish.sampler import CyclingIterator, ElasticSampler

GLOBAL_BATCH = 12
WINDOW_BYTES = 32
LEARNING_RATE = 1e-3
SEED = 7


def cursor(steps: int, rank: int, world_size: int) -> CyclingIterator:
    """This rank's share of one epoch, as one global batch after another."""
    sampler = ElasticSampler(steps * GLOBAL_BATCH, rank=rank, world_size=world_size, seed=SEED)
    return CyclingIterator(sampler, global_batch=GLOBAL_BATCH, epochs=1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--walk-s", type=float, default=0.1)
    parser.add_argument("--records", type=Path, required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, end_now)
    with elasticgrid.publisher() as pub:
        train(options, pub)


def train(options: argparse.Namespace, pub: elasticgrid.Publisher) -> None:
    folder = Path(pub.checkpoint_dir or "checkpoints")
    rendezvous_dir = os.environ["ELASTICGRID_RENDEZVOUS_DIR"]
    model = LanguageModel(pub.rank, pub.world_size, rendezvous_dir, LEARNING_RATE)
    text = Text(WINDOW_BYTES)
    shares = cursor(options.steps, pub.rank, pub.world_size)
    if pub.resume_uri:
        files = checkpoint.load(pub.resume_uri)
        model.restore(files)
        shares.load_state_dict(json.loads(files["cursor.json"]))

    def save() -> None:
        if pub.rank == 0:
            state = {**model.state(), "cursor.json": json.dumps(shares.state_dict()).encode()}
            pub.checkpointed(pub.steps_completed, checkpoint.write(folder, pub.steps_completed, state, round=pub.round))

    options.records.mkdir(parents=True, exist_ok=True)
    hurry = options.records / "hurry"
    saved = -1
    with (options.records / f"{pub.round}-{pub.rank}.jsonl").open("a", buffering=1) as record:
        for items in pub.data(shares):
            with pub.step() as step:
                step.loss = model.update([text.window(item) for item in items], GLOBAL_BATCH)
                step.tokens = len(items) * WINDOW_BYTES
                if not hurry.exists():
                    time.sleep(options.walk_s)
            record.write(json.dumps({"step": pub.steps_completed, "items": items}) + "\n")
            if pub.should_stop():
                break
            if pub.steps_completed % options.every == 0:
                save()
                saved = pub.steps_completed
    if saved != pub.steps_completed:
        save()
    part(model, pub)


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


def end_now(signum: int, frame: FrameType | None) -> None:
    """Leave without a checkpoint: what was asked politely is `should_stop`."""
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    main()
