"""The links between ranks: made ready before the first message, and quick for small ones."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from iroh_tinker.comm import SocketTransport

#: A greeting is a header without a payload.
GREETING_BYTES = 17


def ready(transport: object, rendezvous_dir: Path, timeout_s: float = 120.0) -> None:
    """Return when every rank of this world can send to every other; nothing to do in a world of one.

    A rank counts an accepted peer as connected shortly before its link can be written to, and a message sent in that
    moment goes to another peer, so that one rank waits for it for ever. A link is complete on both sides when the rank
    that connected has the other's greeting back. So each rank waits for the greetings of all its peers, says so with a
    file, and goes on when all have said it.

    Raises:
        TimeoutError: Not all ranks were ready within `timeout_s`; it names those that were not.
    """
    if not isinstance(transport, SocketTransport):
        return
    deadline = time.monotonic() + timeout_s
    files = {rank: rendezvous_dir / f"ready-{rank}" for rank in range(transport.world_size)}
    while transport.bytes_received < GREETING_BYTES * (transport.world_size - 1):
        _pause(deadline, "greetings of its peers", f"{transport.bytes_received} bytes came")
    files[transport.rank].touch()
    while missing := [rank for rank, file in files.items() if not file.exists()]:
        _pause(deadline, "ready peers", f"not ready: ranks {missing}")


def quick(transport: object) -> None:
    """Send small messages at once; else each waits for the delayed acknowledgement of its header, 40 ms on Linux."""
    for connection in getattr(transport, "_peers", {}).values():
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _pause(deadline: float, waited_for: str, detail: str) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(f"This rank waited too long for the {waited_for}: {detail}.")
    time.sleep(0.005)
