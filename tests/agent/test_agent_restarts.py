"""Workers of a grid's job are told how many restarts it has and how many rounds failed, as torchrun tells its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from agent_grid import Grid

from elasticgrid import environment
from elasticgrid.agent.config import AgentConfig
from elasticgrid.core.errors import InvalidInput
from elasticgrid.core.events import NodeDrained, NodeFailed, NodeFinished, OutcomeDecided

A = "a-0"
NAMES = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
#: Says what it was told, and fails in its first round; in the third it is done.
TELLS = f"""
import os, sys, time
print(*(os.environ[name] for name in {NAMES!r}), flush=True)
if os.environ["ELASTICGRID_ROUND"] == "2":
    time.sleep(600)
sys.exit(os.environ["ELASTICGRID_ROUND"] == "1")
"""


def told(grid: Grid, number: int) -> str:
    return (grid.shared.parent / "a" / f"round-{number}" / "rank-0.log").read_text()


@pytest.mark.server
@pytest.mark.process
async def test_only_a_round_that_failed_counts_as_a_restart(grid: Grid) -> None:
    await grid.start_agent("a", [sys.executable, "-c", TELLS], ELASTICGRID_MAX_RESTARTS="7")
    await grid.world(1, A)
    await grid.wait_for(NodeFailed, node=A)
    await grid.drain(1, reason="failure")
    await grid.world(2, A)
    await grid.drain(2, reason="resize", grace_ms=0)
    await grid.wait_for(NodeDrained, node=A, round=2)
    await grid.world(3, A)
    await grid.wait_for(NodeFinished, node=A)
    await grid.decide(OutcomeDecided(outcome="completed", reason="done"))
    assert [told(grid, number) for number in (1, 3)] == ["0 7\n", "1 7\n"]


def test_the_restarts_of_a_job_reach_the_agent_in_its_environment(tmp_path: Path) -> None:
    launched = {
        environment.NATS_URL: "nats://bus:4222",
        environment.TENANT: "team",
        environment.JOB: "job",
        environment.PROVIDER: "local",
        environment.ATTEMPT: "p1a1",
        environment.NODE_DIR: str(tmp_path),
        environment.SHARED_DIR: str(tmp_path),
    }
    assert AgentConfig.from_environment(launched).max_restarts is None
    assert AgentConfig.from_environment(launched | {environment.MAX_RESTARTS: "3"}).max_restarts == 3
    with pytest.raises(InvalidInput, match=environment.MAX_RESTARTS):
        AgentConfig.from_environment(launched | {environment.MAX_RESTARTS: "many"})
