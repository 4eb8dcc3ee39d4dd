"""Bundles: a job's work directory and its file mounts in one archive that is the same whenever they are.

The archive's name is the SHA-256 of what is in it. What `.elasticgridignore` names (in the syntax of `.gitignore`) is
left out, and so is, unless that file takes it in again, what belongs to nobody else: version control, environments,
caches and what usually holds secrets.
"""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec
import pathspec

from elasticgrid.core.errors import InvalidJob
from elasticgrid.launcher import secret_looks
from elasticgrid.launcher.unpack import digest_of, stays_inside

IGNORE_FILE: Final = ".elasticgridignore"
#: What is in a bundle may have this many bytes, unless the launcher is told another number.
DEFAULT_LIMIT_BYTES: Final = 512 * 1024 * 1024
_LARGEST_TOLD: Final = 3
_COMPRESSION: Final = 6

#: Patterns that stand in front of those of the ignore file, which can therefore take anything in again.
LEFT_OUT: Final = (
    ".git/",
    ".hg/",
    ".svn/",
    ".venv/",
    "venv/",
    "node_modules/",
    "__pycache__/",
    "*.pyc",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".elasticgrid/",
    ".DS_Store",
    ".env",
    ".env.*",
    "!.env.example",
    "*.env",
    "!*example.env",
    ".envrc",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".git-credentials",
    ".ssh/",
    ".aws/",
    ".azure/",
    ".docker/",
    ".gcloud/",
    ".kube/",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.keystore",
    "id_rsa*",
    "id_ecdsa*",
    "id_ed25519*",
)


class Entry(msgspec.Struct, frozen=True):
    """One path of a bundle.

    Attributes:
        source: where it is on this machine.
        link: what a symbolic link leads to; empty for files and folders.
        bytes: of a file; 0 for links and folders.
    """

    source: Path
    is_folder: bool = False
    link: str = ""
    bytes: int = 0


