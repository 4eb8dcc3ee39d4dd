"""What the gateway's fields and parameters are called on the command line, for what it says of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

#: Names that no job file has: there they mean what they say.
FLAGS: Final[Mapping[str, str]] = {
    "ttl_s": "--ttl",
    "expires_ms": "--ttl",
    "whole_grid": "--whole-grid",
    "rate_per_s": "--rate",
    "burst": "--burst",
    "accelerator_hours": "--accelerator-hours",
    "microdollars": "--dollars",
    "period_s": "--period-hours",
    "notice_s": "--notice-s",
    "since_ms": "--since",
    "until_ms": "--until",
    "with_samples": "--with-samples",
    "dry_run": "--dry-run",
    "Idempotency-Key": "--idempotency-key",
}
_NAMES: Final = re.compile(rf"(?<![\w-])(?:{'|'.join(FLAGS)})(?![\w-])")
#: The same of whole places, where a word of a sentence would mean something else.
_PLACES: Final[Mapping[str, str]] = {
    **{name: f"--{name}" for name in ("phase", "scope", "label", "note", "reason", "rank", "round", "node", "lines")},
    "period": "--period",
    "tenant": "--tenant",
}


def flag_of(where: str) -> str:
    """A field or parameter as its flag; what is neither stays."""
    return FLAGS.get(where) or _PLACES.get(where, where)


def with_flags(text: str) -> str:
    """A sentence of the gateway's that names flags and not fields."""
    return _NAMES.sub(lambda match: FLAGS[match[0]], text)
