"""Writing an archive: one record at a time, in constant memory, and visible only once it is whole."""

from __future__ import annotations

import base64
import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import zstandard

from elasticgrid.core.errors import InvalidInput
from elasticgrid.core.events import SCHEMA_VERSIONS, Recorded, UnknownEvent
from elasticgrid.core.samples import SAMPLE_VERSION
from elasticgrid.log.archive_format import (
    CHAIN_START,
    MAX_LINE_BYTES,
    ArchiveFilters,
    ArchiveFooter,
    ArchiveHeader,
    SampleMessage,
    SampleRange,
    frame_bytes,
    next_chain,
    pack,
    seal,
)
from elasticgrid.log.archive_secrets import without_credentials
from elasticgrid.log.codec import encode

_LEVEL = 3


class ArchiveWriter:
    """A context manager that writes one archive.

    Records may be added in any mixture of the two streams, each in its own order. The file takes its name when the
    context ends without an error; before that, and when it ends with one, nothing is there under it.

    Args:
        path: the file; one that is there already is replaced. Only its owner may read it.
        created_ms: the time to note, Unix milliseconds.
        filters: which part of the log is being written.
        samples: which part of the samples stream is being written; None when none is.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        created_ms: int,
        filters: ArchiveFilters = ArchiveFilters(),  # noqa: B008 - frozen
        samples: SampleRange | None = None,
    ) -> None:
        from elasticgrid import __version__

        self._path = Path(path)
        self._draft = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        self._header = ArchiveHeader(
            software=__version__,
            created_ms=created_ms,
            schema_versions=dict(SCHEMA_VERSIONS),
            sample_version=SAMPLE_VERSION,
            filters=filters,
            samples=samples,
        )
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
        self._file = -1
        self._chain = self._sealed_chain = CHAIN_START
        self._number = 0
        self._lines: list[bytes] = []
        self._lines_bytes = self._bytes_before = 0
        self._first_sequence = self._last_sequence = self._last_sample = 0
        self.events = 0
        self.samples = 0
        self.redacted = 0

    def __enter__(self) -> Self:
        self._file = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._line(b"H %d %b" % (self._number, msgspec.json.encode(self._header)))
        self._end_frame()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            os.close(self._file)
            self._draft.unlink(missing_ok=True)

    def add_event(self, recorded: Recorded) -> None:
        """Write an event as it was recorded, without any credential that is in it.

        Raises:
            InvalidInput: it does not come after the one before, or is longer than a record may be.
        """
        if recorded.sequence <= self._last_sequence:
            raise InvalidInput(
                f"event {recorded.sequence} comes after event {self._last_sequence}", where=str(self._path)
            )
        event = recorded.event
        raw = recorded.raw or (event.raw if isinstance(event, UnknownEvent) else encode(event))
        clean = without_credentials(raw)
        kind = b"E" if clean == raw else b"R"
        self._line(b"%b %d %d %d %b" % (kind, self._number, recorded.sequence, recorded.recorded_ms, pack(clean)))
        self.redacted += kind == b"R"
        self.events += 1
        self._first_sequence = self._first_sequence or recorded.sequence
        self._last_sequence = recorded.sequence

    def add_samples(self, message: SampleMessage) -> None:
        """Write a message of samples.

        Raises:
            InvalidInput: the archive was opened without samples, the message is outside of their range or does not
                come after the one before, or it is longer than a record may be.
        """
        held = self._header.samples
        if held is None or not held.after < message.sequence <= held.through:
            raise InvalidInput(f"samples message {message.sequence} is outside of the archive", where=str(self._path))
        if message.sequence <= self._last_sample:
            raise InvalidInput(
                f"samples message {message.sequence} comes after {self._last_sample}", where=str(self._path)
            )
        self._line(
            b"S %d %d %d %b %b"
            % (
                self._number,
                message.sequence,
                message.time_ms,
                message.subject.encode(),
                base64.b64encode(message.data),
            )
        )
        self.samples += 1
        self._last_sample = message.sequence

    def _line(self, body: bytes) -> None:
        if len(body) > MAX_LINE_BYTES - 64:
            raise InvalidInput(
                f"record {self._number} has {len(body):,} bytes, at most {MAX_LINE_BYTES - 64:,} are allowed",
                where=str(self._path),
            )
        self._chain = next_chain(self._chain, body)
        line = b"%b %b\n" % (self._chain, body)
        self._lines.append(line)
        self._lines_bytes += len(line)
        self._number += 1
        if self._lines_bytes >= frame_bytes(self._bytes_before):
            self._end_frame()

    def _end_frame(self) -> None:
        if self._lines:
            frame = self._compressor.compress(b"".join(self._lines))
            if self._sealed_chain != CHAIN_START:
                frame = seal(self._sealed_chain, frame) + frame
            left = memoryview(frame)
            while left:
                left = left[os.write(self._file, left) :]
            self._sealed_chain = self._chain
            self._lines = []
            self._bytes_before += self._lines_bytes
            self._lines_bytes = 0

    def _finish(self) -> None:
        footer = ArchiveFooter(
            events=self.events,
            samples=self.samples,
            redacted=self.redacted,
            first_sequence=self._first_sequence,
            last_sequence=self._last_sequence,
            chain=self._chain.decode(),
        )
        self._line(b"F %d %b" % (self._number, msgspec.json.encode(footer)))
        self._end_frame()
        os.fsync(self._file)
        self._draft.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
