"""`demo`, `up` and `serve` before anything runs: what they were told wrongly is said in a line, and nothing begun."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_grid import Run

JOB = "name: x\nrun: python t.py\nnodes: 1\n"
GRID = "providers: [{name: here, max_nodes: 4}]\n"


@pytest.fixture(autouse=True)
def mask() -> Iterator[None]:
    """A demonstration changes which files others may read, for its whole process."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def pretender(tmp_path: Path) -> Path:
    """Says that it is a nats-server, and then does nothing of what one does."""
    path = tmp_path / "pretender"
    path.write_text('#!/bin/sh\n[ "$1" = --version ] && echo nats-server: v9 && exit\nexit 7\n')
    path.chmod(0o700)
    return path


@pytest.mark.parametrize(
    "verb", [("demo",), ("demo", "--chaos", "1"), ("up",), ("events", "restore", "--from", "mirror")]
)
@pytest.mark.parametrize("program", ["/nonexistent", "/bin/false", "/bin/sh", "/etc/passwd", "/tmp"])
@pytest.mark.parametrize("named", ["", "nats://127.0.0.1:1"])
def test_a_nats_server_that_is_none_ends_with_2_and_names_the_flag(
    verb: tuple[str, ...], program: str, named: str, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTICGRID_NATS_URL", named)
    ended = run(*verb, "--nats-server", program)
    assert ended.code == 2
    assert ended.err.startswith("error: --nats-server: ")
    assert len(ended.err.splitlines()) == 1
    assert list(folder.iterdir()) == []


@pytest.mark.process
def test_a_nats_server_that_is_named_is_started_also_where_another_bus_is_named(
    run: Run, pretender: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTICGRID_NATS_URL", "nats://127.0.0.1:1")
    for verb in ("up", "demo"):
        ended = run(verb, "--nats-server", pretender)
        assert ended.code == 1
        assert "the server ended with code 7 when it was started" in ended.err


@pytest.mark.parametrize(
    "words",
    [("demo", "--data"), ("up", "--data"), ("serve", "decider", "--data"), ("serve", "gateway", "--data")],
    ids=" ".join,
)
@pytest.mark.parametrize("place", ["/proc/x", "/etc/passwd"])
def test_a_data_folder_that_cannot_be_made_ends_with_2_and_names_the_flag(
    words: tuple[str, ...], place: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    if words[0] == "serve":
        monkeypatch.setenv("ELASTICGRID_NATS_URL", "nats://127.0.0.1:1")
    ended = run(*words, place)
    assert ended.code == 2
    assert ended.err.startswith("error: --data: ")
    assert place in ended.err
    assert "Errno" not in ended.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("demo", "--log-level", "nonsense"), "'--log-level': 'nonsense' is not one of 'debug', 'info'"),
        (("up", "--log-level", "nonsense"), "'--log-level': 'nonsense' is not one of 'debug', 'info'"),
        (("serve", "decider", "--log-level", "nonsense"), "'--log-level': 'nonsense' is not one of 'debug', 'info'"),
        (("serve", "nats"), "'nats' is not one of 'decider', 'launcher', 'gateway'"),
        (("demo", "-o", "foo"), "'foo' is not one of 'text', 'json', 'jsonl', 'yaml'"),
        (("plan", "--nodes", "1", "--prefer", "foo"), "'foo' is not one of 'cost', 'balance'"),
    ],
)
def test_a_word_that_is_not_one_of_those_allowed_ends_with_2_and_they_are_named(
    words: tuple[str, ...], says: str, run: Run
) -> None:
    ended = run(*words)
    assert ended.code == 2
    assert says in ended.err
    assert "Value error" not in ended.err


@pytest.mark.parametrize(
    ("files", "code", "says"),
    [
        ({}, 3, "job.yaml: there is no such file"),
        ({"job.yaml": JOB}, 3, "grid.yaml: there is no such file"),
        ({"job.yaml": "name: x\n", "grid.yaml": GRID}, 2, "job.yaml:1: run: this field is missing"),
        ({"job.yaml": JOB, "grid.yaml": "providers: []\n"}, 2, "grid.yaml:1: providers: "),
    ],
)
def test_an_example_that_is_none_is_refused_before_anything_of_it_is_copied(
    files: dict[str, str], code: int, says: str, run: Run, folder: Path
) -> None:
    example = folder / "example"
    example.mkdir()
    (example / "large").write_bytes(b"x" * 1_000_000)
    for name, text in files.items():
        (example / name).write_text(text)
    ended = run("demo", "--example", "example")
    assert ended.code == code
    assert says in ended.err
    assert list(folder.iterdir()) == [example]


@pytest.mark.process
def test_a_file_of_an_example_that_cannot_be_copied_is_told_in_one_line(run: Run, folder: Path) -> None:
    (folder / "job.yaml").write_text(JOB)
    (folder / "grid.yaml").write_text(GRID)
    os.mkfifo(folder / "pipe")
    ended = run("demo", "--example", ".", "--data", "runs")
    assert ended.code == 2
    assert ended.err.startswith("error: ./pipe: this file of the example cannot be copied: ")
    assert len(ended.err.splitlines()) == 1


def test_an_example_is_copied_without_the_run_that_is_kept_in_it(folder: Path) -> None:
    from elasticgrid.demo.example import prepare

    (folder / "job.yaml").write_text(JOB)
    (folder / "grid.yaml").write_text(GRID)
    kept = folder / "runs" / "1"
    kept.mkdir(parents=True)
    copied, spec = prepare(folder, kept)
    assert {path.name for path in copied.rglob("*")} == {"job.yaml", "grid.yaml", "runs"}
    assert spec.workdir == str(copied)
    assert stat.S_IMODE((copied / "job.yaml").stat().st_mode) & 0o077 == 0


@pytest.mark.process
@pytest.mark.parametrize("there", [False, True])
def test_a_control_plane_names_the_example_as_the_next_step_only_where_it_is(there: bool, folder: Path) -> None:
    if there:
        (folder / "examples/elastic_numpy").mkdir(parents=True)
        (folder / "examples/elastic_numpy/job.yaml").write_text(JOB)
    words = [sys.executable, "-m", "elasticgrid.cli.main", "up", "--http", "127.0.0.1:0", "--log-level", "error"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if line.startswith("next:"):
                break
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert ("elasticgrid submit examples/elastic_numpy/job.yaml" in said) == there
    assert ("elasticgrid init" in said) != there
