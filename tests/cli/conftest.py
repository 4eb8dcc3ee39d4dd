"""The command line called in-process, with grids for it to ask and archives to read."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from cli_grid import Ended, GridThread, Run

from elasticgrid.cli.main import main
from elasticgrid.core.spec import JobSpec, ProviderSpec, ScalingPolicy
from elasticgrid.log.archive import ArchiveWriter, SampleRange
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload

JOB_FILE = """\
name: train
run: python train.py
nodes: {min: 1, max: 4}
"""
SIMULATED_PROVIDERS = (
    ProviderSpec(name="spot", max_nodes=2, market="spot", price_microdollars_per_hour=500_000),
    ProviderSpec(name="dear", max_nodes=6, price_microdollars_per_hour=2_000_000),
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The gateways of these tests share a process with the commands, whose output is looked at."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder, a home and an environment of the test's own."""
    for name in [name for name in os.environ if name.startswith("ELASTICGRID_")]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    work = tmp_path / "work"
    home.mkdir()
    work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line."""

    def run_main(*arguments: str | Path) -> Ended:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Ended(code, *capsys.readouterr())

    return run_main


@pytest.fixture
def job_file(folder: Path) -> Path:
    path = folder / "job.yaml"
    path.write_text(JOB_FILE)
    return path


@pytest.fixture
def data_dir(folder: Path) -> Path:
    """Where commands look when they are told nothing."""
    return folder / ".elasticgrid"


@pytest.fixture
def grid(data_dir: Path) -> Iterator[GridThread]:
    """A grid of two providers and no jobs."""
    with GridThread(data_dir) as running:
        yield running


@pytest.fixture(scope="session")
def history() -> SimulatedGrid:
    """A grid in which one job grew, shrank and completed."""
    policy = ScalingPolicy(
        cooldown_up_ms=30_000,
        cooldown_down_ms=60_000,
        reversal_ms=60_000,
        target_tokens_per_s=5_000,
        default_restart_ms=10_000,
        min_evidence_ms=10_000,
        max_restart_ppm=1_000_000,
        max_changes_per_hour=30,
    )
    simulated = SimulatedGrid(SIMULATED_PROVIDERS)
    spec = JobSpec(name="train", command=("python", "train.py"), min_nodes=1, max_nodes=4, scaling=policy)
    key = simulated.submit(spec, Workload(total_steps=300, demand=((150_000, 4), (1, 1))), tenant="default")
    simulated.run()
    assert simulated.job(key).phase == "completed"
    return simulated


@pytest.fixture
def past(data_dir: Path, history: SimulatedGrid) -> Iterator[GridThread]:
    """A grid whose log is that history, sequence by sequence."""
    with GridThread(data_dir, None, recorded=history.recorded) as running:
        yield running


@pytest.fixture
def archive(tmp_path: Path, history: SimulatedGrid) -> Path:
    """The same history as an archive with its samples."""
    path = tmp_path / "history.egz"
    held = SampleRange(0, history.evidence.sequence)
    with ArchiveWriter(path, created_ms=history.now_ms, samples=held) as writer:
        for recorded in history.recorded:
            writer.add_event(recorded)
        for message in history.samples:
            writer.add_samples(message)
    return path
