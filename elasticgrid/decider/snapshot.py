"""Snapshots of the grid's fold: a cache, so that a decider begins from the last one and folds only what came after.

A snapshot is used when it was made by the very same core and of the very same log: its key is the digest of the core's
source, and it carries the mirror's chain at its last event, which stands for every event up to there. Anything else,
and any damage, and it is as if there were none.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import secrets
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec
import structlog
import zstandard

from elasticgrid.core.grid import GridFold, GridSnapshot
from elasticgrid.log.mirror import Mirror
from elasticgrid.review.collector import rare_collections

log = structlog.get_logger("decider")

FILE_NAME: Final = "snapshot.zst"
_MAGIC: Final = b"egsnap1\n"
_DIGEST_BYTES: Final = 32


class _Unusable(Exception):  # noqa: N818 - it never leaves this module
    """The snapshot is not used; the text says why."""


class _Content(msgspec.Struct, frozen=True):
    fold: str
    chain: bytes
    grid: msgspec.Raw


_content = msgspec.msgpack.Decoder(_Content)
_grid = msgspec.msgpack.Decoder(GridSnapshot)


@functools.cache
def fold_version() -> str:
    """What the fold computes depends on this: the digest of the core's source."""
    digest = hashlib.sha256()
    with resources.as_file(resources.files("elasticgrid.core")) as folder:
        for file in sorted(folder.rglob("*.py")):
            digest.update(f"{file.relative_to(folder).as_posix()}\n".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


async def save(path: Path, grid: GridFold, mirror: Mirror) -> bool:
    """Write a snapshot, whole or not at all; the fold may go on meanwhile.

    Returns:
        Whether there is a snapshot now. It is only a cache, so a full disk is told to the log and to nobody else.
    """
    snapshot = grid.snapshot()
    chain = await mirror.chain_at(snapshot.sequence)
    if chain is None:
        log.warning("no snapshot: the mirror does not have its last event", sequence=snapshot.sequence)
        return False
    try:
        await asyncio.to_thread(_write, path, snapshot, chain)
    except OSError as error:
        log.warning("no snapshot", path=str(path), error=str(error))
        return False
    return True


async def load(path: Path, mirror: Mirror) -> GridFold | None:
    """The fold as of the last snapshot, or None when there is none that can be used; the log says why."""
    try:
        with rare_collections():
            chain, snapshot = await asyncio.to_thread(_read, path)
        if await mirror.chain_at(snapshot.sequence) != chain:
            raise _Unusable("it is of another log")
    except FileNotFoundError:
        return None
    except (_Unusable, OSError) as why:
        log.warning("the snapshot is not used; the log is folded from its beginning", path=str(path), why=str(why))
        return None
    log.info("begins from a snapshot", sequence=snapshot.sequence)
    return GridFold.restore_from(snapshot)


def _write(path: Path, snapshot: GridSnapshot, chain: bytes) -> None:
    content = _Content(fold_version(), chain, msgspec.Raw(msgspec.msgpack.encode(snapshot)))
    packed = zstandard.compress(msgspec.msgpack.encode(content))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(_MAGIC + hashlib.sha256(packed).digest() + packed)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def _read(path: Path) -> tuple[bytes, GridSnapshot]:
    data = path.read_bytes()
    begin = len(_MAGIC) + _DIGEST_BYTES
    if not data.startswith(_MAGIC):
        raise _Unusable("it is no snapshot of this version")
    if hashlib.sha256(data[begin:]).digest() != data[len(_MAGIC) : begin]:
        raise _Unusable("it is damaged")
    try:
        content = _content.decode(zstandard.decompress(data[begin:]))
        if content.fold != fold_version():
            raise _Unusable("it was made by another version of the fold")
        return content.chain, _grid.decode(content.grid)
    except (zstandard.ZstdError, msgspec.MsgspecError, RecursionError) as error:
        raise _Unusable(f"it cannot be read: {error}") from error
