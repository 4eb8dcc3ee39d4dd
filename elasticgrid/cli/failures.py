"""From exceptions to exit codes."""

from __future__ import annotations

from elasticgrid.core.errors import (
    CannotPlace,
    ElasticGridError,
    InvalidInput,
    NotAllowed,
    NotFound,
    ReplayDiverged,
)

OK = 0
FAILED = 1
INVALID = 2
NOT_FOUND = 3
CANNOT_PLACE = 4
DIVERGED = 5
INTERRUPTED = 130

_CODES: tuple[tuple[type[ElasticGridError], int], ...] = (
    (InvalidInput, INVALID),
    (NotFound, NOT_FOUND),
    (NotAllowed, NOT_FOUND),
    (CannotPlace, CANNOT_PLACE),
    (ReplayDiverged, DIVERGED),
)


def exit_code(error: ElasticGridError) -> int:
    """The exit code of a command that ended with this error."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return FAILED
