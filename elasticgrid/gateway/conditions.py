"""Requests that are only meant for things as they were seen: `If-Match` with the sequence that an answer had. Pure."""

from __future__ import annotations

import re
from typing import Annotated, Final, TypeAlias

from litestar.params import HeaderParameter

from elasticgrid.core.errors import InvalidInput, Outdated

IfMatch: TypeAlias = Annotated[
    str | None,
    HeaderParameter(name="If-Match", description="the `ETag` of what was looked at; 412 if it has changed"),
]

_ETAG: Final = re.compile(r'(?:W/)?"?([0-9]{1,18})"?')


def etag(sequence: int) -> dict[str, str]:
    """The header of an answer that holds as of this sequence."""
    return {"ETag": f'"{sequence}"'}


def wanted_sequence(if_match: str | None) -> int | None:
    """The sequence that a request is meant for; None when it is for whatever there is.

    Raises:
        InvalidInput: the header is none that was given out.
    """
    if if_match is None or if_match.strip() == "*":
        return None
    match = _ETAG.fullmatch(if_match.strip())
    if match is None:
        raise InvalidInput("this is no ETag of an answer", where="If-Match", hint="send the one that came with it")
    return int(match[1])


def require_unchanged(wanted: int | None, sequence: int, where: str) -> None:
    """Refuse a request that was meant for something older.

    Raises:
        Outdated: it was.
    """
    if wanted is not None and wanted != sequence:
        raise Outdated(
            f"it has changed since {wanted}: it is at {sequence} now",
            sequence=sequence,
            where=where,
            hint="look at it again, then decide",
        )
