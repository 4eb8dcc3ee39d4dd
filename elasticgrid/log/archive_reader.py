"""Reading an archive: every record proven against the chain before it is handed out, in constant memory.

`read_archive` stops at the first thing that is wrong and names it. With `salvage` it goes on behind the damage: a
record is handed out when the chain from the record before it holds, and everything between is reported as missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeAlias

import msgspec
import zstandard

from elasticgrid.core.errors import ArchiveDamaged, NotFound, UndecodableEvent
from elasticgrid.core.events import Recorded
from elasticgrid.log.archive_format import (
    CHAIN_BYTES,
    CHAIN_START,
    FORMAT,
    FORMAT_VERSION,
    MAX_LINE_BYTES,
    MAX_WINDOW_BYTES,
    ArchiveFooter,
    ArchiveHeader,
    MissingRecords,
    SampleMessage,
    from_base64,
    next_chain,
    unpack,
)
from elasticgrid.log.codec import decode

ArchiveRecord: TypeAlias = ArchiveHeader | Recorded | SampleMessage | ArchiveFooter | MissingRecords

_MAGIC = b"\x28\xb5\x2f\xfd"
_NUMBERED = re.compile(rb"[0-9a-f]{32} [A-Z] ([0-9]{1,18}) ")
_READ_BYTES = 1 << 16
#: So few compressed bytes are given to the decompressor at once, because each four of them may stand for 128 KiB.
_FEED_BYTES = 1 << 10

_WHOLE_HINT = "get the file again, or read what is still good with --salvage"
_FOREIGN_HINT = "an archive is what `elasticgrid events export` writes"

_header = msgspec.json.Decoder(ArchiveHeader)
_footer = msgspec.json.Decoder(ArchiveFooter)


class _DamageError(Exception):
    """A line or a frame that cannot be what was written; the text says why."""


class _Head(msgspec.Struct):
    """What every version of the header has."""

    format: str
    version: int
    software: str = ""


def read_archive(path: str | os.PathLike[str], *, salvage: bool = False) -> Iterator[ArchiveRecord]:
    """Yield the archive's records in order: the header, events and samples, the footer.

    Args:
        path: the file.
        salvage: go on behind damage, with a `MissingRecords` in place of what could not be proven.

    Raises:
        NotFound: there is no such file.
        ArchiveDamaged: foreign, of a later version, truncated, changed or out of order; names record and offset. With
            `salvage` only when nothing at all can be read.
    """
    path = Path(path)
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise NotFound(f"there is no archive {path}", hint="give the file's path") from error
    except OSError as error:
        raise ArchiveDamaged(f"the archive cannot be opened: {error.strerror}", where=str(path)) from error
    with file:
        yield from _Reader(path, file, salvage).records()


def read_header(path: str | os.PathLike[str]) -> ArchiveHeader:
    """The archive's header, without reading the rest.

    Raises:
        NotFound, ArchiveDamaged: as `read_archive`.
    """
    for record in read_archive(path):
        if isinstance(record, ArchiveHeader):
            return record
    raise AssertionError("the first record is the header")


class _Reader:
    """One pass over one file."""

    def __init__(self, path: Path, file: BinaryIO, salvage: bool) -> None:
        self._path = path
        self._file = file
        self._salvage = salvage
        self._offset = 0
        self._number = 0
        #: What the chain may be before the next line; several when it is not certain, none after unreadable bytes.
        self._chains: tuple[bytes, ...] = (CHAIN_START,)
        self._certain = True
        self._lost_offset = 0
        self._lost_why = ""
        self._events = self._samples = self._redacted = 0
        self._first_sequence = self._last_sequence = self._last_sample = 0
        self._proven = 0
        self._ended = False

    def records(self) -> Iterator[ArchiveRecord]:
        """Every record that is proven, and in a salvage what is missing between them."""
        for line in self._lines():
            if isinstance(line, _DamageError):
                self._lose(str(line))
                self._chains = ()
                continue
            recorded = self._next_event(line)
            if recorded is not None:
                yield recorded
            else:
                yield from self._record(line)
            self._offset += len(line) + 1
        if not self._ended:
            if self._certain:
                self._lose("the end is missing" if self._proven else "this file is not an elasticgrid archive")
            if not self._proven:
                raise ArchiveDamaged(
                    f"nothing in this file can be read as an archive: {self._lost_why}",
                    where=str(self._path),
                    hint=_FOREIGN_HINT,
                )
            yield MissingRecords(self._number, None, self._lost_offset, self._lost_why)

    def _next_event(self, line: bytes) -> Recorded | None:
        """The plain case, quickly: an event that follows. None for anything else, which is left to `_record`."""
        if not self._certain or self._ended or line[CHAIN_BYTES : CHAIN_BYTES + 3] != b" E ":
            return None
        body = line[CHAIN_BYTES + 1 :]
        chain = next_chain(self._chains[0], body)
        if not line.startswith(chain) or len(line) > MAX_LINE_BYTES:
            return None
        try:
            _, number, sequence_text, time_text, payload = body.split(b" ", 4)
            sequence = int(sequence_text)
            if int(number) != self._number or sequence <= self._last_sequence or payload.startswith(b"="):
                return None
            recorded = Recorded(sequence, int(time_text), decode(payload), payload)
        except (ValueError, UndecodableEvent):
            return None
        self._chains = (chain,)
        self._number += 1
        self._proven += 1
        self._events += 1
        self._first_sequence = self._first_sequence or sequence
        self._last_sequence = sequence
        return recorded

    def _record(self, line: bytes) -> Iterator[ArchiveRecord]:
        chain, body = line[:CHAIN_BYTES], line[CHAIN_BYTES + 1 :]
        computed = [next_chain(previous, body) for previous in self._chains]
        if chain not in computed or self._ended or len(line) > MAX_LINE_BYTES:
            self._lose(self._why_unproven(line))
            # Either the line's body or its chain was changed, or lines before it are missing: the next line tells.
            self._chains = (chain, *computed)
            return
        try:
            number, record = self._parse(body)
        except _DamageError as error:
            self._lose(str(error))
            self._chains = (chain,)
            return
        if not self._certain:
            yield MissingRecords(self._number, number - 1, self._lost_offset, self._lost_why)
        self._certain = True
        self._chains = (chain,)
        self._number = number + 1
        self._proven += 1
        self._ended = isinstance(record, ArchiveFooter)
        yield record

    def _lose(self, why: str) -> None:
        """Note that what comes now is not proven; without salvage, that is the end."""
        if not self._salvage:
            raise ArchiveDamaged(
                why,
                where=f"{self._path}: record {self._number} at byte {self._offset} of its lines",
                hint=_WHOLE_HINT if self._proven or self._offset else _FOREIGN_HINT,
            )
        if self._certain:
            self._certain = False
            self._lost_offset = self._offset
            self._lost_why = why

    def _why_unproven(self, line: bytes) -> str:
        if self._ended:
            return "it follows the footer"
        if len(line) > MAX_LINE_BYTES:
            return f"it is longer than the {MAX_LINE_BYTES:,} bytes a record may have"
        if self._number == 0 and not self._proven:
            self._look_at_head(line)
        numbered = _NUMBERED.match(line)
        if numbered is not None and int(numbered[1]) != self._number:
            return f"record {int(numbered[1])} stands here: records are missing or out of order"
        return "it was changed after it was written"

    def _look_at_head(self, line: bytes) -> None:
        """Tell a foreign file and a later version from damage. Nothing of either may be guessed at, salvage or not."""
        where = f"{self._path}: record 0 at byte 0 of its lines"
        try:
            head = msgspec.json.decode(line[line.index(b"{") :], type=_Head)
        except (ValueError, msgspec.MsgspecError):
            head = _Head(format="", version=0)
        if head.format != FORMAT and not self._salvage:
            raise ArchiveDamaged("this file is not an elasticgrid archive", where=where, hint=_FOREIGN_HINT)
        if head.format == FORMAT and head.version > FORMAT_VERSION:
            raise ArchiveDamaged(
                f"the archive is of format version {head.version}, this software reads up to {FORMAT_VERSION}",
                where=where,
                hint=f"read it with elasticgrid {head.software} or later",
            )

    # ----------------------------------------------------------------------------------------------------------------
    # What a line says
    # ----------------------------------------------------------------------------------------------------------------

    def _parse(self, body: bytes) -> tuple[int, ArchiveRecord]:
        try:
            kind, number_text, rest = body.split(b" ", 2)
            number = int(number_text)
            if number < self._number or (self._certain and number != self._number):
                raise _DamageError(f"it is numbered {number}")
            if kind in (b"E", b"R"):
                return number, self._event(kind, rest)
            if kind == b"S":
                return number, self._sample(rest)
            if kind == b"H":
                return number, self._read_header(number, rest)
            if kind == b"F":
                return number, self._read_footer(rest)
        except (ValueError, msgspec.MsgspecError) as error:
            raise _DamageError(f"it cannot be read: {error}") from error
        except UndecodableEvent as error:
            raise _DamageError(f"its event cannot be read: {error}") from error
        raise _DamageError(f"it is of an unknown kind {kind[:16]!r}")

    def _event(self, kind: bytes, rest: bytes) -> Recorded:
        sequence_text, time_text, payload = rest.split(b" ", 2)
        raw = unpack(payload)
        recorded = Recorded(int(sequence_text), int(time_text), decode(raw), raw)
        if recorded.sequence <= self._last_sequence:
            raise _DamageError(f"event {recorded.sequence} comes after event {self._last_sequence}")
        self._events += 1
        self._redacted += kind == b"R"
        self._first_sequence = self._first_sequence or recorded.sequence
        self._last_sequence = recorded.sequence
        return recorded

    def _sample(self, rest: bytes) -> SampleMessage:
        sequence_text, time_text, subject, payload = rest.split(b" ", 3)
        message = SampleMessage(int(sequence_text), int(time_text), subject.decode("ascii"), from_base64(payload))
        if message.sequence <= self._last_sample:
            raise _DamageError(f"samples message {message.sequence} comes after {self._last_sample}")
        self._samples += 1
        self._last_sample = message.sequence
        return message

    def _read_header(self, number: int, rest: bytes) -> ArchiveHeader:
        if number != 0:
            raise _DamageError("a second header")
        self._look_at_head(rest)
        return _header.decode(rest)

    def _read_footer(self, rest: bytes) -> ArchiveFooter:
        footer = _footer.decode(rest)
        if self._certain and self._proven == self._number:
            counted = (self._events, self._samples, self._redacted, self._first_sequence, self._last_sequence)
            said = (footer.events, footer.samples, footer.redacted, footer.first_sequence, footer.last_sequence)
            if counted != said:
                raise _DamageError(
                    f"the footer says {said} (events, samples, redacted, first, last), there were {counted}"
                )
        return footer

    # ----------------------------------------------------------------------------------------------------------------
    # Lines out of frames
    # ----------------------------------------------------------------------------------------------------------------

    def _lines(self) -> Iterator[bytes | _DamageError]:
        """Lines without their line feed; a `_DamageError` where bytes are lost."""
        rest = b""
        for piece in self._pieces():
            if isinstance(piece, _DamageError):
                # Lines that ended before the damage are still worth looking at; the one it cut is not.
                rest = b""
                yield piece
                continue
            lines = (rest + piece).split(b"\n")
            rest = lines.pop()
            yield from lines
            if len(rest) > MAX_LINE_BYTES:
                yield _DamageError(f"it is longer than the {MAX_LINE_BYTES:,} bytes a record may have")
                rest = b""
        if rest:
            yield _DamageError("it is cut short")

    def _pieces(self) -> Iterator[bytes | _DamageError]:
        """Decompressed bytes in order; a `_DamageError` where a frame is damaged or the file ends within one."""
        decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
        compressed = self._file.read(_READ_BYTES)
        if not compressed.startswith(_MAGIC):
            yield _DamageError("this file is not an elasticgrid archive")
            compressed = self._resume(compressed[1:])
        while compressed:
            frame = decompressor.decompressobj()
            frame_at = self._file.tell() - len(compressed)
            try:
                while not frame.eof:
                    if not compressed:
                        compressed = self._file.read(_READ_BYTES)
                        if not compressed:
                            break
                    piece = frame.decompress(compressed[:_FEED_BYTES])
                    compressed = frame.unused_data + compressed[_FEED_BYTES:]
                    if piece:
                        yield piece
            except zstandard.ZstdError as error:
                yield _DamageError(f"the compressed data is damaged: {error}")
                self._file.seek(frame_at + 1)
                compressed = self._resume(b"")
                continue
            if not frame.eof:
                yield _DamageError("the file ends within a frame: it was cut short")
                self._file.seek(frame_at + 1)
                compressed = self._resume(b"")
            elif not compressed:
                compressed = self._file.read(_READ_BYTES)

    def _resume(self, compressed: bytes) -> bytes:
        """What follows from the next place that looks like the beginning of a frame; empty when none does."""
        while True:
            found = compressed.find(_MAGIC)
            if found >= 0:
                return compressed[found:]
            more = self._file.read(_READ_BYTES)
            if not more:
                return b""
            compressed = compressed[-(len(_MAGIC) - 1) :] + more
