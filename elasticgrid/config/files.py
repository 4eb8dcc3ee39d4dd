"""Reading a configuration file from disk, never more of it than is allowed."""

from __future__ import annotations

from pathlib import Path

from elasticgrid.config.document import MAX_BYTES
from elasticgrid.core.errors import InvalidInput, NotFound


def read_source(path: Path, error: type[InvalidInput]) -> bytes:
    """The file's bytes, at most one more than `MAX_BYTES`.

    Raises:
        NotFound: there is no such file.
        InvalidInput: as `error`, when it is a folder or cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError as missing:
        raise NotFound(
            "there is no such file", where=str(path), hint="`elasticgrid init` writes an example"
        ) from missing
    except OSError as unreadable:
        raise error(f"the file cannot be read: {unreadable.strerror}", where=str(path)) from unreadable
