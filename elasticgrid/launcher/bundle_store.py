"""Where a launcher keeps bundles: each once, and for each submission of a job the one that all its launches use.

A node that is added hours later so runs what the others run, whatever became of the work directory.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

from elasticgrid.launcher.bundle import Bundle, contents, pack
from elasticgrid.launcher.unpack import BUNDLES_KEPT, latest_used

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
        without: files of the launcher's machine that are left out, wherever in the bundle they would be.
    """

    submission: str
    source: str
    mounts: dict[str, str]
    limit_bytes: int
    here: bool = False
    without: tuple[str, ...] = ()


class _Kept(msgspec.Struct, frozen=True):
    digest: str
    source: str
    mounts: Mapping[str, str]


class BundleStore:
    """The bundles in one folder. Only one process uses it at a time.

    Args:
        folder: where they are.
        closed: files and folders of this machine of which nothing is in any bundle.
    """

    _packing: Final = threading.Lock()

    def __init__(self, folder: Path, closed: tuple[Path, ...] = ()) -> None:
        self._folder = folder
        self._closed = closed

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
                    os.utime(archive)
                    return Bundle(archive, kept.digest)
            found = contents(Path(wish.source), wish.mounts, without=(*map(Path, wish.without), *self._closed))
            bundle = pack(found, self._folder, limit_bytes=wish.limit_bytes)
            for warning in bundle.warnings:
                _log.warning("in a bundle", source=wish.source, warning=warning)
            kept_path.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomically(kept_path, msgspec.json.encode(_Kept(bundle.digest, wish.source, wish.mounts)))
        _log.info("bundled", source=wish.source, sha256=bundle.digest, bytes=bundle.archive.stat().st_size)
        return bundle

    def submissions(self) -> list[str]:
        """Those that have a bundle here."""
        return sorted(path.stem for path in (self._folder / _SUBMISSIONS).glob("*.json"))

    def prune(self, over: Iterable[str]) -> None:
        """Forget submissions that are over, and delete the bundles that none of the others has but the latest used.

        Raises:
            OSError: the disk does not do it.
        """
        with self._packing:
            for submission in over:
                (self._folder / _SUBMISSIONS / f"{submission}.json").unlink(missing_ok=True)
            needed = {self._archive(self._digest(submission)) for submission in self.submissions()}
            unused = [path for path in latest_used(self._folder.glob("*.tar.gz")) if path not in needed]
            for archive in unused[BUNDLES_KEPT:]:
                archive.unlink(missing_ok=True)
                _log.info("a bundle that nobody needs was deleted", sha256=archive.name.removesuffix(".tar.gz"))

    def _digest(self, submission: str) -> str:
        """Of its bundle; empty where it cannot be read, so that it will be made again."""
        try:
            path = self._folder / _SUBMISSIONS / f"{submission}.json"
            return msgspec.json.decode(path.read_bytes(), type=_Kept).digest
        except (OSError, msgspec.MsgspecError):
            return ""

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
