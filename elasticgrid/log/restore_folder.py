"""Restoring the embedded server's event log: rebuilt and proven beside the damaged one, then put in its place.

The server must not run. Everything that can fail happens on a scratch server in the same folder; only two renames
follow. The damaged stream is kept, and no other stream is touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from elasticgrid.bus.connect import connect, disconnect
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.bus.streams import ensure_streams
from elasticgrid.bus.subjects import EVENTS_STREAM
from elasticgrid.core.errors import InvalidInput, NotAllowed
from elasticgrid.log.mirror_file import set_aside
from elasticgrid.log.restore import OnProgress, Restored, Source, append_all, prove


class RestoredFolder(msgspec.Struct, frozen=True):
    """What was restored, and where what lay there before is kept; empty when nothing did."""

    restored: Restored
    kept_stream: str
    kept_mirror: str


async def restore_folder(
    data_dir: str | Path,
    source: Source,
    *,
    replaced_mirror: Path | None = None,
    nats_server: str | None = None,
    on_progress: OnProgress | None = None,
) -> RestoredFolder:
    """Rebuild the event log of the embedded server that keeps its files in `data_dir`, while it is stopped.

    Args:
        data_dir: as `EmbeddedServer`.
        source: `mirror_source` or `archive_source`.
        replaced_mirror: a mirror that is not the source: it is set aside, and made anew from the restored stream.
        nats_server: path of another binary than the installed one.
        on_progress: told after each batch.

    Raises:
        NotAllowed: the server runs.
        InvalidInput: the folder cannot be used, or the source is no whole log.
        LogError, BusError: the log could not be rebuilt; everything lies as it did.
    """
    damaged = EmbeddedServer(data_dir)
    server_folder = damaged.folder
    with held(server_folder), scratch_folder(server_folder) as scratch:
        server = EmbeddedServer(scratch, nats_server=nats_server)
        async with server:
            client = await connect(server.address, name="restore")
            try:
                await ensure_streams(client)
                await append_all(client, source, on_progress=on_progress)
            finally:
                await disconnect(client)
        # Started again, it has only what is on the disk.
        async with server:
            client = await connect(server.address, name="restore")
            try:
                restored = await prove(client, source, on_progress=on_progress)
            finally:
                await disconnect(client)
        kept_stream = _put_in_place(
            server.streams_folder / EVENTS_STREAM, damaged.streams_folder / EVENTS_STREAM, server_folder / "set-aside"
        )
        kept_mirror = None
        if replaced_mirror is not None:
            kept_mirror = set_aside(replaced_mirror, "replaced", "the stream was restored from another source")
    return RestoredFolder(restored, str(kept_stream or ""), str(kept_mirror or ""))


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the server's folder, as a running server does.

    Raises:
        NotAllowed: a server runs there.
        InvalidInput: the folder cannot be used.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidInput(f"cannot use this folder: {error.strerror}", where=str(folder)) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise NotAllowed(
                "the grid's server runs on this folder", where=str(folder), hint="stop the grid, then restore"
            ) from error
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """A folder on the same file system, gone at the end."""
    scratch = Path(tempfile.mkdtemp(prefix="restoring-", dir=folder))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _put_in_place(restored: Path, place: Path, set_aside_dir: Path) -> Path | None:
    """Move the damaged stream out of the way, if there is one, and the restored one in; return where the old one is."""
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept = _keep(place, set_aside_dir) if place.exists() else None
    restored.rename(place)
    _sync(place.parent)
    return kept


def _keep(stream: Path, where: Path) -> Path:
    where.mkdir(exist_ok=True, mode=0o700)
    name = f"{EVENTS_STREAM}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    number = 1
    while (kept := where / f"{name}-{number}").exists():
        number += 1
    stream.rename(kept)
    _sync(where)
    return kept


def _sync(folder: Path) -> None:
    """Have a rename on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
