"""Batches of samples kept in a file while the bus is away: bounded, in order, found again by the next process.

The file begins with a mark and the place of the first batch that is still wanted; then come frames of length, CRC-32
and the batch. What was written half when a process died is cut off by the next one that opens the file. It is not
synced to disk: samples may be lost with their machine, as the training they tell of is.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

#: About 220,000 samples: six hours at ten steps a second.
SPOOL_BYTES = 16 * 1024 * 1024
#: More than the largest batch takes; a file has room when this much fits.
MAX_FRAME_BYTES = 64 * 1024
SUFFIX = ".spool"

_MARK = b"EGSPOOL1"
_PLACE = struct.Struct(">Q")
_HEAD = struct.Struct(">II")
_START = len(_MARK) + _PLACE.size


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """A message for the bus. It keeps its id over every attempt, so that the stream stores it once.

    Attributes:
        subject: where it goes.
        msg_id: its id.
        size: how many samples are in it.
        data: the encoded samples.
    """

    subject: str
    msg_id: str
    size: int
    data: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Batch)


class Spool:
    """One file of batches; no other process uses it while this one is open.

    Args:
        path: the file; it and its folder are made when missing.
        max_bytes: size beyond which it has no room.

    Raises:
        BlockingIOError: another process has it open.
        OSError: the file cannot be made or read.

    Attributes:
        samples: how many are in it.
    """

    def __init__(self, path: Path, *, max_bytes: int = SPOOL_BYTES) -> None:
        self.samples = 0
        self._place = self._end = _START
        self._path = path
        self._max_bytes = max_bytes
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = _open_alone(path)
        try:
            self._read_what_is_there()
        except BaseException:
            os.close(self._file)
            raise

    @property
    def has_room(self) -> bool:
        """Whether another batch fits."""
        return self._end + MAX_FRAME_BYTES <= self._max_bytes

    def append(self, batch: Batch) -> None:
        """Put a batch behind the others.

        Raises:
            OSError: the disk did not take it; the file is as it was.
        """
        body = _encoder.encode(batch)
        frame = _HEAD.pack(len(body), zlib.crc32(body)) + body
        written = 0
        try:
            while written < len(frame):
                written += os.pwrite(self._file, frame[written:], self._end + written)
        except OSError:
            os.ftruncate(self._file, self._end)
            raise
        self._end += len(frame)
        self.samples += batch.size

    def first(self) -> Batch | None:
        """The oldest batch, or None when there is none."""
        if self._place == self._end:
            return None
        found = self._read(self._place)
        if found is None:  # the file was changed under us: nothing behind this place can be trusted
            self._reset()
            return None
        return found[0]

    def remove_first(self) -> None:
        """The oldest batch is not wanted any more."""
        found = self._read(self._place) if self._place < self._end else None
        if found is None:
            self._reset()
            return
        batch, after = found
        self.samples -= batch.size
        self._place = after
        if after == self._end:
            self._reset()
        else:
            os.pwrite(self._file, _PLACE.pack(after), len(_MARK))

    def close(self) -> None:
        """Let go of the file; it stays only while there is something in it."""
        if self._place == self._end:
            self._path.unlink(missing_ok=True)
        os.close(self._file)

    def _read_what_is_there(self) -> None:
        size = os.fstat(self._file).st_size
        start = os.pread(self._file, _START, 0)
        if len(start) < _START or not start.startswith(_MARK):
            self._reset()
            return
        place = _PLACE.unpack_from(start, len(_MARK))[0]
        self._place = place if _START <= place <= size else _START
        self._end = size
        end = self._place
        for batch, after in self._frames():
            self.samples += batch.size
            end = after
        if end == self._place:
            self._reset()
        elif end < size:
            os.ftruncate(self._file, end)
            self._end = end

    def _frames(self) -> Iterator[tuple[Batch, int]]:
        place = self._place
        while (found := self._read(place)) is not None:
            yield found
            place = found[1]

    def _read(self, place: int) -> tuple[Batch, int] | None:
        """The batch at `place` and the place after it, or None when no whole one is there."""
        head = os.pread(self._file, _HEAD.size, place)
        if len(head) < _HEAD.size:
            return None
        length, checksum = _HEAD.unpack(head)
        if length > MAX_FRAME_BYTES or place + _HEAD.size + length > self._end:
            return None
        body = os.pread(self._file, length, place + _HEAD.size)
        if len(body) < length or zlib.crc32(body) != checksum:
            return None
        try:
            return _decoder.decode(body), place + _HEAD.size + length
        except msgspec.MsgspecError:
            return None

    def _reset(self) -> None:
        """Empty the file."""
        self.samples = 0
        self._place = self._end = _START
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, _MARK + _PLACE.pack(_START), 0)


def _open_alone(path: Path) -> int:
    """A descriptor of the file with a lock that no other process has, nor another spool of this one."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(path) and os.path.samestat(os.stat(path), os.fstat(file)):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # whoever had it before has just removed it


def left_behind(folder: Path, subject: str) -> Iterator[Spool]:
    """The spools in `folder` that no process has open and whose batches go to subjects that begin with `subject`."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            spool = Spool(path)
        except OSError:
            continue
        first = spool.first()
        if first is not None and first.subject.startswith(subject):
            yield spool
        else:
            spool.close()
