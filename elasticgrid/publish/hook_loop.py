"""An event loop that never keeps a process from ending.

The standard loop looks names up in a thread pool whose threads the interpreter waits for at its exit, so that a name
server that does not answer would hold the trainer. Here each lookup has a daemon thread of its own.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Any


class HookLoop(asyncio.SelectorEventLoop):
    """A selector loop whose `getaddrinfo` leaves no thread that anybody waits for."""

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002 - the name in the standard library
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """As `socket.getaddrinfo`."""
        answer: asyncio.Future[list[Any]] = self.create_future()

        def settle(result: list[Any] | None, error: OSError | UnicodeError | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result or [])

        def look_up() -> None:
            found, failed = None, None
            try:
                found = socket.getaddrinfo(host, port, family, type, proto, flags)
            except (OSError, UnicodeError) as error:
                failed = error
            with suppress(RuntimeError):  # the loop has ended meanwhile
                self.call_soon_threadsafe(settle, found, failed)

        threading.Thread(target=look_up, name="elasticgrid-hook-dns", daemon=True).start()
        return await answer
