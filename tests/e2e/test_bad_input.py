"""Wrong files, wrong names, a grid that is not there: what the command line says, and with which exit code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployment import Deployment, deployment, job_file
from sandbox import Sandbox, eventually

pytestmark = [pytest.mark.server, pytest.mark.process]

WRONG_JOB = """\
name: My Job
run: python train.py
nodes:
  min: 4
  max: two
scaling:
  target_queue_share: 20
  cooldown: 5
"""

WRONG_GRID = """\
providers:
  - name: here
    engine: local
    max_nodes: -1
  - name: here
    engine: local
    max_node: 4
"""


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployment(tmp_path_factory.mktemp("bad-input")) as running:
        yield running


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Sandbox]:
    """A folder in which no grid was ever started."""
    with Sandbox(tmp_path) as box:
        yield box


def test_every_mistake_in_a_job_file_is_told_with_its_line_its_field_and_what_is_wanted(alone: Sandbox) -> None:
    (alone.folder / "job.yaml").write_text(WRONG_JOB)
    for verb in ("submit", "validate"):
        answer = alone.run(verb, "job.yaml")
        assert answer.returncode == 2
        assert answer.stdout == ""
        for line, field in ((1, "name"), (5, "nodes.max"), (7, "scaling.target_queue_share"), (8, "scaling.cooldown")):
            assert re.search(rf"job\.yaml:{line}: {re.escape(field)}: .+", answer.stderr), answer.stderr
        assert "did you mean `cooldown_up_s`?" in answer.stderr
        assert "Traceback" not in answer.stderr


def test_every_mistake_in_a_grid_file_is_told_with_its_line_its_field_and_what_is_wanted(alone: Sandbox) -> None:
    (alone.folder / "grid.yaml").write_text(WRONG_GRID)
    for arguments in (("validate", "grid.yaml"), ("up", "--config", "grid.yaml")):
        answer = alone.run(*arguments)
        assert answer.returncode == 2
        for line in (4, 7):
            assert re.search(rf"grid\.yaml:{line}: providers\S+: .+", answer.stderr), answer.stderr
    assert list(alone.folder.iterdir()) == [alone.folder / "grid.yaml"]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"- 1", b"a: &a [*a, *a]", b"x: " + b"[" * 5_000])
def test_a_file_that_is_no_job_at_all_is_refused_in_a_line_or_two(alone: Sandbox, content: bytes) -> None:
    (alone.folder / "job.yaml").write_bytes(content)
    answer = alone.run("submit", "job.yaml")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("error: job.yaml")
    assert len(answer.stderr.splitlines()) < 6


def test_a_file_that_is_not_there_is_not_found(alone: Sandbox) -> None:
    answer = alone.run("submit", "nowhere.yaml")
    assert (answer.returncode, answer.stdout) == (3, "")
    assert "nowhere.yaml" in answer.stderr


def test_where_no_gateway_runs_the_command_line_says_how_to_start_one(alone: Sandbox) -> None:
    job_file(alone.folder, "job", "true")
    for arguments in (("submit", "job.yaml"), ("jobs", "list"), ("jobs", "show", "any")):
        answer = alone.run(*arguments)
        assert answer.returncode == 2
        assert "elasticgrid up" in answer.stderr


def test_a_gateway_that_does_not_answer_is_named_and_nothing_hangs(grid: Deployment, alone: Sandbox) -> None:
    key = grid.data("gateway") / "admin.key"
    answer = alone.run("jobs", "list", "--url", "http://127.0.0.1:9", "--key-file", key, timeout_s=20)
    assert answer.returncode == 1
    assert "127.0.0.1:9" in answer.stderr
    assert "elasticgrid up" in answer.stderr


def test_a_wrong_key_is_not_allowed(grid: Deployment, alone: Sandbox) -> None:
    key = alone.folder / "key"
    key.write_text("guessed")
    key.chmod(0o600)
    answer = alone.run("jobs", "list", "--url", f"http://127.0.0.1:{grid.http_port}", "--key-file", key)
    assert answer.returncode == 3
    assert "key" in answer.stderr


def test_an_impossible_job_is_refused_with_the_reason_and_is_not_in_the_list(grid: Deployment) -> None:
    path = job_file(grid.box.folder, "impossible", "true", nodes={"min": 40, "max": 40})
    answer = grid.box.run("submit", path)
    assert (answer.returncode, answer.stdout) == (4, "")
    assert "40 nodes" in answer.stderr
    assert "here has 2" in answer.stderr
    elsewhere = job_file(grid.box.folder, "elsewhere", "true", placement={"providers": ["hear"]})
    answer = grid.box.run("submit", elsewhere)
    assert answer.returncode == 4
    assert "hear" in answer.stderr
    assert "impossible" not in grid.box.run("jobs", "list").stdout


def test_a_job_that_nobody_knows_is_not_found(grid: Deployment) -> None:
    for arguments in (
        ("jobs", "show"),
        ("jobs", "watch"),
        ("jobs", "cancel"),
        ("jobs", "pause"),
        ("decisions", "why"),
    ):
        answer = grid.box.run(*arguments, "no-such-job", timeout_s=20)
        assert answer.returncode == 3, (arguments, answer.stderr)
        assert "no-such-job" in answer.stderr


def test_a_service_without_a_bus_to_go_to_says_which_variable_names_it(alone: Sandbox) -> None:
    answer = alone.run("serve", "decider")
    assert answer.returncode == 2
    assert "ELASTICGRID_NATS_URL" in answer.stderr
    answer = alone.run("serve", "launcher", environ={"ELASTICGRID_NATS_URL": "http://127.0.0.1:4222"})
    assert answer.returncode == 2
    assert "nats://" in answer.stderr


def test_a_service_that_the_bus_does_not_let_in_says_so_and_waits(grid: Deployment, alone: Sandbox) -> None:
    credentials = alone.folder / "service.json"
    credentials.write_text('{"user": "service", "password": "guessed", "inbox_prefix": "_INBOX_service"}')
    environ = {
        "ELASTICGRID_NATS_URL": f"nats://127.0.0.1:{grid.bus_port}",
        "ELASTICGRID_CREDENTIALS": str(credentials),
    }
    output = alone.folder / "output"
    service = alone.start(alone.command("serve", "decider"), environ=environ, output=output)
    eventually(lambda: "refused the credential" in output.read_text(), 15, "it says that it is refused")
    assert "Traceback" not in output.read_text()
    assert service.poll() is None
    service.terminate()
    assert service.wait(timeout=5) == 0
