"""Where a launcher keeps bundles: each once, and for each submission of a job the one that all its launches use.

A node that is added hours later so runs what the others run, whatever became of the work directory.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

from elasticgrid.launcher.bundle import Bundle, contents, pack

_log = structlog.get_logger("launcher")

_SUBMISSIONS: Final = "submissions"


class BundleWish(msgspec.Struct, frozen=True, kw_only=True):
    """What a launch is to be given.

    Attributes:
        submission: names the submission of the job; one file name.
        source: the job's work directory on the launcher's machine.
        mounts: paths in the bundle and what is put there.
        limit_bytes: the most that may be in it.
        here: whether it is unpacked on the launcher's machine; otherwise the engine sends it to the nodes.
    """

    submission: str
    source: str
    mounts: dict[str, str]
    limit_bytes: int
    here: bool = False


class _Kept(msgspec.Struct, frozen=True):
    digest: str
    source: str
    mounts: Mapping[str, str]


class BundleStore:
    """The bundles in one folder. Only one process uses it at a time."""

    _packing: Final = threading.Lock()

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def bundle(self, wish: BundleWish) -> Bundle:
        """The submission's bundle; it is made when it is asked for first.

        Raises:
            InvalidJob: it cannot be made of these folders.
            OSError: the disk does not do it.
        """
        kept_path = self._folder / _SUBMISSIONS / f"{wish.submission}.json"
        with self._packing:
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                kept = msgspec.json.decode(kept_path.read_bytes(), type=_Kept)
                archive = self._archive(kept.digest)
                if archive.is_file():
                    return Bundle(archive, kept.digest)
            bundle = pack(contents(Path(wish.source), wish.mounts), self._folder, limit_bytes=wish.limit_bytes)
            for warning in bundle.warnings:
                _log.warning("in a bundle", source=wish.source, warning=warning)
            kept_path.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomically(kept_path, msgspec.json.encode(_Kept(bundle.digest, wish.source, wish.mounts)))
        _log.info("bundled", source=wish.source, sha256=bundle.digest, bytes=bundle.archive.stat().st_size)
        return bundle

    def _archive(self, digest: str) -> Path:
        return self._folder / f"{digest}.tar.gz"


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read; it is whole or as it was."""
    temporary = path.with_name(f"{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(path)
