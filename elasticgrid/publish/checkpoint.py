"""Checkpoints as folders that are either complete or not there: written aside, synced, then renamed.

A committed checkpoint is `<folder>/step-<step>-round-<round>/` with its files and a `manifest.json` that names each
file with its size and SHA-256. Its URI is the folder's path. No file of it is ever changed: other files for the same
step and round take the place of the whole folder at once. A framework that writes a folder of its own is followed by
`seal`, which commits that folder as it stands.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from elasticgrid.core.errors import CheckpointDamaged, InvalidInput, NotFound

MANIFEST = "manifest.json"
_COMMITTED = re.compile(r"^step-(\d{10})-round-(\d{6})$")
_NAME_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
_FILE_NAME = re.compile(rf"^{_NAME_PART}(/{_NAME_PART}){{0,7}}$")
_UNFINISHED = ".unfinished"
_READ_BYTES = 1024 * 1024
_TEMPORARY = ".writing-"
#: Of the system call renameat2: relative to the working directory, and both names change places.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2

_Size = Annotated[int, msgspec.Meta(ge=0)]


class _File(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    bytes: _Size
    sha256: str


class _Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    step: _Size
    round: _Size
    files: list[_File]


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A committed checkpoint that was found whole.

    Attributes:
        step: optimizer steps in it.
        uri: the path of its folder.
        sha256: of its manifest, which names the hash of every file.
        bytes: of all its files, the manifest left out.
    """

    step: int
    uri: str
    sha256: str
    bytes: int


