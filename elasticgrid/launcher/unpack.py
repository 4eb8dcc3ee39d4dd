"""Bundles unpacked: a clean folder that is whole or not there, and nothing outside of it.

This module is sent to nodes as it stands and runs there with Python 3.10 and nothing installed.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

#: Bundles that are kept where nobody needs them now, the latest used: the same one may be wanted again.
BUNDLES_KEPT: Final = 8
_PIECE: Final = 1 << 20


class BadBundleError(ValueError):
    """An archive that is not what its name says, or that would write outside of its folder."""


def digest_of(archive: Path) -> str:
    """The SHA-256 of a file, as hex digits."""
    digest = hashlib.sha256()
    with archive.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def unpack(archive: Path, folder: Path, digest: str) -> None:
    """Make `folder` what the archive holds and nothing else. What was there before is removed.

    Args:
        archive: a gzipped tar file.
        folder: appears with all that is in it, or stays as it was.
        digest: the SHA-256 the archive must have.

    Raises:
        BadBundleError: it has another, or names a place outside of the folder.
        OSError: the disk does not do it.
    """
    found = digest_of(archive)
    if found != digest:
        raise BadBundleError(f"the bundle {archive.name} is damaged: its SHA-256 is {found}, not {digest}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                _extract(tar, member, fresh)
        fresh.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        fresh.rename(folder)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadBundleError(f"the bundle {archive.name} is damaged: {error}") from error
    finally:
        if fresh.exists():
            shutil.rmtree(fresh, ignore_errors=True)


def latest_used(archives: Iterable[Path]) -> list[Path]:
    """The archives that are there, the latest used first."""
    used: dict[Path, float] = {}
    for archive in archives:
        with contextlib.suppress(FileNotFoundError):
            used[archive] = archive.stat().st_mtime
    return sorted(used, key=lambda path: used[path], reverse=True)


def stays_inside(name: PurePosixPath, target: str) -> bool:
    """Whether a link called `name` to `target` leads to a place below the folder that `name` is relative to."""
    if target.startswith("/"):
        return False
    parts: list[str] = []
    for part in (*name.parent.parts, *PurePosixPath(target).parts):
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
        else:
            return False
    return True


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or not name.parts:
        raise BadBundleError(f"the bundle names a place outside of its folder: {member.name}")
    path = folder / name
    if Path(os.path.realpath(path.parent)) != Path(os.path.realpath(folder)) / name.parent:
        raise BadBundleError(f"the bundle writes through a link: {member.name}")
    if member.isdir():
        path.mkdir(mode=0o755, exist_ok=True)
    elif member.issym():
        if not stays_inside(name, member.linkname):
            raise BadBundleError(f"the bundle has a link that leads outside: {member.name} -> {member.linkname}")
        path.symlink_to(member.linkname)
    elif member.isreg():
        source = tar.extractfile(member)
        assert source is not None
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, member.mode & 0o755)
        with open(descriptor, "wb") as file, source:
            shutil.copyfileobj(source, file, _PIECE)
    else:
        raise BadBundleError(f"the bundle has something that is no file: {member.name}")
