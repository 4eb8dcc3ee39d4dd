"""Reading an archive: every record proven against the chain before it is handed out, in constant memory.

A frame whose seal holds is proven as a whole; only where none does are lines proven one by one. `read_archive` stops at
the first thing that is wrong and names it. With `salvage` it goes on behind the damage: a record is handed out when the
chain from the record before it holds, and everything between is reported as missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from operator import lt
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

import msgspec

from elasticgrid.core.errors import ArchiveDamaged, NotFound, UndecodableEvent
from elasticgrid.core.events import Recorded
from elasticgrid.log.archive_format import (
    CHAIN_BYTES,
    CHAIN_START,
    FORMAT,
    FORMAT_VERSION,
    MAX_LINE_BYTES,
    ArchiveFooter,
    ArchiveHeader,
    MissingRecords,
    SampleMessage,
    from_base64,
    next_chain,
    seal_digest,
    unpack,
)
from elasticgrid.log.archive_frames import READ_BYTES, ArchiveLines, DamageError, SealedFrame
from elasticgrid.log.codec import decode, decode_all

_Single: TypeAlias = ArchiveHeader | SampleMessage | ArchiveFooter | MissingRecords
ArchiveRecord: TypeAlias = Recorded | _Single
#: Events come in lists, of one or many; everything else by itself.
ArchivePiece: TypeAlias = list[Recorded] | _Single
Wanted: TypeAlias = Literal["events", "samples"]

_NUMBERED = re.compile(rb"[0-9a-f]{32} [A-Z] ([0-9]{1,18}) ")

_WHOLE_HINT = "get the file again, or read what is still good with --salvage"
_FOREIGN_HINT = "an archive is what `elasticgrid events export` writes"

_header = msgspec.json.Decoder(ArchiveHeader)
_footer = msgspec.json.Decoder(ArchiveFooter)
_integers = msgspec.json.Decoder(list[int])


class _Head(msgspec.Struct):
    """What every version of the header has."""

    format: str
    version: int
    software: str = ""


def read_archive(
    path: str | os.PathLike[str], *, salvage: bool = False, only: Wanted | None = None
) -> Iterator[ArchiveRecord]:
    """Yield the archive's records in order: the header, events and samples, the footer.

    Args:
        path: the file.
        salvage: go on behind damage, with a `MissingRecords` in place of what could not be proven.
        only: the one of events and samples that is wanted; the other is proven, and most of it is not yielded.

    Raises:
        NotFound: there is no such file.
        ArchiveDamaged: foreign, of a later version, truncated, changed or out of order; names record and offset. With
            `salvage` only when nothing at all can be read.
    """
    for piece in read_pieces(path, salvage=salvage, only=only):
        if isinstance(piece, list):
            yield from piece
        else:
            yield piece


def read_pieces(
    path: str | os.PathLike[str], *, salvage: bool = False, only: Wanted | None = None
) -> Iterator[ArchivePiece]:
    """As `read_archive`, with events in lists where many could be read at once: what is quickest for a long log."""
    path = Path(path)
    try:
        file = path.open("rb", buffering=READ_BYTES)
    except FileNotFoundError as error:
        raise NotFound(f"there is no archive {path}", hint="give the file's path") from error
    except OSError as error:
        raise ArchiveDamaged(f"the archive cannot be opened: {error.strerror}", where=str(path)) from error
    with file:
        yield from _Reader(path, file, salvage, only).pieces()


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

    def __init__(self, path: Path, file: BinaryIO, salvage: bool, only: Wanted | None) -> None:
        self._path = path
        self._lines = ArchiveLines(file, self._proves)
        self._salvage = salvage
        self._unwanted = None if only is None else b"S" if only == "events" else b"E"
        self._offset = 0
        self._number = 0
        #: What the chain may be before the next line; several when it is not certain, none after unreadable bytes.
        self._chains: tuple[bytes, ...] = (CHAIN_START,)
        self._certain = True
        self._lost_offset = 0
        self._lost_why = ""
        self._missing = self._samples = self._redacted = 0
        self._first_sequence = self._last_sequence = self._last_sample = 0
        self._ended = False
        #: The sealed frame that is being read, and the number of its first line.
        self._frame: SealedFrame | None = None
        self._frame_begins = 0

    def pieces(self) -> Iterator[ArchivePiece]:
        """Every record that is proven, and in a salvage what is missing between them."""
        for line in self._lines:
            if isinstance(line, SealedFrame):
                yield from self._sealed(line)
            elif isinstance(line, bytes):
                yield from self._record(line)
                self._offset += len(line) + 1
            else:
                self._lose(str(line))
                self._chains = ()
        if not self._ended:
            if self._certain:
                self._lose("the end is missing" if self._number else "this file is not an elasticgrid archive")
            if not self._number:
                raise ArchiveDamaged(
                    f"nothing in this file can be read as an archive: {self._lost_why}",
                    where=str(self._path),
                    hint=_FOREIGN_HINT,
                )
            yield MissingRecords(self._number, None, self._lost_offset, self._lost_why)

    def _proves(self, frame: bytes, digest: bytes) -> bool:
        """Whether the frame's seal holds behind the last line."""
        return self._certain and not self._ended and seal_digest(self._chains[0], frame) == digest

    def _sealed(self, frame: SealedFrame) -> Iterator[ArchivePiece]:
        """The records of a frame whose seal holds."""
        self._frame, self._frame_begins = frame, self._number
        before = 0
        last = b""
        for lines in frame:
            last = lines[-1]
            events = self._events(lines)
            if events is not None:
                yield events
                before += len(lines)
                continue
            for line in lines:
                before += 1
                if self._skipped(line):
                    continue
                yield from self._proven(line)
                if self._ended or not self._certain:
                    self._offset = self._here() + (0 if self._certain else len(line) + 1)
                    self._frame = None
                    for each in frame.after(before):
                        yield from self._record(each)
                        self._offset += len(each) + 1
                    return
        self._chains = (last[:CHAIN_BYTES],)
        self._offset, self._frame = self._offset + len(frame.text), None

    def _events(self, lines: list[bytes]) -> list[Recorded] | None:
        """The events in these lines of a sealed frame; None when something else is among them."""
        if self._unwanted == b"E":
            return None
        try:
            _, kinds, numbers, sequences, times, payloads = zip(*[line.split(b" ", 5) for line in lines], strict=True)
            if kinds.count(b"E") < len(lines):
                return None
            count = len(lines)
            digits = (*numbers, *sequences, *times)
            if not b"".join(digits).isdigit():
                return None
            # Read as one JSON array, a fifth of what `int` takes for each.
            integers = _integers.decode(b"[%b]" % b",".join(digits))
            after = self._number + count
            places = integers[count : 2 * count]
            if integers[:count] != list(range(self._number, after)):
                return None
            if not all(map(lt, (self._last_sequence, *places), places)):
                return None
            events = list(map(Recorded, places, integers[2 * count :], decode_all(payloads), payloads))
        except (ValueError, msgspec.MsgspecError, UndecodableEvent):
            return None  # base64, or wrong: told apart line by line
        self._number = after
        self._first_sequence = self._first_sequence or places[0]
        self._last_sequence = places[-1]
        return events

    def _skipped(self, line: bytes) -> bool:
        """Whether a line of a sealed frame is of the kind that is not wanted."""
        if self._unwanted is None or not line.startswith(b"%b %d " % (self._unwanted, self._number), CHAIN_BYTES + 1):
            return False
        self._number += 1
        return True

    def _here(self) -> int:
        """Bytes of lines before the next record."""
        if self._frame is None:
            return self._offset
        return self._offset + self._frame.offset(self._number - self._frame_begins)

    def _record(self, line: bytes) -> Iterator[ArchivePiece]:
        chain, body = line[:CHAIN_BYTES], line[CHAIN_BYTES + 1 :]
        computed = [next_chain(previous, body) for previous in self._chains]
        if chain not in computed or self._ended or len(line) > MAX_LINE_BYTES:
            self._lose(self._why_unproven(line))
            # Either the line's body or its chain was changed, or lines before it are missing: the next line tells.
            self._chains = (chain, *computed)
        else:
            yield from self._proven(line)

    def _proven(self, line: bytes) -> Iterator[ArchivePiece]:
        """The record of a line whose chain holds."""
        self._chains = (line[:CHAIN_BYTES],)
        try:
            number, record = self._parse(line[CHAIN_BYTES + 1 :])
        except DamageError as error:
            self._lose(str(error))
            return
        if not self._certain:
            self._missing += number - self._number
            yield MissingRecords(self._number, number - 1, self._lost_offset, self._lost_why)
        self._certain = True
        self._number = number + 1
        self._ended = isinstance(record, ArchiveFooter)
        yield [record] if isinstance(record, Recorded) else record

    def _lose(self, why: str) -> None:
        """Note that what comes now is not proven; without salvage, that is the end."""
        if not self._salvage:
            raise ArchiveDamaged(
                why,
                where=f"{self._path}: record {self._number} at byte {self._here()} of its lines",
                hint=_WHOLE_HINT if self._here() else _FOREIGN_HINT,
            )
        if self._certain:
            self._certain = False
            self._lost_offset = self._here()
            self._lost_why = why

    def _why_unproven(self, line: bytes) -> str:
        if self._ended:
            return "it follows the footer"
        if len(line) > MAX_LINE_BYTES:
            return f"it is longer than the {MAX_LINE_BYTES:,} bytes a record may have"
        if self._number == 0:
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
                raise DamageError(f"it is numbered {number}")
            if kind in (b"E", b"R"):
                return number, self._event(kind, rest)
            if kind == b"S":
                return number, self._sample(rest)
            if kind == b"H":
                return number, self._read_header(number, rest)
            if kind == b"F":
                return number, self._read_footer(rest)
        except (ValueError, msgspec.MsgspecError) as error:
            raise DamageError(f"it cannot be read: {error}") from error
        except UndecodableEvent as error:
            raise DamageError(f"its event cannot be read: {error}") from error
        raise DamageError(f"it is of an unknown kind {kind[:16]!r}")

    def _event(self, kind: bytes, rest: bytes) -> Recorded:
        sequence_text, time_text, payload = rest.split(b" ", 2)
        raw = unpack(payload)
        recorded = Recorded(int(sequence_text), int(time_text), decode(raw), raw)
        if recorded.sequence <= self._last_sequence:
            raise DamageError(f"event {recorded.sequence} comes after event {self._last_sequence}")
        self._redacted += kind == b"R"
        self._first_sequence = self._first_sequence or recorded.sequence
        self._last_sequence = recorded.sequence
        return recorded

    def _sample(self, rest: bytes) -> SampleMessage:
        sequence_text, time_text, subject, payload = rest.split(b" ", 3)
        message = SampleMessage(int(sequence_text), int(time_text), subject.decode("ascii"), from_base64(payload))
        if message.sequence <= self._last_sample:
            raise DamageError(f"samples message {message.sequence} comes after {self._last_sample}")
        self._samples += 1
        self._last_sample = message.sequence
        return message

    def _read_header(self, number: int, rest: bytes) -> ArchiveHeader:
        if number != 0:
            raise DamageError("a second header")
        self._look_at_head(rest)
        return _header.decode(rest)

    def _read_footer(self, rest: bytes) -> ArchiveFooter:
        footer = _footer.decode(rest)
        if self._certain and not self._missing and self._unwanted is None:
            events = self._number - 1 - self._samples
            counted = (events, self._samples, self._redacted, self._first_sequence, self._last_sequence)
            said = (footer.events, footer.samples, footer.redacted, footer.first_sequence, footer.last_sequence)
            if counted != said:
                raise DamageError(
                    f"the footer says {said} (events, samples, redacted, first, last), there were {counted}"
                )
        return footer
