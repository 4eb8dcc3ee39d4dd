"""Plain messages to a bus from any thread: sent by a thread of its own, dropped when they cannot be."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from multiprocessing.util import Finalize
from typing import Final, Literal

import nats.errors

from elasticgrid.bus.connect import BusAddress, connect, disconnect
from elasticgrid.bus.subjects import run_subject
from elasticgrid.core.errors import ElasticGridError

_log = logging.getLogger("elasticgrid.elastic")

WAITING_MOST: Final = 1_000
CONNECT_S: Final = 5.0
CLOSE_S: Final = 2.0


class BusSender:
    """Sends to `grid.<kind>.<run>.<what>`. Nothing it does blocks or raises; `dropped` counts what was not sent.

    What waits when the process ends is sent first, within two seconds.

    Args:
        address: the bus.
        kind: what the messages are.
        run_id: the run they are about.
    """

    def __init__(self, address: BusAddress, kind: Literal["lifecycle", "metrics"], run_id: str) -> None:
        self.dropped = 0
        self._address = address
        self._kind: Literal["lifecycle", "metrics"] = kind
        self._run_id = run_id
        self._lock = threading.Lock()
        self._waiting: list[tuple[str, bytes]] = []
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()

    def send(self, what: str, data: bytes) -> None:
        """Send a message, some time."""
        if os.getpid() != self._owner:  # the thread did not come along into a forked child
            self.dropped += 1
            return
        with self._lock:
            if self._closing or len(self._waiting) >= WAITING_MOST:
                self.dropped += 1
                return
            self._waiting.append((run_subject(self._kind, self._run_id, what), data))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"{self._kind} to bus", daemon=True)
                self._thread.start()
                # Unlike an exit handler it is also asked in a process that multiprocessing started.
                Finalize(None, self.close, exitpriority=0)
            self._wake_up()

    def close(self) -> None:
        """Send what waits, within two seconds, and end."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._closing = True
            self._wake_up()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _wake_up(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake.set)

    def _run(self) -> None:
        try:
            asyncio.run(self._send_all())
        except (ElasticGridError, nats.errors.Error, OSError) as error:
            _log.warning("messages are not sent to the bus: %s", error)
        with self._lock:
            self._closing, self._loop = True, None
            self.dropped += len(self._waiting)
            self._waiting.clear()

    async def _send_all(self) -> None:
        with self._lock:
            self._loop = asyncio.get_running_loop()
        client = await connect(self._address, name=self._kind, connect_timeout_s=CONNECT_S)
        try:
            while True:
                with self._lock:
                    taken, self._waiting = self._waiting, []
                    closing = self._closing
                    self._wake.clear()
                for subject, data in taken:
                    try:
                        await client.publish(subject, data)
                    except (nats.errors.Error, OSError):
                        self.dropped += 1
                if closing:
                    return
                await self._wake.wait()
        finally:
            await disconnect(client)
