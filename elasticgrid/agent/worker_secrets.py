"""A job's secrets as variables of its workers: read from private files when workers start, and kept nowhere."""

from __future__ import annotations

from pathlib import Path

from elasticgrid.core.spec import SECRET_FILE_ENDING


def worker_secrets(folder: Path | None) -> dict[str, str]:
    """For each file in the folder the variable it is called as, without the file's last line end, and its path's.

    Raises:
        OSError: the folder, or a file in it, cannot be read.
        UnicodeDecodeError: a file is no text.
    """
    variables = {}
    for path in sorted(folder.iterdir()) if folder is not None else ():
        if not path.name.startswith("."):
            variables[path.name] = _without_line_end(path.read_bytes().decode())
            variables[f"{path.name}{SECRET_FILE_ENDING}"] = str(path)
    return variables


def _without_line_end(text: str) -> str:
    """Editors put one at the end, and no secret has one there."""
    return text.removesuffix("\n").removesuffix("\r")
