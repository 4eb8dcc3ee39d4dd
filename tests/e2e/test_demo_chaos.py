"""`elasticgrid demo --chaos`: every part of a grid is killed while a real job trains, and the job does not mind."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox import Sandbox, eventually

pytestmark = [pytest.mark.server, pytest.mark.process, pytest.mark.demo]

#: Two of its eight kills meet the bus and two the gateway.
SEED = 5


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path) as sandbox:
        yield sandbox


@pytest.mark.survive("chaos", "kill-worker", "kill-node", "kill-decider", "kill-launcher", "kill-gateway", "bus-cut")
def test_a_job_is_completed_although_every_part_of_its_grid_is_killed(box: Sandbox) -> None:
    answer = box.run("demo", "--chaos", SEED, "--json", timeout_s=400)
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout)
    assert (result["seed"], result["orphans"], result["duplicate_steps"], result["diverged"]) == (SEED, 0, 0, 0)
    assert result["verified"] == result["decisions"] > 0
    assert result["failures"] == []
    assert {kill["what"] for kill in result["kills"]} == {"decider", "launcher", "gateway", "bus", "agent", "worker"}
    pids = [kill["pid"] for kill in result["kills"]]
    # What was killed came back as another process, or it would have been killed twice.
    assert len(set(pids)) == len(pids)
    for kill in result["kills"]:
        assert f"killed the {kill['what']}, process {kill['pid']}" in answer.stderr
    assert box.running() == set()
    assert box.run("replay", "verify", result["archive"]).returncode == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_under_chaos_that_is_ended_leaves_nothing(box: Sandbox, number: signal.Signals, code: int) -> None:
    demo = box.start(box.command("demo", "--chaos", SEED, "--json"))
    eventually(lambda: box.commanded("python train.py"), 60, "workers run")
    demo.send_signal(number)
    assert demo.wait(timeout=60) == code
    assert box.running() == set()


@pytest.mark.survive("C")
def test_of_a_run_under_chaos_that_is_killed_itself_everything_ends(box: Sandbox) -> None:
    demo = box.start(box.command("demo", "--chaos", SEED, "--json"))
    eventually(lambda: box.commanded("python train.py"), 60, "workers run")
    demo.kill()
    demo.wait()
    # Services end with their supervisor; agents when their bus has been away for half a minute.
    eventually(lambda: not box.commanded(r"\S*nats-server "), 10, "the bus is gone")
    box.gone_within(90)


def test_a_seed_that_is_none_is_refused(box: Sandbox) -> None:
    answer = box.run("demo", "--chaos", "-1")
    assert answer.returncode == 2
    assert box.running() == set()
