"""A job's secrets in the hands of an agent: read from files, given to workers, and kept out of everything else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from agent_grid import Grid

from elasticgrid import environment
from elasticgrid.agent.worker_secrets import worker_secrets
from elasticgrid.core.events import NodeFailed, NodeFinished
from elasticgrid.core.failures import EXIT_TEMPORARY_FAILURE

SECRET = "a-secret-of-this-test-0123456789"
#: Fails where it was not given what it was to be given.
ASKING = (
    "import os, pathlib\n"
    f"assert os.environ['HF_TOKEN'] == '{SECRET}'\n"
    f"assert pathlib.Path(os.environ['HF_TOKEN_FILE']).read_text() == '{SECRET}\\n'\n"
    "assert b'HF_TOKEN=' not in pathlib.Path(f'/proc/{os.getppid()}/environ').read_bytes()\n"
)


def test_a_secret_loses_the_line_end_that_an_editor_put_there_and_nothing_else(tmp_path: Path) -> None:
    written = {"A": b"a\n", "B": b"b\r\n", "C": b" c \n\n", "D": "d\u00e9".encode(), ".half.new": b"x"}
    for name, text in written.items():
        (tmp_path / name).write_bytes(text)
    found = worker_secrets(tmp_path)
    assert {name: found[name] for name in "ABCD"} == {"A": "a", "B": "b", "C": " c \n", "D": "d\u00e9"}
    assert found.keys() == {"A", "B", "C", "D", "A_FILE", "B_FILE", "C_FILE", "D_FILE"}
    assert found["A_FILE"] == str(tmp_path / "A")
    assert worker_secrets(None) == {}


@pytest.mark.server
@pytest.mark.process
async def test_workers_have_a_secret_in_a_variable_and_in_a_file_and_the_agent_has_it_in_neither(
    grid: Grid, tmp_path: Path
) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "HF_TOKEN").write_text(f"{SECRET}\n")
    command = [sys.executable, "-c", ASKING]
    agent = await grid.start_agent("a", command, **{environment.SECRETS_DIR: str(folder)})
    await grid.world(1, "a-0")
    await grid.wait_for(NodeFinished, node="a-0", round=1)
    assert SECRET not in str(await grid.facts())
    assert agent.returncode is None


@pytest.mark.server
@pytest.mark.process
async def test_workers_without_the_secrets_they_were_to_have_are_not_started(grid: Grid, tmp_path: Path) -> None:
    await grid.start_agent("a", [sys.executable, "-c", ""], **{environment.SECRETS_DIR: str(tmp_path / "gone")})
    await grid.world(1, "a-0")
    failed, _ = await grid.wait_for(NodeFailed, node="a-0", round=1)
    (end,) = failed.exits
    assert end.code == EXIT_TEMPORARY_FAILURE
    assert "the job's secrets cannot be read: " in str(failed)
