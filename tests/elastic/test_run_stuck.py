"""Workers that live but do not get on: told, begun again or ended, as was said."""

from __future__ import annotations

import msgspec
import pytest
from run_nodes import Nodes

pytestmark = [pytest.mark.server, pytest.mark.process]

#: Hangs in its first round, in a block that is to end or between two steps; is done at once in any other.
HANGS = """
import os, sys, time
import elasticgrid
from elasticgrid.elastic import timer

pub = elasticgrid.publisher()
print("restarts", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
for _ in range(3):
    with pub.step(tokens=1):
        time.sleep(0.01)
if os.environ["ELASTICGRID_ROUND"] == "1":
    if sys.argv[1] == "block":
        with timer.expires(1, "all-reduce"):
            time.sleep(600)
    time.sleep(600)
"""


async def hung(nodes: Nodes, *words: str, how: str = "block") -> tuple[int, str, str]:
    """How a node whose worker hangs ends, what it printed and what it said."""
    (nodes.folder / "hangs.py").write_text(HANGS)
    node = await nodes.run(*words, "hangs.py", how)
    return await node.ended(), node.printed, node.said


@pytest.mark.parametrize(("how", "words"), [("block", []), ("step", ["--stuck-after-s", "1"])])
async def test_a_worker_that_hangs_is_started_again_where_that_was_said(
    nodes: Nodes, how: str, words: list[str]
) -> None:
    code, printed, said = await hung(nodes, "--on-stuck", "restart", "--max-restarts", "1", *words, how=how)
    assert code == 0, said
    assert printed == "[rank 0] restarts 0\n[rank 0] restarts 1\n"
    assert "2 rounds, 1 failed" in said


@pytest.mark.parametrize("words", [["--on-stuck", "fail", "--max-restarts", "5"], ["--on-stuck", "restart"]])
async def test_a_worker_that_hangs_ends_the_run_with_the_limit_as_it_was_given_and_where_it_hung(
    nodes: Nodes, words: list[str]
) -> None:
    code, printed, said = await hung(nodes, "--json", *words)
    assert code == 1
    told = msgspec.json.decode(printed)
    assert told["outcome"] == "failed"
    assert "of round 1: all-reduce of rank 0 was to end in 1 s and has not" in told["reason"]
    assert told["reason"] in said
    assert "hangs.py" in said, "the stacks of its threads"


async def test_the_time_without_a_step_is_told_as_it_was_given(nodes: Nodes) -> None:
    code, _, said = await hung(nodes, "--on-stuck", "fail", "--stuck-after-s", "1.5", how="step")
    assert code == 1
    assert "the limit is 1.5 s" in said
