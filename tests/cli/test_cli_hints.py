"""What a command says to type next works when it is copied, whoever's job it is and wherever the gateway is."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_grid import Ended, GridThread, Run


@pytest.fixture
def where(run: Run, grid: GridThread, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The flags for a gateway that is not this folder's, with a key of the whole grid in a file with a space."""
    assert run("tenants", "create", "research").code == 0
    key = folder / "the key"
    key.write_text(grid.service.key_file.read_text())
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert run("jobs", "list").code == 2
    return ("--url", grid.url, "--key-file", str(key))


@pytest.fixture
def job(run: Run, where: tuple[str, ...], job_file: Path) -> str:
    """A job of another tenant than the default one."""
    return run("submit", job_file, "--tenant", "research", *where).out.strip()


def commands(ended: Ended) -> list[list[str]]:
    """The commands that were told."""
    return [shlex.split(found)[1:] for found in re.findall(r"elasticgrid [a-z].*", ended.err)]


@pytest.mark.parametrize("form", ["flag", "slash"])
@pytest.mark.parametrize(
    "line",
    [
        ("jobs", "show"),
        ("decisions", "list"),
        ("jobs", "pause"),
        ("jobs", "resume"),
        ("jobs", "resize", "--max", "3"),
        ("jobs", "set-priority", "production"),
        ("jobs", "cancel"),
    ],
    ids=" ".join,
)
def test_a_hint_about_a_job_works_as_it_stands(
    line: tuple[str, ...], form: str, run: Run, where: tuple[str, ...], job: str
) -> None:
    named = (job, "--tenant", "research") if form == "flag" else (f"research/{job}",)
    ended = run(*line[:2], *named[:1], *line[2:], *named[1:], *where)
    assert ended.code == 0, ended.err
    (next_one,) = commands(ended)
    assert job in next_one
    # Watching would take until the job is over, and nobody decides here.
    words = ["jobs", "show", *next_one[2:]] if next_one[:2] == ["jobs", "watch"] else next_one
    assert run(*words).code in (0, 3), "there is no decision to explain"
    assert run("jobs", "show", *next_one[2:]).code == 0


def test_lists_submissions_and_providers_tell_what_works_as_it_stands(
    run: Run, where: tuple[str, ...], job: str, job_file: Path
) -> None:
    for line in (("jobs", "list"), ("submit", str(job_file), "--tenant", "research")):
        (next_one,) = commands(run(*line, *where))
        assert next_one[:2] == ["jobs", "watch"]
        assert run("jobs", "show", *next_one[2:]).code == 0
    (check,) = commands(run("providers", "list", *where))
    assert run(*check).code == 0
    (opposite,) = commands(run("providers", "cordon", "small", *where))
    assert run(*opposite).err == "small takes nodes\n"


@pytest.mark.process
@pytest.mark.parametrize("line", [("watch",), ("logs", "-f")], ids=" ".join)
def test_who_stops_looking_is_told_commands_for_the_same_job(
    line: tuple[str, ...], run: Run, where: tuple[str, ...], job: str
) -> None:
    command = [sys.executable, "-m", "elasticgrid.cli.main", "jobs", line[0], f"research/{job}", *line[1:], *where]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        if line[0] == "watch":
            assert watching.stdout is not None
            assert "job.submitted" in watching.stdout.readline()
        else:
            # Nothing is written by anybody: until the program listens to signals it ends by them without a word.
            with pytest.raises(subprocess.TimeoutExpired):
                watching.wait(4)
        watching.send_signal(signal.SIGINT)
        _, told = watching.communicate(timeout=30)
    finally:
        watching.kill()
    assert watching.returncode == 130
    again, cancel = commands(Ended(130, "", told))
    assert again[:2] == ["jobs", line[0]]
    assert (again[3:4] == ["-f"]) == (line[0] == "logs")
    assert run(*cancel).code == 0
    assert run("jobs", "show", f"research/{job}", "--json", *where).json()["job"]["cancel_requested"] is True


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        (("jobs", "pause", "JOB", "--reason", "later"), "paused", "later"),
        (("jobs", "resume", "JOB"), "paused", ""),
        (("jobs", "resize", "JOB", "--max", "3"), "max_nodes", 3),
        (("jobs", "set-priority", "JOB", "production"), "band", "production"),
        (("jobs", "cancel", "JOB"), "cancel_requested", True),
        (("providers", "cordon", "small"), "refused", "cordoned"),
        (("providers", "uncordon", "small"), "refused", ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_changes_something_tells_a_script_how_it_is_now(
    line: tuple[str, ...], field: str, value: object, run: Run, where: tuple[str, ...], job: str
) -> None:
    words = [f"research/{job}" if word == "JOB" else word for word in line]
    for output in (("--json",), ("-o", "json")):
        ended = run(*words, *output, *where)
        assert ended.code == 0, ended.err
        assert ended.json()[field] == value
        assert ended.err == ""


@pytest.mark.parametrize(
    ("line", "code", "hint"),
    [
        (("--phase", "bogus"), 2, "completed"),
        (("--tenant", "nope"), 3, "list"),
        (("--tenant", "../x"), 3, "tenants list"),
        (("--tenant", "nope", "--phase", "running"), 3, "list"),
        (("--tenant", "research", "--phase", "failed"), 0, "no jobs are failed"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_list_of_what_there_cannot_be_is_refused_and_an_empty_one_is_not(
    line: tuple[str, ...], code: int, hint: str, run: Run, where: tuple[str, ...], job: str
) -> None:
    ended = run("jobs", "list", *line, *where)
    assert ended.code == code
    assert hint in ended.err
    assert ended.err.startswith("error: ") == bool(code)
