"""The example job: where it is, in a checkout or installed, and a copy of it for one run."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from elasticgrid.config.grid_file import read_grid
from elasticgrid.config.job_file import read_job
from elasticgrid.core.errors import InvalidInput, NotFound
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


def checked_example(example: Path | None) -> Path:
    """The folder that is shown, with a job file and a grid file that can be read.

    Args:
        example: a folder to show instead of the example's.

    Raises:
        NotFound: there is no such folder, or one of the files is not in it.
        InvalidInput: one of them is wrong.
    """
    source = example if example is not None else example_folder()
    if not source.is_dir():
        raise NotFound("there is no such folder", where=str(source))
    _read_job(source)
    read_grid(source / "grid.yaml")
    return source


def prepare(example: Path | None, data_dir: Path) -> tuple[Path, JobSpec]:
    """The run's own copy of the example, and its job.

    Args:
        example: as `checked_example`.
        data_dir: the run's folder.

    Raises:
        NotFound: as `checked_example`.
        InvalidInput: likewise, or a file in the folder cannot be copied.
    """
    folder = data_dir / "example"
    _copy(checked_example(example), folder, without=data_dir)
    return folder, _read_job(folder)


def _read_job(folder: Path) -> JobSpec:
    return read_job(folder / "job.yaml", submitted_ms=time.time_ns() // 1_000_000)


def _copy(source: Path, folder: Path, *, without: Path) -> None:
    """The example's files, readable for this user alone whatever they were before; nothing of `without`."""
    unwanted = shutil.ignore_patterns("__pycache__", ".*")
    itself = without.resolve()

    def left_out(where: str, names: list[str]) -> set[str]:
        return unwanted(where, names) | {name for name in names if Path(where, name).resolve() == itself}

    try:
        shutil.copytree(source, folder, ignore=left_out)
    except shutil.Error as error:
        (path, _, why), *others = error.args[0]
        more = f"; nor can {len(others)} more files" if others else ""
        raise InvalidInput(f"this file of the example cannot be copied: {why}{more}", where=str(path)) from error
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode & 0o700)
