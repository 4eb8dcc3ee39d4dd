"""The time that workers get to stop is theirs: nobody is signalled before it is over, and their children never are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from agent_grid import TRAINER, Grid

from elasticgrid.core.events import NodeDrained, NodeStarted
from elasticgrid.testing.processes import running, until

pytestmark = [pytest.mark.server, pytest.mark.process]

FOR_EVER = "1000000"

#: Starts a process as a data loader's worker is one, which says when somebody asks it to end.
LOADER = """
import subprocess, sys
CHILD = '''
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(sys.argv[1], "asked-to-end").touch())
pathlib.Path(sys.argv[1], "loader").write_text(str(__import__("os").getpid()))
time.sleep(600)
'''
subprocess.Popen([sys.executable, "-c", CHILD, sys.argv[3]])
"""


@pytest.mark.survive("N")
async def test_workers_of_a_drain_stop_by_themselves_and_a_loader_of_theirs_is_asked_nothing(
    grid: Grid, tmp_path: Path
) -> None:
    script = tmp_path / "trainer.py"
    script.write_text(LOADER + TRAINER)
    await grid.start_agent("a", [sys.executable, str(script), FOR_EVER, "0.05", str(tmp_path)])
    await grid.world(1, "a-0")
    await grid.wait_for(NodeStarted, node="a-0")
    loader = tmp_path / "loader"
    await until(lambda: loader.exists() and loader.read_text())
    pid = int(loader.read_text())
    assert running(pid)
    await grid.drain(1, grace_ms=120_000)
    drained, _ = await grid.wait_for(NodeDrained, node="a-0")
    assert drained.clean
    await until(lambda: not running(pid))
    assert not (tmp_path / "asked-to-end").exists()
