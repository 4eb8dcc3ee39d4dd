"""Files of a job's checkpoint folder, where the gateway sees that folder.

The job's own code writes into it, so nothing in it is trusted: a path is walked folder by folder from the root of the
checkpoints, no symbolic link is followed, and only plain files are listed or opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncGenerator, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from elasticgrid.core.errors import NotFound
from elasticgrid.core.job import JobState
from elasticgrid.core.names import submission_folder
from elasticgrid.core.spec import ProviderSpec

#: Files in one answer at most, and folders below each other.
MAX_FILES: Final = 10_000
MAX_DEPTH: Final = 32
MAX_PATH: Final = 4_096
_CHUNK_BYTES: Final = 256 * 1024
_OPEN_DIR: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a pipe that somebody put there must not wait for its writer.
_OPEN_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the checkpoint folder.

    Attributes:
        path: in that folder, with slashes.
        modified_ms: when it was written last, Unix milliseconds.
    """

    path: str
    size_bytes: int
    modified_ms: int


class ArtifactList(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a job's checkpoint folder, by path; `truncated` when there are more than one answer has."""

    job_id: str
    artifacts: tuple[Artifact, ...]
    truncated: bool = False


class CheckpointFolder(msgspec.Struct, frozen=True):
    """Where a job's workers write checkpoints.

    Attributes:
        bases: folders of the grid or of the job's file, of which one is it.
        names: the folders below it, which the job's code can replace.
    """

    bases: tuple[Path, ...]
    names: tuple[str, ...]


def checkpoint_folder(state: JobState, providers: Iterable[ProviderSpec], shared_dir: Path) -> CheckpointFolder:
    """Where the job's workers write checkpoints, as the launcher tells them.

    Args:
        state: the job.
        providers: where it runs.
        shared_dir: the launcher's own folder for jobs that name none.
    """
    assert state.spec is not None
    names = (submission_folder(state.tenant, state.id, state.submitted_id), "checkpoints")
    if state.spec.checkpoint_dir:
        return CheckpointFolder((Path(state.spec.workdir, state.spec.checkpoint_dir),), names)
    told = [Path(spec.params["shared_dir"]) for spec in providers if spec.params.get("shared_dir")]
    return CheckpointFolder(tuple(dict.fromkeys((*told, shared_dir))), names)


def list_files(folder: CheckpointFolder) -> tuple[tuple[Artifact, ...], bool]:
    """The plain files in it, by path, and whether there are more; none when it cannot be read."""
    found: list[Artifact] = []
    with contextlib.ExitStack() as stack:
        descriptor = _open_root(stack, folder)
        if descriptor is None:
            return (), False
        for artifact in _files(descriptor, "", 0):
            if len(found) == MAX_FILES:
                return tuple(found), True
            found.append(artifact)
    return tuple(found), False


def _open_root(stack: contextlib.ExitStack, folder: CheckpointFolder) -> int | None:
    for base in folder.bases:
        with contextlib.suppress(OSError, ValueError):
            descriptor = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            for name in folder.names:
                descriptor = os.open(name, _OPEN_DIR, dir_fd=descriptor)
                stack.callback(os.close, descriptor)
            return descriptor
    return None


def _files(folder: int, prefix: str, depth: int) -> Iterator[Artifact]:
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            if not _is_text(name):
                continue
            with contextlib.suppress(OSError):
                state = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(state.st_mode):
                    yield Artifact(
                        path=f"{prefix}{name}",
                        size_bytes=state.st_size,
                        modified_ms=state.st_mtime_ns // 1_000_000,
                    )
                elif stat.S_ISDIR(state.st_mode) and depth < MAX_DEPTH:
                    inner = os.open(name, _OPEN_DIR, dir_fd=folder)
                    try:
                        yield from _files(inner, f"{prefix}{name}/", depth + 1)
                    finally:
                        os.close(inner)


def open_file(root: CheckpointFolder, path: str) -> tuple[int, int]:
    """A descriptor of one file in it, which is the caller's to close, and its size.

    Raises:
        NotFound: there is no such plain file there, whatever else the path leads to.
    """
    parts = path.strip("/").split("/") if path else []
    if not parts or len(path) > MAX_PATH or any(part in ("", ".", "..") or not _is_text(part) for part in parts):
        raise _no_file()
    with contextlib.ExitStack() as stack:
        try:
            folder = _open_root(stack, root)
            if folder is None:
                raise _no_file()
            for part in parts[:-1]:
                folder = os.open(part, _OPEN_DIR, dir_fd=folder)
                stack.callback(os.close, folder)
            file = os.open(parts[-1], _OPEN_FILE, dir_fd=folder)
        except (OSError, ValueError):
            raise _no_file() from None
    state = os.fstat(file)
    if not stat.S_ISREG(state.st_mode):
        os.close(file)
        raise _no_file()
    return file, state.st_size


async def contents(file: int, size: int) -> AsyncGenerator[bytes]:
    """The first `size` bytes of a file, which is closed at the end; less where it was cut meanwhile."""
    try:
        at = 0
        while at < size:
            chunk = await asyncio.to_thread(os.pread, file, min(_CHUNK_BYTES, size - at), at)
            if not chunk:
                return
            at += len(chunk)
            yield chunk
    finally:
        os.close(file)


def _is_text(name: str) -> bool:
    """Whether a name can be said in JSON, in a header and in a line."""
    return name.isprintable() and "\\" not in name


def _no_file() -> NotFound:
    return NotFound("there is no such file in the checkpoint folder", where="path", hint="list the job's artifacts")
