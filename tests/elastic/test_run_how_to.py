"""What the page about running without a grid tells people to type does what it says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from run_nodes import Nodes

from elasticgrid.testing.bus import free_ports

pytestmark = [pytest.mark.server, pytest.mark.process]

PAGE = Path(__file__).parents[2] / "docs/how-to/run-without-a-grid.md"
FENCES = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
PYTHON = [text for language, text in FENCES if language == "python"]
COMMANDS = [shlex.split(line) for language, text in FENCES if language == "sh" for line in text.splitlines()]
ALONE = [words for words in COMMANDS if "--nnodes" not in words]


@pytest.fixture
def page(nodes: Nodes) -> Nodes:
    """A folder with the page's script in it."""
    (nodes.folder / "train.py").write_text(PYTHON[0])
    return nodes


async def test_the_commands_for_one_node_work(page: Nodes) -> None:
    said = []
    for words in ALONE:
        node = await page.run(*words[2:])
        assert await node.ended() == 0, words
        said.append(node.printed)
    assert len(said) == 4
    assert sorted(said[0].splitlines()) == ["[rank 0] rank 0 of 2: 20 steps", "[rank 1] rank 1 of 2: 20 steps"]
    assert list((page.folder / "logs").glob("*/round-1/rank-1.log"))
    assert said[2] == ""
    assert msgspec.json.decode(said[3])["outcome"] == "completed"


@pytest.mark.parametrize("flag", ["--run-id", "--node-rank"])
async def test_the_commands_for_two_nodes_work_together(page: Nodes, flag: str) -> None:
    (port,) = free_ports(1)
    both = [words for words in COMMANDS if flag in words]
    assert len(both) == 2
    started = []
    for words in both:
        typed = [re.sub(r"node0", "127.0.0.1", re.sub(r"\b(4222|29500)\b", str(port), word)) for word in words[2:]]
        started.append(await page.run(*typed))
        if "--host-bus" in words:
            await page.there("trial.json")
    assert [await node.ended() for node in started] == [0, 0]
    shown = "".join(node.printed for node in started)
    assert sorted(shown.splitlines()) == ["[rank 0] rank 0 of 2: 20 steps", "[rank 1] rank 1 of 2: 20 steps"]


def test_the_program_in_python_prints_what_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "launch.py").write_text(PYTHON[1])
    ended = subprocess.run(
        [sys.executable, "launch.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True
    )
    assert ended.stdout == "{0: 0, 1: 10}\n"
    assert "`{0: 0, 1: 10}` here" in PAGE.read_text(encoding="utf-8")


def test_the_flags_of_the_table_are_flags_of_the_command() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "elasticgrid.cli.main", "run", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "200", "PATH": "/usr/bin:/bin"},
    ).stdout
    kept = [
        line
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `-") and "not there" not in line
    ]
    assert len(kept) >= 8
    for line in kept:
        for flag in re.findall(r"`(-[\w-]+)", line.split("|")[1]):
            assert flag in shown, flag
