"""A cable between a browser and a gateway that can be pulled and put back."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class Cable:
    """Forwards connections to a port of this machine. Use as a context manager."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._lock = threading.Lock()
        self._pulled = threading.Event()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pull()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def pull(self) -> None:
        """Every connection breaks, and no new one holds."""
        with self._lock:
            self._pulled.set()
            broken, self._open = self._open, set()
        for each in broken:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def put_back(self) -> None:
        """New connections hold."""
        with self._lock:
            self._pulled.clear()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(near,), daemon=True).start()

    def _forward(self, near: socket.socket) -> None:
        with contextlib.suppress(OSError), near:
            if self._pulled.is_set():
                return
            with socket.create_connection(("127.0.0.1", self._to)) as far:
                with self._lock:
                    if self._pulled.is_set():
                        return
                    self._open |= {near, far}
                back = threading.Thread(target=_copy, args=(far, near), daemon=True)
                back.start()
                _copy(near, far)
                back.join()
                with self._lock:
                    self._open -= {near, far}


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
