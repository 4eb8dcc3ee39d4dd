"""A what-if in a process of its own: it may take long and much, and whoever asked can end it.

Reads one request from its standard input and writes one answer to its standard output, both JSON.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from elasticgrid.core.errors import ElasticGridError
from elasticgrid.log.archive import ArchivedEvents, ArchivedSamples, read_header
from elasticgrid.log.archive_format import SampleCoverage
from elasticgrid.review.whatif import WhatIf, what_if
from elasticgrid.review.whatif_change import Change

_NICE: Final = 10


class WhatIfTask(msgspec.Struct, frozen=True, kw_only=True):
    """What to run.

    Attributes:
        archive: the file's path.
        scaling, placement: settings to change, by the core's field names.
        tenant, job: whose policy changes.
        memory_bytes, cpu_s: limits of the process.
    """

    archive: str
    scaling: dict[str, Any] = {}
    placement: dict[str, Any] = {}
    tenant: str
    job: str
    memory_bytes: int
    cpu_s: int


class WhatIfFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no answer."""

    code: str
    what: str
    where: str = ""
    hint: str = ""
    story: tuple[str, ...] = ()


class WhatIfOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, or why there is none."""

    answer: WhatIf | None = None
    failure: WhatIfFailure | None = None


def run_task(task: WhatIfTask) -> WhatIfOutcome:
    """Run it."""
    path = Path(task.archive)
    change = Change(
        scaling_values=_values(task.scaling), placement_values=_values(task.placement), job=(task.tenant, task.job)
    )
    try:
        held = read_header(path).samples
        coverage = SampleCoverage(held) if held is not None else SampleCoverage()
        return WhatIfOutcome(answer=what_if(ArchivedEvents(path), ArchivedSamples(path), change, coverage=coverage))
    except ElasticGridError as error:
        failure = WhatIfFailure(
            code=error.code, what=error.what, where=error.where, hint=error.hint, story=tuple(error.story)
        )
        return WhatIfOutcome(failure=failure)
    except MemoryError:
        return WhatIfOutcome(failure=WhatIfFailure(code="invalid_input", what="this takes more memory than it may"))


def _values(given: dict[str, Any]) -> dict[str, Any]:
    """As the policies have them: what JSON makes a list is a tuple there."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def main() -> None:
    """Run the request on standard input."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=WhatIfTask)
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_AS, (task.memory_bytes, task.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (task.cpu_s, task.cpu_s))
    sys.stdout.buffer.write(msgspec.json.encode(run_task(task)))


if __name__ == "__main__":
    main()
