"""The example job: where it is, in a checkout or installed, and a copy of it for one run."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from elasticgrid.config.job_file import read_job
from elasticgrid.core.errors import NotFound
from elasticgrid.core.spec import JobSpec

NAME = "elastic_numpy"


def example_folder() -> Path:
    """The folder of the example.

    Raises:
        NotFound: this installation has no examples.
    """
    package = Path(__file__).parent.parent
    for folder in (package / "examples" / NAME, package.parent / "examples" / NAME):
        if (folder / "job.yaml").is_file():
            return folder
    raise NotFound("the example job is not installed", where=NAME, hint="run the demonstration from a checkout")


def prepare(example: Path | None, data_dir: Path) -> tuple[Path, JobSpec]:
    """The run's own copy of the example, and its job.

    Args:
        example: a folder to show instead of the example's.
        data_dir: the run's folder.

    Raises:
        NotFound: there is no such folder.
        InvalidInput: its job file is wrong.
    """
    folder = data_dir / "example"
    _copy(example if example is not None else example_folder(), folder)
    return folder, read_job(folder / "job.yaml", submitted_ms=time.time_ns() // 1_000_000)


def _copy(source: Path, folder: Path) -> None:
    """The example's files, readable for this user alone whatever they were before."""
    if not source.is_dir():
        raise NotFound("there is no such folder", where=str(source))
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode & 0o700)
