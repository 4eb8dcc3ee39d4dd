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

from elasticgrid.testing.bus import free_ports
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

#: Has a child in a session of its own, which has a child in another one.
FAR = """
import os, signal, subprocess, sys, time
from pathlib import Path
out, listens, depth, *pids = sys.argv[1:]
if depth != "0":
    pids.append(str(os.getpid()))
    if listens == "nothing":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
if depth != "2":
    deeper = [out, listens, str(int(depth) + 1), *pids]
    subprocess.Popen([sys.executable, __file__, *deeper], start_new_session=True)
else:
    Path(out, "draft").write_text(" ".join(pids))
    Path(out, "draft").rename(Path(out, "pids"))
time.sleep(600)
"""

FEW = ["--rdzv-conf", "join_timeout_s=0.5"]


def _port() -> str:
    (port,) = free_ports(1)
    return str(port)


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


async def test_a_failed_run_says_so_in_json_as_well(nodes: Nodes) -> None:
    name = script(nodes, "import sys\nif sys.argv[1:]:\n    raise ValueError('no good')\n")
    node = await nodes.run("--json", "--nproc-per-node", "2", "--run-id", "bad", name, "now")
    assert await node.ended() == 1
    told = msgspec.json.decode(node.printed)
    assert (told["outcome"], told["run_id"], told["code"]) == ("failed", "bad", "workers_failed")
    root = told["failures"][0]
    assert (root["exit_code"], root["message"]) == (1, "ValueError: no good")
    assert "Traceback" in root["traceback"]
    assert "ValueError: no good" in node.said
    late = await nodes.run("--json", "--nnodes", "2", "--host-bus", _port(), "--run-id", "few", *FEW, name)
    assert await late.ended() == 1
    assert msgspec.json.decode(late.printed) == {
        "run_id": "few",
        "outcome": "failed",
        "code": "rendezvous_timed_out",
        "reason": "waited 0.5 s: 1 of at least 2 nodes joined the run few",
        "failures": [],
    }


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_a_run_that_a_signal_ended_says_so_in_json_as_well(
    nodes: Nodes, number: signal.Signals, code: int
) -> None:
    node = await nodes.run("--json", script(nodes, STUBBORN), str(nodes.out))
    await until((nodes.out / "pids-0").exists)
    node.process.send_signal(number)
    assert await node.ended() == code
    assert msgspec.json.decode(node.printed)["outcome"] == "interrupted"


async def test_the_same_name_again_is_another_run_and_never_resumes_from_the_first_ones_weights(nodes: Nodes) -> None:
    name = script(
        nodes,
        "import sys, elasticgrid\n"
        "from elasticgrid.publish import checkpoint\n"
        "who, pub = sys.argv[1], elasticgrid.publisher()\n"
        "if pub.resume_uri:\n"
        "    print('resumed', checkpoint.load(pub.resume_uri)['who'].decode())\n"
        "else:\n"
        "    with pub.step(tokens=1):\n"
        "        pass\n"
        "    uri = checkpoint.write(pub.checkpoint_dir, 3, {'who': who.encode()}, round=pub.round)\n"
        "    pub.checkpointed(3, uri)\n"
        "    pub.close()\n"
        "    sys.exit(1)\n",
    )
    folders = set()
    for who in ("one", "two"):
        words = ["--json", "--tee", "3", "--run-id", "same", "--max-restarts", "1", "--shared-dir", "shared", name, who]
        node = await nodes.run(*words)
        assert await node.ended() == 0
        said, _, result = node.printed.partition("\n")
        assert said == f"[rank 0] resumed {who}"
        folders.add(msgspec.json.decode(result)["shared_dir"])
    assert sorted(folders) == sorted(str(path) for path in (nodes.folder / "shared").iterdir())
    assert len(folders) == 2


async def test_workers_are_told_how_often_they_may_start_again_and_how_often_they_have(nodes: Nodes) -> None:
    name = script(
        nodes,
        "import os, sys\n"
        "print(os.environ['TORCHELASTIC_RESTART_COUNT'], os.environ['TORCHELASTIC_MAX_RESTARTS'], flush=True)\n"
        "sys.exit(os.environ['ELASTICGRID_ROUND'] != '3')\n",
    )
    node = await nodes.run("--max-restarts", "5", name)
    assert await node.ended() == 0
    assert node.printed.splitlines() == ["[rank 0] 0 5", "[rank 0] 1 5", "[rank 0] 2 5"]


@pytest.mark.parametrize("port", ["0", "free"])
async def test_one_node_meets_nobody_at_an_endpoint_without_a_name(nodes: Nodes, port: str) -> None:
    endpoint = f"localhost:{_port() if port == 'free' else port}"
    words = ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--nnodes=1", "--no-python", "echo", "${world_size}"]
    node = await nodes.run(*words)
    assert await node.ended() == 0, node.said
    assert node.printed == "[rank 0] 1\n"


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("--log-level nonsense", "--log-level"),
        ("--local-ranks-filter 5", "--local-ranks-filter"),
        ("--master-port 99999", "--master-port"),
        ("--host-bus 0 --run-id x", "--host-bus"),
        ("--run-id X", "--run-id"),
        ("--monitor-interval 0", "--monitor-interval"),
    ],
)
async def test_a_flag_that_cannot_be_is_refused_by_its_name(nodes: Nodes, words: str, flag: str) -> None:
    node = await nodes.run(*words.split(), "--no-python", "true")
    assert await node.ended() == 2
    assert flag in node.said
    assert not any(name in node.said for name in ("run_id", "bus_url", "max_nodes", "monitor_interval_s"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("listens", ["TERM", "nothing"])
async def test_a_signal_ends_also_what_workers_started_in_sessions_of_their_own(
    nodes: Nodes, number: signal.Signals, code: int, listens: str
) -> None:
    node = await nodes.run(script(nodes, FAR), str(nodes.out), listens, "0")
    await until((nodes.out / "pids").exists)
    pids = [int(pid) for pid in (nodes.out / "pids").read_text().split()]
    assert all(map(running, pids))
    node.process.send_signal(number)
    assert await node.ended() == code
    assert not any(map(running, pids))


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
