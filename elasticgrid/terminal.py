"""Whether a person at a terminal wants to see colour and movement there."""

from __future__ import annotations

import os
from typing import TextIO


def is_plain(stream: TextIO) -> bool:
    """Whether both are unwanted: the stream is no terminal, or there is `NO_COLOR`, or `TERM=dumb`."""
    return not stream.isatty() or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
