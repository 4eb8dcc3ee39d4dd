"""Real training through everything that happens to it: the model is the one that an undisturbed run would have made."""

from __future__ import annotations

import io
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

import iroh_tinker
import numpy as np
import pytest
from counted_trainer import GLOBAL_BATCH, LEARNING_RATE, WINDOW_BYTES, cursor
from grid_under_test import Finished, GridUnderTest, bus_cut_s, grid_under_test, job_spec
from model import LanguageModel
from numpy.typing import NDArray
from text import Text

from elasticgrid.core import events as ev
from elasticgrid.publish import checkpoint

TOP: Final = Path(__file__).parents[2]
EXAMPLE: Final = TOP / "examples" / "elastic_numpy"
#: Enough for all that happens: ten in each second that the bus is away, and as many in all the rest.
STEPS: Final = 500 + round(10 * bus_cut_s())
#: Of the final loss. The model computes in single precision, whose unit is 1.2e-7.
LOSS_TOLERANCE: Final = 1e-6
#: Of each tensor, as the norm of the difference over the norm.
PARAMETER_TOLERANCE: Final = 5e-6


@pytest.mark.server
@pytest.mark.process
@pytest.mark.survive("M", "Q", "R", "resize", "notice", "kill-worker", "kill-node", "bus-cut")
async def test_a_model_trained_through_resizes_kills_a_notice_and_a_lost_bus_is_the_undisturbed_one(
    tmp_path: Path,
) -> None:
    records = tmp_path / "records"
    command = [sys.executable, str(Path(__file__).with_name("counted_trainer.py"))]
    command += ["--steps", str(STEPS), "--records", str(records)]
    async with grid_under_test(tmp_path) as test:
        path = os.pathsep.join(filter(None, (str(EXAMPLE), os.environ.get("PYTHONPATH"))))
        spec = job_spec("proof", command, EXAMPLE, nodes=2, env={"PYTHONPATH": path})
        job = await test.submit(spec)
        await live_through(test, job, records)
        done = await test.finish(job)
    assert (done.outcome.outcome, done.outcome.last_step) == ("completed", STEPS)

    steps, samples = trained_on(records, done)
    assert steps == dict.fromkeys(range(1, STEPS + 1), 1)
    assert samples == dict.fromkeys(range(STEPS * GLOBAL_BATCH), 1)
    # A rank that is killed takes the reports of its last moment with it; no step is ever reported twice.
    assert set(done.line.reported.values()) == {1}
    assert len(done.line.reported) > STEPS - 20
    assert done.summary.duplicate_steps == 0
    assert done.state.checkpoint is not None
    files = checkpoint.load(done.state.checkpoint.uri)
    assert json.loads(files["cursor.json"])["position"] == STEPS * GLOBAL_BATCH
    require_the_same_model(trained(tmp_path / "elastic", files), trained(tmp_path / "alone"))


async def live_through(test: GridUnderTest, job: str, records: Path) -> None:
    """2 -> 4 -> 3 -> 1 -> 2 nodes, with every kind of disturbance on the way."""
    await test.world(job, 2)
    await test.resize(job, 4)
    world = await test.world(job, 4)

    test.kill_worker(job, world.members[2].node)
    world = await test.world(job, 4, after_round=world.round)

    await test.resize(job, 3)
    world = await test.world(job, 3, after_round=world.round)
    noticed = world.members[1].node
    test.notice(job, noticed)
    world = await test.world(job, 3, after_round=world.round)
    assert noticed not in {member.node for member in world.members}

    begun = last_step(records, world.round)
    await test.cut_bus(bus_cut_s())
    # Who trains does not notice; of a step that takes a tenth of a second there were many.
    assert last_step(records, world.round) - begun > 3 * bus_cut_s()

    await test.resize(job, 1)
    world = await test.world(job, 1, after_round=world.round)
    await test.resize(job, 2)
    world = await test.world(job, 2, after_round=world.round)
    await test.event(job, lambda event: isinstance(event.data, ev.NodeCheckpointed) and event.data.round == world.round)
    first = world.members[0].node
    test.kill_node(job, first)
    world = await test.world(job, 2, after_round=world.round)
    assert first not in {member.node for member in world.members}
    (records / "hurry").touch()


def rows(path: Path) -> list[tuple[int, list[int]]]:
    """Step and samples; a line that was cut by a kill counts for nothing."""
    whole = [line for line in path.read_text().split("\n")[:-1] if line]
    return [(row["step"], row["items"]) for row in map(json.loads, whole)]


def last_step(records: Path, round_number: int) -> int:
    return max((step for step, _ in rows(records / f"{round_number}-0.jsonl")), default=0)


def trained_on(records: Path, done: Finished) -> tuple[Counter[int], Counter[int]]:
    """How often each step, counted at rank 0, and each sample is in the committed line."""
    steps: Counter[int] = Counter()
    samples: Counter[int] = Counter()
    for path in records.glob("*.jsonl"):
        round_number, rank = map(int, path.stem.split("-"))
        for step, items in rows(path):
            if done.line.holds(round_number, step):
                samples.update(items)
                steps.update([step] if rank == 0 else [])
    return steps, samples


class Trained(NamedTuple):
    """A model at the end: its mean loss over the first windows of the text, and its parameters."""

    loss: float
    parameters: dict[str, NDArray[np.float64]]


def trained(folder: Path, files: dict[str, bytes] | None = None) -> Trained:
    """The model in the files of a checkpoint; without any, one that was trained by one process without a break."""
    model = LanguageModel(0, 1, str(folder), LEARNING_RATE)
    text = Text(WINDOW_BYTES)
    if files is not None:
        model.restore(files)
    else:
        for items in cursor(STEPS, 0, 1):
            model.update([text.window(item) for item in items], GLOBAL_BATCH)
    with np.load(io.BytesIO(model.state()["model.npz"])) as loaded:
        parameters = {name: loaded[name].astype(np.float64) for name in loaded}
    data = [iroh_tinker.Datum(input_ids=given, target_ids=target) for given, target in map(text.window, range(200))]
    loss = float(model.client.forward_backward(data).loss)
    model.client.close()
    return Trained(loss, parameters)


def require_the_same_model(ours: Trained, theirs: Trained) -> None:
    """They differ by the order in which single precision sums up what the ranks computed, and by nothing else."""
    assert ours.loss == pytest.approx(theirs.loss, rel=LOSS_TOLERANCE)
    assert ours.parameters.keys() == theirs.parameters.keys()
    for name, expected in theirs.parameters.items():
        distance = np.linalg.norm(ours.parameters[name] - expected) / np.linalg.norm(expected)
        assert distance < PARAMETER_TOLERANCE, name
