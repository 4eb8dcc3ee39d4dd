"""`elasticgrid demo` as a stranger runs it: what it prints, what it leaves, and how it ends when it is ended."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from deployment import EXAMPLE, QUICK, job_file, trainer, up_and_down
from sandbox import Sandbox, eventually, is_open, open_to_others

from elasticgrid.bus.embedded import find_nats_server
from elasticgrid.testing import bus

pytestmark = [pytest.mark.server, pytest.mark.process, pytest.mark.demo]

KEYS: Final = {
    *("worlds", "steps", "duplicate_steps", "lost_steps", "loss_first", "loss_last", "samples_published"),
    *("samples_dropped", "decisions", "verified", "diverged", "launches", "nodes_by_provider", "cost_usd"),
    *("duration_s", "archive"),
}
#: Agents give up this long after their bus is gone, and their workers get a moment to end.
ORPHANS_S: Final = 10.0 + 8.0


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path) as sandbox:
        yield sandbox


def example(box: Sandbox, name: str, run: str | list[str], **more: Any) -> Path:
    """A folder for `--example`: the trainer and the grid of the real one, with another job."""
    folder = box.folder / name
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    job_file(folder, "job", run, workdir=".", **more)
    return folder


def short(box: Sandbox) -> Path:
    """An example that grows and shrinks in less than a minute."""
    return example(box, "short", up_and_down(), nodes={"min": 2, "max": 4, "initial": 2}, scaling=QUICK)


def endless(box: Sandbox) -> Path:
    """An example that is still at work whenever one looks."""
    return example(box, "endless", trainer(10_000))


def failing(box: Sandbox) -> Path:
    """An example whose program does not even begin to train.

    On a spot market the failure would be open to a notice of its provider for a minute.
    """
    program = "import sys; sys.exit('ValueError: no such column: price')"
    return example(box, "failing", ["python", "-c", program], placement={"spot": "forbid"})


def begun(box: Sandbox, command: list[str], *, environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """The command, running; its two outputs are kept apart."""
    return subprocess.Popen(
        command,
        cwd=box.folder,
        env={**box.environ, **(environ or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def require_success(result: Mapping[str, Any]) -> None:
    assert set(result) >= KEYS
    assert result["worlds"][:2] == [2, 4]
    assert result["worlds"][-1] == 2
    assert (result["duplicate_steps"], result["diverged"], result["lost_steps"]) == (0, 0, 0)
    assert result["loss_last"] < result["loss_first"]
    assert result["verified"] == result["decisions"] > 0
    assert result["failures"] == []


def test_the_demo_prints_one_object_verifies_and_leaves_nothing_outside_its_private_folder(box: Sandbox) -> None:
    data = box.folder / ".elasticgrid"
    process = begun(box, box.command("demo", "--json"))
    eventually(lambda: box.commanded("python train.py"), 60, "workers run")
    ports = box.listening()
    out, told = process.communicate(timeout=150)
    assert process.returncode == 0, told
    result = json.loads(out)
    require_success(result)
    assert result["duration_s"] < 90
    assert set(result["nodes_by_provider"]) == {"local-spot", "local-steady"}

    assert box.running() == set()
    assert ports
    assert not [port for port in ports if is_open(port)]
    assert open_to_others(data) == []
    assert [path for path in data.rglob("*") if stat.S_ISSOCK(path.stat().st_mode)] == []
    assert box.outside(data) == []

    assert "decision.world" in told
    assert "queue_bound" in told
    assert box.run("replay", "verify", result["archive"]).returncode == 0
    assert "decision.outcome" in box.run("replay", "timeline", result["archive"]).stdout


async def test_two_demos_run_at_once_on_a_bus_that_is_named_and_on_a_server_that_is_named(
    box: Sandbox, tmp_path: Path
) -> None:
    server = tmp_path / "another-nats-server"
    shutil.copy(find_nats_server(), server)
    command = box.command("demo", "--json", "--example", short(box))
    async with bus.embedded_server(tmp_path / "bus") as running:
        named = {
            "ELASTICGRID_NATS_URL": running.address.url,
            "ELASTICGRID_CREDENTIALS": running.address.credentials,
            "ELASTICGRID_BUS_AUTHORITY": str(running.authority_file),
        }
        first = begun(box, [*command, "--nats-server", str(server)])
        second = begun(box, command, environ=named)
        eventually(lambda: len(box.commanded("python train.py")) >= 4, 90, "both train")
        servers = box.commanded(r"\S*nats-server ")
        assert {box.commands()[pid].split()[0] for pid in servers} == {str(server)}
        for demo in (first, second):
            out, told = demo.communicate(timeout=150)
            assert demo.returncode == 0, told
            require_success(json.loads(out))
    assert box.running() == set()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "terminated"]
)
@pytest.mark.parametrize("moment", ["launching", "training"])
def test_a_demo_that_is_ended_in_mid_run_ends_at_once_and_leaves_nothing(
    box: Sandbox, number: signal.Signals, code: int, moment: str
) -> None:
    output = box.temporary / "output"
    demo = box.start(box.command("demo", "--json", "--example", short(box)), output=output)
    began = {"launching": r"\S+ -P -m elasticgrid\.agent ", "training": "python train.py"}[moment]
    eventually(lambda: box.commanded(began), 60, moment)
    ports = box.listening()
    demo.send_signal(number)
    began_s = time.monotonic()
    assert demo.wait(timeout=30) == code, output.read_text()
    # The job gets five seconds to end by itself.
    assert time.monotonic() - began_s < 20
    assert box.gone_within(1.0) < 1.0
    assert not [port for port in ports if is_open(port)]
    assert "Traceback" not in output.read_text()


def test_of_a_demo_that_is_killed_the_bus_is_gone_at_once_and_all_the_rest_soon(box: Sandbox) -> None:
    demo = box.start(box.command("demo", "--json", "--example", endless(box)))
    eventually(lambda: box.commanded("python train.py"), 60, "workers run")
    demo.kill()
    demo.wait()
    eventually(lambda: not box.commanded(r"\S*nats-server "), 2.0, "the bus is gone")
    box.gone_within(ORPHANS_S)


def test_a_demo_whose_program_fails_says_why_fails_and_leaves_nothing(box: Sandbox) -> None:
    answer = box.run("demo", "--json", "--example", failing(box))
    assert answer.returncode == 1
    result = json.loads(answer.stdout)
    assert any("ValueError: no such column: price" in failure for failure in result["failures"])
    assert "ValueError: no such column: price" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert box.running() == set()


def test_a_demo_of_files_that_are_wrong_or_of_a_job_that_cannot_be_placed_says_so_and_starts_nothing(
    box: Sandbox,
) -> None:
    missing = box.run("demo", "--example", "nowhere")
    assert (missing.returncode, "nowhere" in missing.stderr) == (3, True)
    wrong = example(box, "wrong", "python train.py", nodes={"min": 0})
    answer = box.run("demo", "--example", wrong)
    assert (answer.returncode, "nodes.min" in answer.stderr) == (2, True), answer.stderr
    large = box.run("demo", "--example", example(box, "large", "true", nodes={"min": 40, "max": 40}))
    assert large.returncode == 4, large.stderr
    assert "40" in large.stderr
    assert box.running() == set()


@pytest.mark.parametrize("no_color", [False, True], ids=["colour", "no-colour"])
def test_on_a_terminal_there_is_a_panel_of_eighty_columns_unless_colour_is_unwanted(
    box: Sandbox, no_color: bool
) -> None:
    environ = {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", **({"NO_COLOR": "1"} if no_color else {})}
    output = on_a_terminal(box, "demo", "--example", failing(box), environ=environ)
    assert "the job is failed" in output
    if no_color:
        # Bold is no colour; everything else, and moving the cursor, is unwanted.
        assert set(re.findall(r"\x1b\[[^A-Za-z]*[A-Za-z]", output)) <= {"\x1b[0m", "\x1b[1m"}
        assert "│" not in output
    else:
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)
        panel = [line for line in plain.splitlines() if "│" in line or "╭" in line]
        assert panel
        assert {len(line.strip("\r")) for line in panel} == {80}


def on_a_terminal(box: Sandbox, *arguments: object, environ: Mapping[str, str]) -> str:
    """All that the command shows on a terminal of its own."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        box.command(*arguments),
        cwd=box.folder,
        env={**box.environ, **environ},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # what a terminal says when nobody has it open any more
        while select.select([ours], [], [], 60.0)[0] and (data := os.read(ours, 65_536)):
            shown += data
    os.close(ours)
    process.wait(timeout=10)
    return shown.decode()
