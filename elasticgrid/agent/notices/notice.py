"""A notice, and what every source of notices offers."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from elasticgrid.core.events import NoticeSource

#: How much of what a source said is kept.
TEXT_LENGTH: Final = 2_048


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """The node will be taken away.

    Attributes:
        deadline_ms: when it will be gone, Unix milliseconds; 0 when no time was given.
        text: what the source said, raw.
    """

    source: NoticeSource
    deadline_ms: int
    text: str


class Source(Protocol):
    """Something that can be asked whether the node will be taken away."""

    @property
    def pause_s(self) -> float:
        """How long to wait between two questions."""
        ...

    async def look(self) -> Notice | None:
        """The notice there is now, the most pressing one of several; None while there is none.

        Raises:
            SourceTrouble: no usable answer; to be asked again.
        """
        ...

    async def node_left(self) -> None:
        """Nothing of the job runs on the node any more: the source need not wait for it.

        Raises:
            SourceTrouble: it could not be told.
        """
        ...


class SourceTrouble(Exception):  # noqa: N818 - it says nothing of the node, so it ends in a log line and no further
    """A source that could not be asked, or whose answer is none."""
