"""Shell completion with the names of live jobs and providers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_grid import GridThread, Run

PROGRAM = "from elasticgrid.cli.main import run; run()"


def completed(*words: str) -> list[str]:
    """What bash is told to offer for the last word."""
    environ = {
        **os.environ,
        "_ELASTICGRID_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("elasticgrid", *words)),
        "COMP_CWORD": str(len(words)),
    }
    ended = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    return ended.stdout.split()


@pytest.mark.process
def test_jobs_and_providers_are_completed_from_the_live_grid(run: Run, grid: GridThread, job_file: Path) -> None:
    job = run("submit", job_file).out.strip()
    assert completed("jobs", "show", "tr") == [job]
    assert completed("decisions", "why", "") == [job]
    assert completed("jobs", "cancel", "other") == []
    assert completed("providers", "cordon", "la") == ["large"]
    assert completed("events", "export", "x.egz", "--job", "") == [job]


@pytest.mark.process
def test_jobs_of_several_tenants_are_completed_as_a_verb_takes_them(
    run: Run, grid: GridThread, job_file: Path, folder: Path
) -> None:
    own = run("submit", job_file).out.strip()
    assert run("tenants", "create", "research").code == 0
    other = run("submit", job_file, "--tenant", "research").out.strip()
    assert set(completed("jobs", "show", "")) == {own, f"research/{other}"}
    assert completed("jobs", "cancel", "res") == [f"research/{other}"]
    assert completed("decisions", "why", "default/") == [f"default/{own}"]
    assert completed("jobs", "show", "--tenant", "research", "") == [other]
    key = folder / "research.key"
    assert run("keys", "create", "--tenant", "research", "--out", key).code == 0
    assert completed("jobs", "show", "--url", grid.url, "--key-file", str(key), "") == [other]
    for verb in (("jobs", "show"), ("jobs", "pause"), ("jobs", "cancel")):
        assert run(*verb, f"research/{other}").code == 0
        assert run(*verb, f"default/{own}").code == 0


@pytest.mark.process
def test_the_gateway_that_was_typed_is_asked(run: Run, grid: GridThread, job_file: Path, folder: Path) -> None:
    job = run("submit", job_file).out.strip()
    key = str(grid.service.key_file)
    os.chdir(folder.parent)
    assert completed("jobs", "show", "--url", grid.url, "--key-file", key, "t") == [job]


@pytest.mark.process
def test_without_a_gateway_there_are_no_names_and_no_noise(folder: Path) -> None:
    assert completed("jobs", "show", "") == []
    (folder / "key").write_text("x" * 40)
    assert completed("jobs", "show", "--url", "http://127.0.0.1:9", "--key-file", "key", "") == []
    assert completed("jobs", "show", "--url", "http://127.0.0.1:9", "--key-file", "-", "") == []


@pytest.mark.process
def test_verbs_are_completed_without_asking_anybody() -> None:
    assert completed("jo") == ["jobs"]
    assert "resize" in completed("jobs", "")
