"""Files that processes write their output to: their ends, how parts of them may be cut, and what older ones are called.

This module is sent to nodes as it stands and runs there with Python 3.10 and nothing installed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

#: How much of the end of a file is looked at for its last lines.
TAIL_BYTES: Final = 65_536


def older_name(name: str, number: int) -> str:
    """What an output file is called when it is the `number`th before the one that grows, from 1."""
    return f"{name}.{number}"


def passed_name(name: str) -> str:
    """The file beside an output file that says how many bytes of the output came before that one, in decimal digits.

    It is not there until an older file was begun. Whoever changes which file holds what has an exclusive lock (flock)
    on the one that grows, and whoever reads several of them a shared one.
    """
    return f"{name}.passed"


def tail_of(path: Path, lines: int, max_bytes: int = TAIL_BYTES) -> str:
    """The last lines of a file, at most `max_bytes`; empty when it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - max_bytes))
            text = file.read(max_bytes).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def whole_lines(data: bytes) -> int:
    """How much of `data` is lines that have ended: with a line feed, or as progress bars do with a carriage return.

    A carriage return at the very end is not counted: a line feed may follow.
    """
    return max(data.rfind(b"\n"), data.rfind(b"\r", 0, max(len(data) - 1, 0))) + 1


def whole_characters(data: bytes) -> int:
    """How much of `data` ends with a whole character of UTF-8; what is no UTF-8 is left as it is."""
    for back in range(1, min(len(data), 3) + 1):
        byte = data[-back]
        if byte & 0b1100_0000 == 0b1000_0000:
            continue
        length = 4 if byte >= 0b1111_0000 else 3 if byte >= 0b1110_0000 else 2 if byte >= 0b1100_0000 else 1
        return len(data) - back if length > back else len(data)
    return len(data)
