"""Runs the example trainer as processes, without a control plane."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "elastic_numpy"

World = Callable[..., list[str]]


@pytest.fixture
def example_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))


@pytest.fixture
def run_world(tmp_path: Path) -> Iterator[World]:
    """Run a world of the trainer to its end in `tmp_path`, as an agent would; returns each rank's output."""
    running: list[subprocess.Popen[str]] = []

    def run(
        size: int,
        *options: str,
        round: int = 1,  # noqa: A002 - the word of the whole protocol
        resume_step: int = 0,
        resume_uri: str = "",
    ) -> list[str]:
        ranks = [
            subprocess.Popen(
                [sys.executable, str(EXAMPLE / "train.py"), *options],
                env={
                    **os.environ,
                    "OPENBLAS_NUM_THREADS": "1",
                    "RANK": str(rank),
                    "WORLD_SIZE": str(size),
                    "GROUP_WORLD_SIZE": str(size),
                    "ELASTICGRID_ROUND": str(round),
                    "ELASTICGRID_RENDEZVOUS_DIR": str(tmp_path / f"rendezvous-{round}"),
                    "ELASTICGRID_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
                    "ELASTICGRID_RESUME_STEP": str(resume_step),
                    "ELASTICGRID_RESUME_URI": resume_uri,
                },
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(size)
        ]
        running.extend(ranks)
        outputs = [process.communicate(timeout=60)[0] for process in ranks]
        for process, output in zip(ranks, outputs, strict=True):
            assert process.returncode == 0, output
        return outputs

    yield run
    for process in running:
        if process.poll() is None:
            process.kill()
            process.wait()
