"""A transformer trained with DistributedDataParallel through everything that happens to a job, step by step the one
that an undisturbed run would have trained."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from grid_under_test import Finished, GridUnderTest, bus_cut_s, grid_under_test, job_spec
from torch_journals import journalled, last_step

from elasticgrid.core import events as ev
from elasticgrid.publish import checkpoint

torch = pytest.importorskip(
    "torch", reason="torch is not installed: pip install torch==2.13.0, or the extra `torch` of this project"
)

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "torch_ddp"
TRAINER: Final = Path(__file__).with_name("walking_torch_trainer.py")
BUS_CUT_S: Final = bus_cut_s(60.0)
#: Five steps in a second while the bus is away, and enough for all the rest.
STEPS: Final = 400 + round(5 * BUS_CUT_S)
GLOBAL_BATCH: Final = 12
#: Of the difference between two sums of the same numbers in another order, carried through all steps.
TOLERANCE: Final = 1e-6
#: A new world imports torch in every worker, which is slow where many share a processor.
WORLD_S: Final = 180.0


@pytest.mark.torch
@pytest.mark.timeout(1_800)
@pytest.mark.server
@pytest.mark.process
@pytest.mark.survive("Q", "R", "resize", "notice", "kill-worker", "kill-node", "bus-cut")
async def test_a_model_trained_in_torch_through_resizes_kills_a_notice_and_a_lost_bus_is_the_undisturbed_one(
    tmp_path: Path,
) -> None:
    journal, hurry = tmp_path / "journal", tmp_path / "hurry"
    options = ["--epoch-steps", str(STEPS), "--checkpoint-every", "20", "--journal", str(journal)]
    command = [sys.executable, str(TRAINER), str(hurry), str(EXAMPLE / "train.py"), *options]
    async with grid_under_test(tmp_path) as test:
        job = await test.submit(job_spec("ddp", command, EXAMPLE, nodes=2, env={"GLOO_SOCKET_IFNAME": "lo"}))
        await live_through(test, job, journal)
        hurry.touch()
        done = await test.finish(job, timeout_s=WORLD_S)
    assert (done.outcome.outcome, done.outcome.last_step) == ("completed", STEPS)

    # What a killed worker had not sent yet is gone; the journal has all of it.
    assert set(done.line.reported.values()) == {1}
    assert done.summary.duplicate_steps == 0
    line = journalled(journal, done.line.holds)
    assert sorted(line) == list(range(1, STEPS + 1))
    samples = [sample for step in line.values() for sample in step.samples]
    assert sorted(samples) == list(range(STEPS * GLOBAL_BATCH))

    alone = undisturbed(tmp_path / "alone")
    steps = journalled(tmp_path / "alone", lambda round_number, step: True)
    assert [line[step].samples for step in sorted(line)] == [steps[step].samples for step in sorted(steps)]
    apart = {step: abs(line[step].loss / steps[step].loss - 1) for step in steps}
    assert max(apart.values()) < TOLERANCE, max((value, step) for step, value in apart.items())
    require_the_same_model(last_model(done), alone)


async def live_through(test: GridUnderTest, job: str, journal: Path) -> None:
    """2 -> 4 -> 3 -> 1 -> 2 nodes, with every kind of disturbance on the way."""
    world = await test.world(job, 2, timeout_s=WORLD_S)
    await test.resize(job, 4)
    world = await test.world(job, 4, after_round=world.round, timeout_s=WORLD_S)

    test.kill_worker(job, world.members[2].node)
    world = await test.world(job, 4, after_round=world.round, timeout_s=WORLD_S)

    await test.resize(job, 3)
    world = await test.world(job, 3, after_round=world.round, timeout_s=WORLD_S)
    noticed = world.members[1].node
    test.notice(job, noticed)
    world = await test.world(job, 3, after_round=world.round, timeout_s=WORLD_S)
    assert noticed not in {member.node for member in world.members}

    before = last_step(journal, world.round)
    await test.cut_bus(BUS_CUT_S)
    # Who trains does not notice: it went on, in the same round.
    assert last_step(journal, world.round) - before > BUS_CUT_S / 6

    await test.resize(job, 1)
    world = await test.world(job, 1, after_round=world.round, timeout_s=WORLD_S)
    await test.resize(job, 2)
    world = await test.world(job, 2, after_round=world.round, timeout_s=WORLD_S)

    def is_saved(event: ev.Event) -> bool:
        return isinstance(event.data, ev.NodeCheckpointed) and event.data.round == world.round

    await test.event(job, is_saved, timeout_s=WORLD_S)
    first = world.members[0].node
    test.kill_node(job, first)
    world = await test.world(job, 2, after_round=world.round, timeout_s=WORLD_S)
    assert first not in {member.node for member in world.members}


def undisturbed(folder: Path) -> dict[str, Any]:
    """The model of one process that trains from the first step to the last, with no grid."""
    command = [sys.executable, str(EXAMPLE / "train.py"), "--epoch-steps", str(STEPS), "--checkpoint-every", str(STEPS)]
    command += ["--journal", str(folder), "--checkpoint-dir", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stderr
    return model_at(checkpoint.latest(folder))


def last_model(done: Finished) -> dict[str, Any]:
    assert done.state.checkpoint is not None
    assert done.state.checkpoint.step == STEPS
    return model_at(done.state.checkpoint.uri)


def model_at(uri: str | None) -> dict[str, Any]:
    assert uri is not None
    state: dict[str, Any] = torch.load(io.BytesIO(checkpoint.load(uri)["state.pt"]), weights_only=True)["model"]
    return state


def require_the_same_model(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.linalg.vector_norm(ours[name] - tensor) <= TOLERANCE * torch.linalg.vector_norm(tensor), name
