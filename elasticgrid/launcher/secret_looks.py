"""Files that look like secrets: by their names, or by how they begin."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from elasticgrid.core.secret_looks import why_name, why_text

#: Larger files are data.
_MAX_BYTES: Final = 1024 * 1024
_READ_BYTES: Final = 64 * 1024


def why(path: Path, size_bytes: int) -> str:
    """Why a file looks like a secret; empty when it does not. A file that cannot be read looks like none."""
    named = why_name(path.name)
    if named or size_bytes > _MAX_BYTES:
        return named
    try:
        with path.open("rb") as file:
            beginning = file.read(_READ_BYTES)
    except OSError:
        return ""
    return why_text(beginning)
