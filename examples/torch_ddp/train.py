"""Trains a small transformer with DistributedDataParallel in a world whose size may change at any step.

The global batch is the same in every world, and so is the order of the samples: the loss at a step does not depend on
how many workers took it.
"""

from __future__ import annotations

import argparse
import io
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from journal import Journal
from model import Transformer
from text import Text
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import elasticgrid
from elasticgrid.publish import ElasticSampler, checkpoint


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)
    with elasticgrid.publisher() as pub:
        if "RANK" in os.environ:  # set by the grid's agent, or by torchrun
            # A peer that dies is noticed at once. The time is for one that is there and does not answer.
            dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        else:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        train(options, pub)
        dist.barrier()  # nobody leaves while another still needs it
        dist.destroy_process_group()


def train(options: argparse.Namespace, pub: elasticgrid.Publisher) -> None:
    share, left = divmod(options.global_batch, pub.world_size)
    if left:
        raise SystemExit(f"a global batch of {options.global_batch} cannot be shared among {pub.world_size} workers")
    text = Text(options.window_bytes, samples=options.epoch_steps * options.global_batch)
    sampler = ElasticSampler(len(text), rank=pub.rank, world_size=pub.world_size, seed=1)
    loader = DataLoader(text, sampler=sampler, batch_size=share)

    torch.manual_seed(1)
    model = DistributedDataParallel(Transformer(options.window_bytes), broadcast_buffers=False)  # they never change
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    if pub.resume_uri:
        state = torch.load(io.BytesIO(checkpoint.load(pub.resume_uri)["state.pt"]), weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        sampler.load_state_dict(state["sampler"])
    journal = Journal(options.journal, pub)

    def save() -> None:
        if pub.rank == 0:
            file = io.BytesIO()
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "sampler": sampler.state_dict()}, file)
            folder = Path(pub.checkpoint_dir or options.checkpoint_dir)
            with pub.checkpoint() as saving:
                saving.uri = checkpoint.write(folder, saving.step, {"state.pt": file.getvalue()}, round=pub.round)
            checkpoint.prune(folder, keep=4)

    while sampler.epoch < options.epochs:
        for samples, windows in pub.data(loader):
            with pub.step(tokens=len(windows) * options.window_bytes) as step:
                optimizer.zero_grad()
                loss = model(windows)
                journal.write(pub.steps_completed + 1, loss.item(), samples)
                loss.backward()
                optimizer.step()
                step.loss = loss.item()
            sampler.advance(options.global_batch)
            if pub.rank == 0 and pub.steps_completed % 100 == 0:
                print(f"step {pub.steps_completed}: loss {loss.item():.3f}, world of {pub.world_size}", flush=True)
            if pub.should_stop():
                return save()
            if pub.steps_completed % options.checkpoint_every == 0:
                save()
    return save()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--epoch-steps", type=int, default=2_000, help="steps of an epoch: how much text is read")
    parser.add_argument("--global-batch", type=int, default=12, help="samples of a step, on all workers together")
    parser.add_argument("--window-bytes", type=int, default=64, help="text of one sample")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--checkpoint-every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--checkpoint-dir", default="checkpoints", help="used outside the grid only")
    parser.add_argument("--journal", default="", help="folder for a record of every step and its samples")
    return parser.parse_args()


if __name__ == "__main__":
    main()
