"""Unix sockets at paths of any length: a socket address holds little more than 100 bytes, work folders may be deeper.

On Linux a long path is reached through the folder's descriptor, `/proc/self/fd/<n>/<name>`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from elasticgrid.core.errors import InvalidInput

#: The longest path that is used as it is, in bytes; the smallest limit of the systems in use is 104 with its end mark.
MAX_ADDRESS_BYTES = 100

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextmanager
def _address(path: str | os.PathLike[str]) -> Iterator[str]:
    """An address for `path` that is short enough; valid inside the block."""
    text = os.fspath(path)
    if len(os.fsencode(text)) <= MAX_ADDRESS_BYTES:
        yield text
        return
    folder, name = os.path.split(os.path.abspath(text))
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        short = f"/proc/self/fd/{descriptor}/{name}"
        if not os.path.isdir("/proc/self/fd") or len(os.fsencode(short)) > MAX_ADDRESS_BYTES:
            raise InvalidInput(
                f"the path is too long for a Unix socket ({len(os.fsencode(text))} bytes)",
                where=text,
                hint="choose a shorter folder or file name",
            )
        yield short
    finally:
        os.close(descriptor)


async def open_unix_connection(
    path: str | os.PathLike[str],
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the socket at `path`.

    Raises:
        OSError: nothing listens there.
        InvalidInput: the path is too long for this system.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        with _address(path) as address:
            await asyncio.get_running_loop().sock_connect(connection, address)
        return await asyncio.open_unix_connection(sock=connection)
    except BaseException:
        connection.close()
        raise


async def start_unix_server(handler: Handler, path: str | os.PathLike[str]) -> asyncio.Server:
    """Listen at `path`, for this user only; a socket left there by an earlier process is replaced.

    The socket's file stays when the server is closed: its folder's owner removes it.

    Raises:
        OSError: the folder is missing or not writable, or something else than a socket is at `path`.
        InvalidInput: the path is too long for this system.
    """
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        with _address(path) as address:
            listener.bind(address)
        os.chmod(path, 0o600)
        return await asyncio.start_unix_server(handler, sock=listener)
    except BaseException:
        listener.close()
        raise
