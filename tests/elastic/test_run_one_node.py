"""`elasticgrid run` on one node: what a script sees, what is shown, how it ends, and that nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import msgspec
import pytest
from run_nodes import Nodes

from elasticgrid.testing.processes import running, until

pytestmark = [pytest.mark.server, pytest.mark.process]

TORCHRUN_SETS = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
        *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"),
    }
)

#: Ends for SIGKILL only, and has a child that does, too.
STUBBORN = """
import os, signal, subprocess, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, 1); time.sleep(600)"])
Path(sys.argv[1], f"round-1.rank-{os.environ['RANK']}.draft").write_text(f"1 0 n {os.getpid()} {child.pid}")
Path(sys.argv[1], f"round-1.rank-{os.environ['RANK']}.draft").rename(Path(sys.argv[1], f"pids-{os.environ['RANK']}"))
time.sleep(600)
"""


def script(nodes: Nodes, text: str) -> str:
    (nodes.folder / "script.py").write_text(text)
    return "script.py"


async def test_workers_see_what_torchrun_sets_and_their_output_is_shown_behind_their_rank(nodes: Nodes) -> None:
    name = script(nodes, "import os, sys\nprint(*sys.argv[1:], *(f'{name}={os.environ[name]}' for name in os.environ))")
    node = await nodes.run("--nproc_per_node=2", "--role", "trainer", name, "--nproc_per_node", "7")
    assert await node.ended() == 0
    lines = sorted(node.printed.splitlines())
    assert [line.split("--nproc_per_node 7")[0] for line in lines] == ["[rank 0] ", "[rank 1] "]
    for rank, line in enumerate(lines):
        seen = dict(word.split("=", 1) for word in line.split() if "=" in word)
        assert seen.keys() >= TORCHRUN_SETS
        assert (seen["RANK"], seen["WORLD_SIZE"], seen["ROLE_NAME"]) == (str(rank), "2", "trainer")
        assert seen["OMP_NUM_THREADS"]
    assert "completed: run-" in node.said
    assert "1 node with 2 workers each, 1 round, 0 failed" in node.said


async def test_the_result_as_json_and_the_output_of_each_rank_in_its_file(nodes: Nodes) -> None:
    node = await nodes.run(
        *("--json", "--nproc-per-node", "2", "--log-dir", "logs", "--run-id", "one", "--no-python"),
        *("echo", "rank ${rank} of ${world_size}"),
    )
    assert await node.ended() == 0
    result = msgspec.json.decode(node.printed)
    assert (result["run_id"], result["outcome"], result["ranks"], result["rounds"]) == ("one", "completed", [0, 1], 1)
    shown = await nodes.run("--no-python", "cat", *(f"{result['log_dir']}/round-1/rank-{rank}.log" for rank in (0, 1)))
    assert await shown.ended() == 0
    assert shown.printed == "[rank 0] rank 0 of 2\n[rank 0] rank 1 of 2\n"


async def test_only_the_ranks_that_are_asked_for_are_shown(nodes: Nodes) -> None:
    node = await nodes.run("--nproc-per-node", "3", "--local-ranks-filter", "1", "--no-python", "echo", "${rank}")
    assert await node.ended() == 0
    assert node.printed == "[rank 1] 1\n"
    silent = await nodes.run("--nproc-per-node", "2", "--redirects", "3", "--no-python", "echo", "${rank}")
    assert await silent.ended() == 0
    assert silent.printed == ""


async def test_a_module_runs_as_one(nodes: Nodes) -> None:
    node = await nodes.run("-m", "json.tool", "--help")
    assert await node.ended() == 0
    assert "[rank 0] usage:" in node.printed


async def test_a_failure_is_told_root_cause_first_and_its_peers_are_ended(nodes: Nodes) -> None:
    name = script(
        nodes,
        "import os, sys, time\n"
        "print('pid', os.getpid(), flush=True)\n"
        "if os.environ['RANK'] == '1':\n    raise ValueError('no good')\n"
        "time.sleep(600)\n",
    )
    node = await nodes.run("--nproc-per-node", "2", name)
    assert await node.ended() == 1
    assert "failed in round 1 with exit code 1: ValueError: no good" in node.said
    told = node.said.split("root cause:")[1]
    assert told.index("rank 1 ") < told.index("Traceback") < told.index("rank 0 ")
    assert not any(running(int(pid)) for pid in re.findall(r"pid (\d+)", node.printed))


async def test_workers_start_again_as_often_as_is_allowed(nodes: Nodes) -> None:
    name = script(
        nodes,
        "import os, sys\nfrom pathlib import Path\n"
        "count = len(list(Path(sys.argv[1]).iterdir()))\n"
        "Path(sys.argv[1], f'try-{count}').touch()\n"
        "sys.exit(7 if count < int(sys.argv[2]) else 0)\n",
    )
    node = await nodes.run("--max-restarts", "2", name, str(nodes.out), "2")
    assert await node.ended() == 0
    assert "3 rounds, 2 failed" in node.said
    spent = await nodes.run("--max-restarts", "2", name, str(nodes.out), "99")
    assert await spent.ended() == 1
    assert "with exit code 7; rounds that failed: 3, restarts allowed: 2" in spent.said
    assert len(list(nodes.out.iterdir())) == 6


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_a_signal_ends_workers_that_do_not_want_to_end_and_their_children(
    nodes: Nodes, number: signal.Signals, code: int
) -> None:
    node = await nodes.run("--nproc-per-node", "2", script(nodes, STUBBORN), str(nodes.out))
    files = [nodes.out / f"pids-{rank}" for rank in (0, 1)]
    await until(lambda: all(file.exists() for file in files))
    pids = [int(pid) for file in files for pid in file.read_text().split()[3:]]
    assert all(map(running, pids))
    node.process.send_signal(number)
    assert await node.ended() == code
    await until(lambda: not any(map(running, pids)))
    assert not _processes_in(nodes.folder)


async def test_nothing_is_left_when_the_node_itself_is_killed(nodes: Nodes) -> None:
    node = await nodes.run(script(nodes, STUBBORN), str(nodes.out))
    await until((nodes.out / "pids-0").exists)
    node.process.kill()
    await until(lambda: not _processes_in(nodes.folder))


async def test_several_nodes_without_a_place_to_meet_are_refused_with_what_to_do(nodes: Nodes) -> None:
    node = await nodes.run("--nnodes", "2", "script.py")
    assert await node.ended() == 2
    assert "2 nodes need a place to meet at" in node.said


def _processes_in(folder: Path) -> list[int]:
    """Processes that work in a folder or were told of it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid() or not running(int(entry.name)):
            continue
        try:
            told = (entry / "cmdline").read_bytes().decode(errors="replace")
            there = os.readlink(entry / "cwd")
        except OSError:
            continue
        if str(folder) in told or there == str(folder):
            found.append(int(entry.name))
    return found


assert sys.platform == "linux", "processes are looked for in /proc"
