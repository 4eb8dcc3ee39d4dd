"""What workers said of their own failure, in one line; and how the ends of a node's workers are told."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from elasticgrid.core.events import WorkerExit

#: What is put before a line that is only the last one a worker wrote, and need not have to do with its end.
LAST_OUTPUT: Final = "last output: "
#: What is said of workers that their agent ended.
STOPPED: Final = "stopped because of it"

#: Before each line of a traceback some programs write whose it is.
_RANK: Final = re.compile(r"^\[rank ?\d+\]:? ?", re.IGNORECASE)
#: A place in a traceback of Python's; its beginning may be missing where only the last lines were kept.
_PLACE: Final = re.compile(r'^\s+File ".*", line \d+')


def message_of(told: WorkerExit) -> str:
    """What a worker said of its own failure, in one line; empty when it wrote nothing at all.

    It is the last line of its error file, or the error at the end of the last traceback in its output. Without either
    it is its last line, marked as such. Of one that was stopped there is none: what it wrote last is no cause.
    """
    if told.message.strip():
        return told.message.strip().splitlines()[-1].strip()
    if told.state == "STOPPED":
        return ""
    lines = [_RANK.sub("", line) for line in told.last_lines.splitlines()]
    places = [number for number, line in enumerate(lines) if _PLACE.match(line)]
    if places:
        errors = (line for line in lines[places[-1] + 1 :] if line[:1].strip())
        if error := next(errors, "").strip():
            return error
    last = told.last_lines.strip().splitlines()[-1:]
    return f"{LAST_OUTPUT}{last[0].strip()}" if last else ""


def exits_text(exits: Sequence[WorkerExit]) -> str:
    """How a node's workers ended, the first failure first, in a sentence without what they said."""
    stopped = sorted(each.rank for each in exits if each.state == "STOPPED")
    parts = [f"rank {each.rank}: {each.code}" for each in exits if each.state != "STOPPED"]
    if stopped:
        ranks = ", ".join(map(str, stopped))
        parts.append(f"rank{'s' * (len(stopped) > 1)} {ranks} {'were' if len(stopped) > 1 else 'was'} {STOPPED}")
    return ", ".join(parts)
