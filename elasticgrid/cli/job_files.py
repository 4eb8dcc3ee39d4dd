"""The job file of `submit` and `validate`: read, with what of it is not honoured told, and its folders looked for."""

from __future__ import annotations

import ipaddress
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from elasticgrid.cli.output import say

if TYPE_CHECKING:
    from elasticgrid.core.spec import JobSpec


def read_job_file(file: Path, flags: Mapping[str, str | None]) -> JobSpec:
    """The job in a job file or a SkyPilot task file; what of the latter is not honoured is said.

    Args:
        file: where it is.
        flags: those given that say where the gateway is, by setting. Where that is this machine, so are the job's
            folders, and they have to be there; elsewhere they are looked for when the job is launched.

    Raises:
        NotFound: there is no such file.
        InvalidJob: the file is wrong, or names a folder that is not there.
    """
    from elasticgrid.config.settings import resolve
    from elasticgrid.config.skypilot_file import read_job_or_task

    spec, notes = read_job_or_task(file, submitted_ms=time.time_ns() // 1_000_000)
    for note in notes:
        say(f"not honoured: {note}")
    if _is_here(resolve(flags, os.environ, folder=Path.cwd()).gateway_url.value):
        _require_folders(spec, file)
    return spec


def _is_here(gateway_url: str) -> bool:
    """Whether the gateway is on this machine; without a name it is the one that the data folder tells of."""
    if not gateway_url:
        return True
    try:
        host = urlsplit(gateway_url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _require_folders(spec: JobSpec, file: Path) -> None:
    from elasticgrid.config.document import load
    from elasticgrid.config.files import read_source
    from elasticgrid.config.problems import Problems
    from elasticgrid.core.errors import InvalidJob

    missing = tuple(_missing(spec))
    if not missing:
        return
    problems = Problems(str(file))
    root = load(read_source(file, InvalidJob), problems)
    for field, path in missing:
        line = root.line_of(field) if root is not None else 1
        problems.add(line, field, f"{path} is not there", "a relative path is looked for beside this file")
    problems.raise_as(InvalidJob)


def _missing(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Fields whose folder or file is not there."""
    if not os.path.isdir(spec.workdir):
        yield "workdir", f"the folder {spec.workdir}"
    for place, source in spec.file_mounts.items():
        if not os.path.exists(source):
            yield f"file_mounts.{place}", source
    for variable, path in spec.secrets.items():
        if _is_gone(path):
            yield f"secrets.{variable}", path


def _is_gone(path: str) -> bool:
    """Whether there is no such file. One in a folder that is closed to whoever submits the launcher may see."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
