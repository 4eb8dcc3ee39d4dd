"""What is said about a job before it is submitted: what looks like a secret, and what of it a launcher would refuse."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from elasticgrid.cli.output import say
from elasticgrid.core.errors import InvalidJob
from elasticgrid.core.spec import JobSpec

#: Of the work folder at most so much is looked at, so that nobody waits for it.
MOST_ENTRIES: Final = 20_000
#: More sentences than these nobody reads.
MOST_TOLD: Final = 20


def warn_of_job(spec: JobSpec) -> None:
    """Say it, a line each; nothing of a file that is not on this machine."""
    warnings = [*_of_values(spec), *_of_secrets(spec), *_of_folder(spec)]
    for warning in warnings[:MOST_TOLD]:
        say(f"warning: {warning}")
    if len(warnings) > MOST_TOLD:
        say(f"warning: and {len(warnings) - MOST_TOLD} more")


def _of_values(spec: JobSpec) -> tuple[str, ...]:
    from elasticgrid.config.checks import job_warnings

    return job_warnings(spec)


def _of_secrets(spec: JobSpec) -> Iterator[str]:
    from elasticgrid.launcher.secret_files import read_secret

    for variable, path in spec.secrets.items():
        if not os.path.exists(path):
            continue
        try:
            read_secret(variable, Path(path))
        except InvalidJob as error:
            yield f"here the launcher would refuse the job: {error}"


def _of_folder(spec: JobSpec) -> Iterator[str]:
    from elasticgrid.launcher.bundle import contents

    workdir = Path(spec.workdir)
    if not workdir.is_dir():
        return
    try:
        found = contents(workdir, spec.file_mounts, without=map(Path, spec.secrets.values()), most_entries=MOST_ENTRIES)
    except InvalidJob as error:
        yield f"nodes that work in a copy of the folder cannot have one: {error}"
        return
    for warning in found.warnings:
        yield f"in the copy of {workdir} for nodes, {warning}"
    if len(found.entries) >= MOST_ENTRIES:
        yield f"only the first {MOST_ENTRIES:,} files of {workdir} were looked at"
