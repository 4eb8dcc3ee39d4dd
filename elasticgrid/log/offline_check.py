"""Whether the log of a grid that does not run is what its mirror says; found out on copies, so nothing is touched."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from elasticgrid.bus.connect import connect, disconnect
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.bus.streams import ensure_streams
from elasticgrid.bus.subjects import EVENTS_STREAM
from elasticgrid.core.errors import InvalidInput, NotFound
from elasticgrid.log.mirror import Mirror
from elasticgrid.log.mirror_file import MirrorDamaged
from elasticgrid.log.mirror_record import Verified
from elasticgrid.log.mirrored import mirrored_log
from elasticgrid.log.restore_folder import held, scratch_folder

#: The copies take no more than this share of the free space.
_MOST_SHARE: Final = 0.5


async def check_offline(data_dir: Path, mirror: Path, *, nats_server: str | None = None) -> Verified:
    """Compare the event log of a stopped grid with its mirror, whose own chain of hashes is checked as well.

    Args:
        data_dir: of the grid.
        mirror: its mirror.
        nats_server: path of another binary than the installed one.

    Raises:
        NotAllowed: the grid's server runs.
        NotFound: there is no log, or no mirror.
        MirrorDamaged: the mirror is not to be trusted.
        LogDiverged: they differ.
        InvalidInput: the folder cannot be used, or has no space for the copies.
        BusError: the copy cannot be served.
    """
    kept = EmbeddedServer(data_dir)
    _require_log(kept, mirror)
    stream = kept.streams_folder / EVENTS_STREAM
    with held(kept.folder), scratch_folder(kept.folder) as scratch:
        server = EmbeddedServer(scratch, nats_server=nats_server)
        _copy(stream, server.streams_folder / EVENTS_STREAM, mirror, scratch)
        await _require_sound(scratch / mirror.name, mirror)
        async with await Mirror.open(scratch / mirror.name) as copy, server:
            client = await connect(server.address, name="check")
            try:
                await ensure_streams(client)
                return await mirrored_log(client, copy).verify(full=True)
            finally:
                await disconnect(client)


async def _require_sound(copy: Path, mirror: Path) -> None:
    # One that is opened for writing would be begun anew if it were damaged.
    async with await Mirror.open(copy, read_only=True) as opened:
        bad = await opened.check()
    if bad is not None:
        raise MirrorDamaged(f"the mirror is damaged: {bad.what}", where=str(mirror), sequence=bad.sequence)


def _require_log(kept: EmbeddedServer, mirror: Path) -> None:
    if not kept.authority_file.exists() or not mirror.exists():
        raise NotFound(
            "there is no log with a mirror in this folder", where=str(mirror.parent), hint="name another with --data"
        )


def _copy(stream: Path, to: Path, mirror: Path, folder: Path) -> None:
    """Copy the stream's folder to `to`, and the mirror into `folder`."""
    parts = [part for part in (mirror, mirror.with_name(f"{mirror.name}-wal")) if part.is_file()]
    size = sum(file.stat().st_size for file in (*stream.rglob("*"), *parts) if file.is_file())
    if size > _MOST_SHARE * shutil.disk_usage(folder).free:
        raise InvalidInput("there is no space for a copy of the log", where=str(mirror.parent), hint="free some space")
    if stream.is_dir():
        shutil.copytree(stream, to)
    for part in parts:
        shutil.copyfile(part, folder / part.name)
