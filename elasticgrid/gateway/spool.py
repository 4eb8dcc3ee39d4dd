"""Archives on their way through the gateway: files in the data folder that are gone when the request is over."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path
from typing import Final

from elasticgrid.core.errors import ElasticGridError, InvalidInput

FOLDER: Final = "spool"
#: What a gateway that was killed has left is removed after this.
_FORGOTTEN_S: Final = 86_400.0
_CHUNK_BYTES: Final = 256 * 1024


@contextlib.contextmanager
def spool_folder(data_dir: Path) -> Iterator[Path]:
    """A folder of its own for one request, removed at the end.

    Raises:
        ElasticGridError: it cannot be made or written to.
    """
    base = data_dir / FOLDER
    with _told(base):
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_forgotten(base)
        folder = Path(tempfile.mkdtemp(dir=base))
    try:
        with _told(base):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def receive(chunks: AsyncIterator[bytes], path: Path, *, most_bytes: int) -> int:
    """Write a request's body to a file and return its size.

    Raises:
        InvalidInput: it is larger than `most_bytes`.
        OSError: it cannot be written.
    """
    size = 0
    with path.open("xb") as file:
        async for chunk in chunks:
            size += len(chunk)
            if size > most_bytes:
                raise InvalidInput(f"an archive has at most {most_bytes:,} bytes", where="body")
            await asyncio.to_thread(file.write, chunk)
    return size


async def sent(path: Path) -> AsyncGenerator[bytes]:
    """The file's bytes, a piece at a time."""
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            yield chunk


@contextlib.contextmanager
def _told(where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ElasticGridError(
            f"the gateway cannot write here: {error.strerror or error}",
            where=str(where),
            hint="is there space left, and may it write there?",
        ) from error


def _remove_forgotten(base: Path) -> None:
    now_s = time.time()
    for folder in base.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if now_s - folder.stat().st_mtime > _FORGOTTEN_S:
                shutil.rmtree(folder, ignore_errors=True)
