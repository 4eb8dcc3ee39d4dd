"""As much of an HTTP client as metadata services need: one request a connection, everything within one time-out."""

from __future__ import annotations

import asyncio
import http.client
import io
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from elasticgrid.agent.notices.notice import SourceTrouble

#: More than any answer of a metadata service that is asked for here.
MAX_ANSWER_BYTES: Final = 256 * 1024


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A server's answer; names of headers are lower-case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode(errors="replace").strip()


async def request(
    method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes = b"", timeout_s: float
) -> Answer:
    """Ask `url`. No redirect is followed and no proxy is asked: a metadata service is next door.

    Raises:
        SourceTrouble: no answer within `timeout_s`, or none that is HTTP.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise SourceTrouble(f"{url} is no http address")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    fields = {"Host": parts.netloc, "Connection": "close", "Content-Length": str(len(body)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    try:
        async with asyncio.timeout(timeout_s):
            received = await _exchange(
                parts.hostname, parts.port or 80, f"{method} {target} HTTP/1.1\r\n{head}\r\n", body
            )
    except TimeoutError as error:
        raise SourceTrouble(f"{url} gave no answer in {timeout_s:g} s") from error
    except OSError as error:
        raise SourceTrouble(f"{url} cannot be reached: {error}") from error
    return _parsed(received, url)


async def _exchange(host: str, port: int, head: str, body: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(head.encode("latin-1") + body)
        received = b""
        while len(received) <= MAX_ANSWER_BYTES and (piece := await reader.read(65_536)):
            received += piece
        return received
    finally:
        writer.transport.abort()


class _Received:
    """What came over a connection, as the standard library's parser wants to read it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def _parsed(data: bytes, url: str) -> Answer:
    response = http.client.HTTPResponse(_Received(data))  # type: ignore[arg-type] # only makefile is called
    try:
        response.begin()
        body = response.read()
    except (http.client.HTTPException, ValueError, OSError) as error:
        raise SourceTrouble(f"{url} answered with something that is not HTTP: {error!r}") from error
    return Answer(
        status=response.status, headers={name.lower(): value for name, value in response.getheaders()}, body=body
    )