def write(folder: str | os.PathLike[str], step: int, files: Mapping[str, bytes], *, round: int = 0) -> str:  # noqa: A002 - the word of the whole protocol
    """Commit `files` as the training state after `step` steps, taken in `round`.

    When this returns the checkpoint is on disk: every file, the manifest, the folder and its name were synced. Where
    the same files are committed for this step and round already, nothing is done. Where other ones are, or damaged
    ones, these take their place, at once where the file system can do that.

    Returns:
        The checkpoint's URI.

    Raises:
        InvalidInput: a negative step or round, no files, or a file name that is not a plain name.
        OSError: the disk did not do it; nothing was committed.
    """
    _check_numbers(step, round)
    if not files:
        raise InvalidInput("a checkpoint has at least one file", where=f"step {step}")
    for name in files:
        _check_name(name)
    root = Path(folder).absolute()
    root.mkdir(parents=True, exist_ok=True)
    target = Path(path_of(root, step, round=round))
    manifest = _encode(
        _Manifest(
            format=1,
            step=step,
            round=round,
            files=[_File(name=n, bytes=len(d), sha256=hashlib.sha256(d).hexdigest()) for n, d in sorted(files.items())],
        )
    )
    with suppress(CheckpointDamaged, NotFound):
        if verify(target).sha256 == hashlib.sha256(manifest).hexdigest():
            return str(target)
    temporary = root / f"{_TEMPORARY}{target.name}-{secrets.token_hex(4)}"
    temporary.mkdir()
    try:
        for name, data in files.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            _write_synced(temporary / name, data)
        _write_synced(temporary / MANIFEST, manifest)
        for below in {(temporary / name).parent for name in files} | {temporary}:
            _sync_folder(below)
        _put_in_place(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync_folder(root)
    return str(target)


def seal(folder: str | os.PathLike[str], step: int, *, round: int = 0) -> str:  # noqa: A002 - as above
    """Commit a folder that somebody else wrote, with all files in it and below, as the training state after `step`.

    When this returns every file was synced and the manifest is on disk. The folder's name is free; only one that
    is named by `path_of` is found by `latest` and `prune`.

    Returns:
        The checkpoint's URI.

    Raises:
        InvalidInput: a negative step or round, no files, or a file name that is not plain.
        OSError: a file cannot be read or synced; nothing was committed.
    """
    root = Path(folder).absolute()
    _check_numbers(step, round)
    files = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and name != MANIFEST and not name.endswith(_UNFINISHED):
            _check_name(name)
            size, sha256, _ = _read_file(path, keep=False, sync=True)
            files.append(_File(name=name, bytes=size, sha256=sha256))
    if not files:
        raise InvalidInput("a checkpoint has at least one file", where=str(root))
    for below in sorted({path.parent for path in root.rglob("*")}):
        _sync_folder(below)
    unfinished = root / f"{MANIFEST}{_UNFINISHED}"
    unfinished.unlink(missing_ok=True)
    _write_synced(unfinished, _encode(_Manifest(format=1, step=step, round=round, files=files)))
    unfinished.rename(root / MANIFEST)
    _sync_folder(root)
    return str(root)


def path_of(folder: str | os.PathLike[str], step: int, *, round: int = 0) -> str:  # noqa: A002 - as above
    """Where in `folder` the checkpoint of a step and round lies, committed or not."""
    return str(Path(folder).absolute() / f"step-{step:010d}-round-{round:06d}")


def verify(uri: str | os.PathLike[str]) -> CheckpointInfo:
    """Read every file of the checkpoint and compare it with the manifest.

    Raises:
        NotFound: there is no committed checkpoint at `uri`.
        CheckpointDamaged: a file is missing, short or changed, or the manifest cannot be read.
    """
    info, _ = _read(Path(uri), keep=False)
    return info


def load(uri: str | os.PathLike[str]) -> dict[str, bytes]:
    """The files of the checkpoint by name, verified as they are read.

    Raises:
        NotFound, CheckpointDamaged: as `verify`.
    """
    _, files = _read(Path(uri), keep=True)
    return files


def latest(folder: str | os.PathLike[str]) -> str | None:
    """The URI of the checkpoint with the most steps that is whole, or None. Half-written ones are passed over."""
    for _, path in _committed(Path(folder)):
        with suppress(CheckpointDamaged, NotFound):
            return verify(path).uri
    return None


def prune(folder: str | os.PathLike[str], keep: int) -> list[str]:
    """Remove all but the `keep` newest whole checkpoints, and what is older than the oldest kept one.

    Nothing is removed while fewer than `keep` whole ones are there.

    Returns:
        The paths that were removed.

    Raises:
        InvalidInput: `keep` is below 1.
    """
    if keep < 1:
        raise InvalidInput("at least one checkpoint is kept", where=f"keep = {keep}")
    root = Path(folder)
    kept: list[tuple[int, int]] = []
    for key, path in _committed(root):
        with suppress(CheckpointDamaged, NotFound):
            verify(path)
            kept.append(key)
        if len(kept) == keep:
            break
    if len(kept) < keep:
        return []
    removed = []
    for path in sorted(root.iterdir()):
        found = _COMMITTED.match(path.name.removeprefix(_TEMPORARY).rsplit("-", 1)[0]) or _COMMITTED.match(path.name)
        if found is not None and (int(found[1]), int(found[2])) < kept[-1]:
            _remove(path)
            removed.append(str(path))
    return removed


def _committed(root: Path) -> list[tuple[tuple[int, int], Path]]:
    """Folders with a committed checkpoint's name, newest (step, round) first."""
    if not root.is_dir():
        return []
    found = [(match, path) for path in root.iterdir() if (match := _COMMITTED.match(path.name)) is not None]
    return sorted((((int(match[1]), int(match[2])), path) for match, path in found), reverse=True)


def _read(path: Path, *, keep: bool) -> tuple[CheckpointInfo, dict[str, bytes]]:
    path = path.absolute()
    try:
        raw = (path / MANIFEST).read_bytes()
    except OSError as error:
        raise NotFound("no committed checkpoint is there", where=str(path)) from error
    try:
        manifest = msgspec.json.decode(raw, type=_Manifest)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _damaged(path / MANIFEST, f"the manifest cannot be read: {error}") from error
    if manifest.format != 1:
        raise _damaged(path / MANIFEST, f"format {manifest.format} is not known here")
    files: dict[str, bytes] = {}
    for file in manifest.files:
        if not _is_plain(file.name):
            raise _damaged(path / MANIFEST, f"{file.name!r} is not a plain file name")
        try:
            size, sha256, data = _read_file(path / file.name, keep=keep)
        except OSError as error:
            raise _damaged(path / file.name, "the file is missing") from error
        if size != file.bytes:
            raise _damaged(path / file.name, f"{size} bytes are there, {file.bytes} were written")
        if sha256 != file.sha256:
            raise _damaged(path / file.name, "its content changed after it was written")
        if keep:
            files[file.name] = data
    info = CheckpointInfo(
        step=manifest.step,
        uri=str(path),
        sha256=hashlib.sha256(raw).hexdigest(),
        bytes=sum(file.bytes for file in manifest.files),
    )
    return info, files


def _check_numbers(step: int, round_number: int) -> None:
    if step < 0 or round_number < 0:
        raise InvalidInput(
            "step and round of a checkpoint are not negative", where=f"step {step}, round {round_number}"
        )


def _check_name(name: str) -> None:
    if not _is_plain(name) or name == MANIFEST:
        raise InvalidInput("not a plain file name", where=repr(name), hint="letters, digits, `.`, `_` and `-`")


def _is_plain(name: str) -> bool:
    """Whether it names a file in the checkpoint's folder or a few folders below it, and none elsewhere."""
    return _FILE_NAME.fullmatch(name) is not None


def _read_file(path: Path, *, keep: bool, sync: bool = False) -> tuple[int, str, bytes]:
    """Size and SHA-256 of a file, and its content if it is kept; else a part at a time is in memory."""
    digest, size, parts = hashlib.sha256(), 0, []
    with path.open("rb") as file:
        while part := file.read(_READ_BYTES):
            digest.update(part)
            size += len(part)
            if keep:
                parts.append(part)
        if sync:
            os.fsync(file.fileno())
    return size, digest.hexdigest(), b"".join(parts)


def _encode(manifest: _Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def _damaged(path: Path, what: str) -> CheckpointDamaged:
    return CheckpointDamaged(what, where=str(path), hint="resume from an older checkpoint")


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_in_place(written: Path, target: Path) -> None:
    """Give a folder its name; what had it before is removed."""
    try:
        written.rename(target)
        return
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
    if _exchanged(written, target):
        _sync_folder(target.parent)
        _remove(written)
        return
    # Not every file system over a network can exchange two names: the old one is out of the way for a moment.
    aside = written.with_name(f"{written.name}-old")
    target.rename(aside)
    written.rename(target)
    _sync_folder(target.parent)
    _remove(aside)


def _exchanged(one: Path, other: Path) -> bool:
    """Whether the two names could be exchanged, which the system does in one step."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    if renameat2 is None:
        return False
    return bool(renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)


def _remove(path: Path) -> None:
    """Remove a checkpoint's folder, its manifest first so that it counts as uncommitted from then on."""
    with suppress(OSError):
        (path / MANIFEST).unlink()
    shutil.rmtree(path, ignore_errors=True)