class Contents(msgspec.Struct, frozen=True):
    """What would be in a bundle.

    Attributes:
        entries: by path in the bundle.
        warnings: a sentence each: what looks like a secret, what was left out because it is no file.
    """

    entries: dict[str, Entry]
    warnings: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Of all files together, before they are compressed."""
        return sum(entry.bytes for entry in self.entries.values())


class Bundle(msgspec.Struct, frozen=True):
    """An archive: where it is, and the SHA-256 of its bytes."""

    archive: Path
    digest: str
    warnings: tuple[str, ...] = ()


def contents(
    workdir: Path,
    mounts: Mapping[str, str] | None = None,
    *,
    without: Iterable[Path] = (),
    most_entries: int | None = None,
) -> Contents:
    """What a bundle of this folder would hold. Reads names, and files that may hold a secret.

    Args:
        workdir: the folder.
        mounts: paths in the bundle and the files or folders of this machine that are put there.
        without: files and folders of this machine of which nothing is in any bundle.
        most_entries: after so many the rest is not looked at; None for all of it.

    Raises:
        InvalidJob: a folder is not there, a link leads out of it, or a mount or the ignore file is wrong.
    """
    walk = _Walk(without, most_entries)
    if not workdir.is_dir():
        raise InvalidJob("the folder does not exist on the launcher's machine", where=str(workdir))
    walk.require_open(workdir, "workdir")
    walk.folder(workdir, PurePosixPath(), _ignored(workdir))
    for name, source in sorted((mounts or {}).items()):
        walk.mount(_place(name), Path(source))
    return Contents(dict(sorted(walk.entries.items())), tuple(walk.warnings))


def pack(found: Contents, store: Path, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Bundle:
    """Write the archive into `store`, whole or not at all; one that is there already is kept.

    Raises:
        InvalidJob: there is too much in it, or a file changed while it was read.
        OSError: the disk does not do it.
    """
    if found.bytes > limit_bytes:
        largest = sorted(found.entries.items(), key=lambda item: item[1].bytes, reverse=True)[:_LARGEST_TOLD]
        told = ", ".join(f"{name} ({entry.bytes:,} bytes)" for name, entry in largest)
        raise InvalidJob(
            f"the bundle would have {found.bytes:,} bytes, at most {limit_bytes:,} are allowed",
            where=told,
            hint=f"name in {IGNORE_FILE} what the nodes do not need",
        )
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".bundle-", dir=store)
    path = Path(name)
    try:
        with open(descriptor, "wb") as file:
            # No name and no time in the header: equal contents are equal bytes.
            with gzip.GzipFile("", "wb", _COMPRESSION, file, mtime=0) as zipped:
                _write(found, zipped)
            file.flush()
            os.fsync(file.fileno())
        digest = digest_of(path)
        archive = store / f"{digest}.tar.gz"
        path.replace(archive)
    finally:
        path.unlink(missing_ok=True)
    return Bundle(archive, digest, found.warnings)


def _write(found: Contents, file: gzip.GzipFile) -> None:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, entry in found.entries.items():
            info = tarfile.TarInfo(name)
            if entry.is_folder:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
            elif entry.link:
                info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, entry.link
                tar.addfile(info)
            else:
                _write_file(tar, info, entry)


def _write_file(tar: tarfile.TarFile, info: tarfile.TarInfo, entry: Entry) -> None:
    try:
        with entry.source.open("rb") as source:
            status = os.fstat(source.fileno())
            info.size = status.st_size
            info.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
            if info.size != entry.bytes:
                raise InvalidJob("the file changed while the bundle was made", where=str(entry.source))
            tar.addfile(info, source)
    except OSError as error:
        # tarfile says "unexpected end of data" of a file that became shorter.
        raise InvalidJob(f"the file cannot be read: {error}", where=str(entry.source)) from error


class _Walk:
    """Goes through folders and notes what is in them, without following links."""

    def __init__(self, without: Iterable[Path], most_entries: int | None) -> None:
        self.entries: dict[str, Entry] = {}
        self.warnings: list[str] = []
        self._without = frozenset(Path(os.path.realpath(path)) for path in without)
        self._most_entries = most_entries

    def require_open(self, source: Path, where: str) -> None:
        """Refuse a file or folder that is in no bundle.

        Raises:
            InvalidJob: it is one, or in one.
        """
        if not self._without.isdisjoint([source.resolve(), *source.resolve().parents]):
            raise InvalidJob("this is a secret of the job's or the grid's own", where=f"{where}: {source}")

    def folder(self, source: Path, name: PurePosixPath, ignored: pathspec.GitIgnoreSpec) -> None:
        """Everything in a folder but what is ignored."""
        self._folder(source.resolve(), name, PurePosixPath(), ignored)

    def mount(self, name: PurePosixPath, source: Path) -> None:
        """A file or folder of this machine, in the place of what the work directory may have there."""
        if not source.exists():
            raise InvalidJob("there is no such file or folder on the launcher's machine", where=f"{name}: {source}")
        self.require_open(source, f"file_mounts.{name}")
        for parent in [*name.parents][-2::-1]:
            above = self.entries.setdefault(str(parent), Entry(source.parent, is_folder=True))
            if not above.is_folder:
                raise InvalidJob(f"{parent} is a file in the work directory", where=f"file_mounts.{name}")
        for other in [other for other in self.entries if PurePosixPath(other).is_relative_to(name)]:
            del self.entries[other]
        real = source.resolve()
        if real.is_dir():
            self.entries[str(name)] = Entry(real, is_folder=True)
            self.folder(real, name, _spec(LEFT_OUT))
        else:
            self._entry(real, name, real.stat())

    def _folder(self, source: Path, top: PurePosixPath, below: PurePosixPath, ignored: pathspec.GitIgnoreSpec) -> None:
        try:
            children = sorted(os.scandir(source), key=lambda child: child.name)
        except OSError as error:
            raise InvalidJob(f"the folder cannot be read: {error.strerror}", where=str(source)) from error
        for child in children:
            name = below / child.name
            is_folder = child.is_dir(follow_symlinks=False)
            if ignored.match_file(f"{name}/" if is_folder else str(name)):
                continue
            path = Path(child.path)
            if path in self._without:
                continue
            if self._most_entries is not None and len(self.entries) >= self._most_entries:
                return
            if child.is_symlink():
                self._link(path, top, name)
            elif is_folder:
                self.entries[str(top / name)] = Entry(path, is_folder=True)
                self._folder(path, top, name, ignored)
            else:
                self._entry(path, top / name, child.stat(follow_symlinks=False))

    def _link(self, path: Path, top: PurePosixPath, name: PurePosixPath) -> None:
        target = os.readlink(path)
        if not stays_inside(name, target):
            raise InvalidJob(
                f"the link leads out of the folder, to {target}",
                where=str(path),
                hint=f"name it in {IGNORE_FILE}, or put a copy in its place",
            )
        self.entries[str(top / name)] = Entry(path, link=target)

    def _entry(self, path: Path, name: PurePosixPath, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            self.warnings.append(f"{name} is no file and is left out")
            return
        why = secret_looks.why(path, status.st_size)
        if why:
            self.warnings.append(f"{name} looks like a secret: {why}; name it in {IGNORE_FILE} if it is one")
        self.entries[str(name)] = Entry(path, bytes=status.st_size)


def _place(name: str) -> PurePosixPath:
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts or not place.parts or "\0" in name:
        raise InvalidJob(
            "a place in the job's folder is wanted", where=f"file_mounts.{name}", hint="a relative path, such as data"
        )
    return place


def _ignored(workdir: Path) -> pathspec.GitIgnoreSpec:
    path = workdir / IGNORE_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        lines = []
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidJob(f"the file cannot be read: {error}", where=str(path)) from error
    try:
        return _spec((*LEFT_OUT, *lines))
    except ValueError as error:
        raise InvalidJob(f"a line is no pattern: {error}", where=str(path)) from error


def _spec(lines: Iterable[str]) -> pathspec.GitIgnoreSpec:
    return pathspec.GitIgnoreSpec.from_lines(lines)
