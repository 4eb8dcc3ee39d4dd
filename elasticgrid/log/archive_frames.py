"""The lines of an archive out of its compressed frames, in constant memory and through damage."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from typing import BinaryIO, Final

import zstandard

from elasticgrid.log.archive_format import (
    MAX_LINE_BYTES,
    MAX_SEALED_BYTES,
    MAX_WINDOW_BYTES,
    SEAL_BYTES,
    read_seal,
)

READ_BYTES: Final = 1 << 16

_MAGIC: Final = b"\x28\xb5\x2f\xfd"
#: So few compressed bytes are given to the decompressor at once, because each four of them may stand for 128 KiB.
_FEED_BYTES: Final = 1 << 10


#: About so many bytes of a frame are split into lines at once: few enough to stay in the processor's cache.
_SPLIT_BYTES: Final = 16 << 10


class DamageError(Exception):
    """A line or a frame that cannot be what was written; the text says why."""


class SealedFrame:
    """The lines of a frame that was proven as a whole.

    Args:
        text: one or more lines, each with its line feed.
    """

    def __init__(self, text: bytes) -> None:
        self.text = text

    def __iter__(self) -> Iterator[list[bytes]]:
        """All lines in order, without their line feeds, some at a time."""
        text, begin = self.text, 0
        while begin < len(text):
            end = text.find(b"\n", begin + _SPLIT_BYTES)
            end = len(text) - 1 if end < 0 else end
            yield text[begin:end].split(b"\n")
            begin = end + 1

    def offset(self, lines: int) -> int:
        """Where the line after so many begins, in bytes."""
        return len(self.text) - len(self.text.split(b"\n", lines)[-1])

    def after(self, lines: int) -> list[bytes]:
        """The lines after so many."""
        return self.text.split(b"\n")[lines:-1]


class ArchiveLines:
    """The lines of a file, without their line feeds.

    Iterating yields a `SealedFrame` where a whole frame was proven by its seal, single lines elsewhere, and a
    `DamageError` where bytes are lost.

    Args:
        file: open at its beginning; it must be possible to seek in it.
        proves: told a compressed frame and the digest in its seal, whether the lines in it are the next ones.
    """

    def __init__(self, file: BinaryIO, proves: Callable[[bytes, bytes], bool]) -> None:
        self._file = file
        self._proves = proves
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
        #: The beginning of a line whose end has not been read yet.
        self._begun = b""

    def __iter__(self) -> Iterator[bytes | SealedFrame | DamageError]:
        for piece in self._pieces():
            if isinstance(piece, SealedFrame):
                yield piece
                continue
            if isinstance(piece, DamageError):
                # Lines that ended before the damage are still worth looking at; the one it cut is not.
                self._begun = b""
                yield piece
                continue
            lines = (self._begun + piece).split(b"\n")
            self._begun = lines.pop()
            yield from lines
            if len(self._begun) > MAX_LINE_BYTES:
                yield DamageError(f"it is longer than the {MAX_LINE_BYTES:,} bytes a record may have")
                self._begun = b""
        if self._begun:
            yield DamageError("it is cut short")

    def _pieces(self) -> Iterator[bytes | SealedFrame | DamageError]:
        """Decompressed bytes in order, a sealed frame's lines, a `DamageError` where a frame is damaged or cut."""
        if self._file.read(len(_MAGIC)) != _MAGIC:
            yield DamageError("this file is not an elasticgrid archive")
            self._resume(1)
        else:
            self._file.seek(0)
        while True:
            frame_at = self._file.tell()
            head = self._file.read(SEAL_BYTES)
            if not head:
                return
            seal = read_seal(head)
            if seal is not None:
                sealed = self._sealed(*seal)
                if sealed is not None:
                    yield sealed
                    continue
                frame_at += SEAL_BYTES
            self._file.seek(frame_at)
            try:
                ended = yield from self._frame()
            except zstandard.ZstdError as error:
                yield DamageError(f"the compressed data is damaged: {error}")
                ended = False
            else:
                if not ended:
                    yield DamageError("the file ends within a frame: it was cut short")
            if not ended:
                self._resume(frame_at + 1)

    def _sealed(self, length: int, digest: bytes) -> SealedFrame | None:
        """The frame behind a seal; None when that does not prove it or its lines are not as they must be."""
        if length > MAX_SEALED_BYTES or self._begun:
            return None
        frame = self._file.read(length)
        if not self._proves(frame, digest):
            return None
        try:
            if not 0 < zstandard.frame_content_size(frame) <= MAX_SEALED_BYTES:
                return None
            text = self._decompressor.decompress(frame, allow_extra_data=False)
        except zstandard.ZstdError:
            return None
        return SealedFrame(text) if text.endswith(b"\n") and not _has_long_line(text) else None

    def _frame(self) -> Generator[bytes, None, bool]:
        """The bytes of one frame; returns whether it ended before the file did."""
        frame = self._decompressor.decompressobj()
        while not frame.eof:
            compressed = self._file.read(_FEED_BYTES)
            if not compressed:
                return False
            piece = frame.decompress(compressed)
            if piece:
                yield piece
        self._file.seek(-len(frame.unused_data), os.SEEK_CUR)
        return True

    def _resume(self, at: int) -> None:
        """Go to the next place from `at` on that looks like the beginning of a frame; to the end when none does."""
        self._file.seek(at)
        searched = b""
        while True:
            more = self._file.read(READ_BYTES)
            if not more:
                return
            searched = searched[-(len(_MAGIC) - 1) :] + more
            found = searched.find(_MAGIC)
            if found >= 0:
                self._file.seek(found - len(searched), os.SEEK_CUR)
                return


def _has_long_line(text: bytes) -> bool:
    """Whether a line is longer than a line may be."""
    begin = 0
    while len(text) - begin > MAX_LINE_BYTES + 1:
        end = text.rfind(b"\n", begin, begin + MAX_LINE_BYTES + 1)
        if end < 0:
            return True
        begin = end + 1
    return False
