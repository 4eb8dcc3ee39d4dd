"""What an archive looks like: its lines, its hash chain and its limits.

An archive is a sequence of zstd frames, each a whole number of lines. A line is one record::

    <chain> <kind> <number> <the record's own fields>\n

`chain` is the first 32 hex digits of the SHA-256 of the chain of the line before (32 zeros before the first) and of
everything behind the chain in this line. `number` counts the lines from 0. The kinds:

    H <JSON>                              the header, always line 0 and alone in its frame
    E <sequence> <recorded_ms> <event>    an event, its exact bytes
    R <sequence> <recorded_ms> <event>    an event out of which a credential was taken
    S <sequence> <time_ms> <subject> <base64>    a message of step samples
    F <JSON>                              the footer, always the last line

An event whose bytes contain a line feed, or begin with `=`, is written as `=` and their base64.

Before every frame but the header's stands its seal, which lets a reader prove all lines of the frame at once. It is a
skippable frame, nothing to whoever only decompresses: three little-endian words of four bytes (the magic, 36, the
compressed length of the frame) and the SHA-256 of the chain of the line before and the compressed frame. A frame
without a seal, or with one that does not hold, is proven line by line.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from typing import Annotated, Final

import msgspec

FORMAT: Final = "elasticgrid-archive"
FORMAT_VERSION: Final = 1
SUFFIX: Final = ".egz"

#: The longest line. The bus carries no message of more than 256 KiB.
MAX_LINE_BYTES: Final = 1 << 20
#: About as many bytes of lines go into one frame, and that is what a damaged byte can cost: an eighth of what stands
#: before it, so that little is lost of a short archive and a long one stays small, but no less and no more than this.
FRAME_BYTES: Final = 16 << 10
MAX_FRAME_BYTES: Final = 1 << 20
_FRAME_PART: Final = 8
#: A frame that wants a larger window than this was not written by us.
MAX_WINDOW_BYTES: Final = 8 << 20

CHAIN_START: Final = b"0" * 32
CHAIN_BYTES: Final = 32

#: A longer compressed frame, or one of more bytes of lines than this, is never read at once.
MAX_SEALED_BYTES: Final = MAX_FRAME_BYTES + MAX_LINE_BYTES
SEAL_MAGIC: Final = b"\x5e\x2a\x4d\x18"
_SEAL: Final = struct.Struct("<4sII32s")
SEAL_BYTES: Final = _SEAL.size

_Count = Annotated[int, msgspec.Meta(ge=0)]


class ArchiveFilters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which part of a log an archive holds; all of it by default.

    Attributes:
        tenant, job: only events and samples of these.
        since_ms, until_ms: only what was recorded from (inclusive) and until (exclusive), Unix milliseconds; see
            `context`.
        context: what the part from `since_ms` is folded from is there as well: the earlier events of every job that is
            in it, the earlier facts about the grid, and samples from where the jobs' rounds of then began.
    """

    tenant: str = "*"
    job: str = "*"
    since_ms: int | None = None
    until_ms: int | None = None
    context: bool = False

    @property
    def everything(self) -> bool:
        """Whether the log is there from its first event, with nothing left out."""
        return (self.tenant, self.job, self.since_ms) == ("*", "*", None)


class SampleRange(msgspec.Struct, frozen=True):
    """The part of the samples stream an archive holds: after < sequence <= through.

    Older samples than `after` had aged out when it was written.
    """

    after: _Count
    through: _Count


class SequenceGap(msgspec.Struct, frozen=True):
    """Where records of a stream are missing from a damaged archive: after < sequence < before (None: to the end)."""

    after: int
    before: int | None = None


class SampleCoverage(msgspec.Struct, frozen=True):
    """Which samples are at hand: a part of the stream, but for what damage has taken out of it."""

    held: SampleRange = SampleRange(0, (1 << 63) - 1)
    gaps: tuple[SequenceGap, ...] = ()

    def covers(self, after: int, through: int) -> bool:
        """Whether every sample with after < sequence <= through is there."""
        if after < self.held.after or through > self.held.through:
            return False
        return not any(
            gap.after < through and (gap.before is None or gap.before - 1 > after) and after < through
            for gap in self.gaps
        )


class ArchiveHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first record.

    Attributes:
        format, version: of the archive itself.
        software: version of elasticgrid that wrote it.
        created_ms: when, Unix milliseconds.
        schema_versions: of every event type, as the writer knew them.
        sample_version: of sample messages.
        samples: which samples are inside; None when none were asked for.
    """

    format: str = FORMAT
    version: int = FORMAT_VERSION
    software: str
    created_ms: int
    schema_versions: dict[str, int]
    sample_version: int
    filters: ArchiveFilters = ArchiveFilters()
    samples: SampleRange | None = None


class ArchiveFooter(msgspec.Struct, frozen=True, kw_only=True):
    """The last record: what there must have been.

    Attributes:
        events, samples: how many of each.
        redacted: events out of which a credential was taken; their bytes are not the log's.
        first_sequence, last_sequence: of the events; 0 when there are none.
        chain: of the record before.
    """

    events: _Count
    samples: _Count
    redacted: _Count
    first_sequence: _Count
    last_sequence: _Count
    chain: str


class SampleMessage(msgspec.Struct, frozen=True):
    """A message of step samples as it stands in the samples stream.

    Attributes:
        sequence: its place, from 1.
        time_ms: the server's clock when it was stored, Unix milliseconds.
        subject: whose it is.
        data: one encoded `SampleBatch`.
    """

    sequence: int
    time_ms: int
    subject: str
    data: bytes


class MissingRecords(msgspec.Struct, frozen=True):
    """What a salvage could not prove: records `first` to `last` (None: to the end), and why.

    `offset` is where it began, in bytes of the uncompressed lines that could be read.
    """

    first: int
    last: int | None
    offset: int
    why: str

    def text(self) -> str:
        """The same in words."""
        which = f"record {self.first}" if self.last == self.first else f"records {self.first} to {self.last}"
        if self.last is None:
            which = f"everything from record {self.first} on"
        return f"{which}, at byte {self.offset} of its lines: {self.why}"


def frame_bytes(before: int) -> int:
    """So many bytes of lines end a frame that has this many before it."""
    return min(max(before // _FRAME_PART, FRAME_BYTES), MAX_FRAME_BYTES)


def next_chain(previous: bytes, body: bytes) -> bytes:
    """The chain of a line with this body (everything behind its chain and the space), in ASCII."""
    return hashlib.sha256(previous + body).hexdigest()[:CHAIN_BYTES].encode()


def seal_digest(chain: bytes, frame: bytes) -> bytes:
    """What a seal says of a compressed frame that follows a line with this chain."""
    return hashlib.sha256(chain + frame).digest()


def seal(chain: bytes, frame: bytes) -> bytes:
    """The seal of a compressed frame that follows a line with this chain."""
    return _SEAL.pack(SEAL_MAGIC, _SEAL.size - 8, len(frame), seal_digest(chain, frame))


def read_seal(data: bytes) -> tuple[int, bytes] | None:
    """The compressed length of the frame and its digest, if these `SEAL_BYTES` are a seal."""
    if len(data) != _SEAL.size:
        return None
    magic, size, length, digest = _SEAL.unpack(data)
    return (length, digest) if magic == SEAL_MAGIC and size == _SEAL.size - 8 else None


def pack(data: bytes) -> bytes:
    """Event bytes as they stand in a line."""
    if b"\n" in data or data[:1] == b"=":
        return b"=" + base64.b64encode(data)
    return data


def unpack(payload: bytes) -> bytes:
    """The event bytes in a line.

    Raises:
        ValueError: marked as base64 and is not.
    """
    if payload[:1] == b"=":
        return from_base64(payload[1:])
    return payload


def from_base64(payload: bytes) -> bytes:
    """The decoded bytes.

    Raises:
        ValueError: it is not base64.
    """
    try:
        return base64.b64decode(payload, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
