"""The gateway as the command line sees it: requests, pages, event streams, and its errors as ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
import msgspec

from elasticgrid.config.settings import Settings, resolve
from elasticgrid.core.errors import (
    BusUnavailable,
    CannotPlace,
    Conflict,
    ElasticGridError,
    InvalidInput,
    NotAllowed,
    NotFound,
)
from elasticgrid.projections.results import EventView
from elasticgrid.runtime.control_plane import GATEWAY_FILE, GatewayFile

_T = TypeVar("_T")

REQUEST_TIMEOUT_S: Final = 30.0
#: The server says something at least this often on a stream; longer silence means that it is gone.
STREAM_TIMEOUT_S: Final = 45.0


class _Problem(msgspec.Struct):
    """What is read of a problem+json answer."""

    detail: str = ""
    title: str = ""
    code: str = ""
    where: str = ""
    hint: str = ""


_BY_CODE: Final[dict[str, type[ElasticGridError]]] = {
    error.code: error for error in (BusUnavailable, CannotPlace, Conflict, InvalidInput, NotAllowed, NotFound)
}
_BY_STATUS: Final[dict[int, type[ElasticGridError]]] = {
    400: InvalidInput,
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    413: InvalidInput,
    422: InvalidInput,
    503: BusUnavailable,
}


class Gateway:
    """A connection to the gateway, closed at the end of the block that `gateway` makes."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def get(self, path: str, kind: type[_T], **parameters: Any) -> _T:
        """What is at `path`, as a value of `kind`. Parameters that are None are left out."""
        return self._answer(self._send("GET", path, parameters), kind)

    def post(
        self, path: str, kind: type[_T], body: Any = None, *, headers: dict[str, str] | None = None, **parameters: Any
    ) -> _T:
        """Send `body` as JSON to `path`."""
        content = msgspec.json.encode(body) if body is not None else b""
        return self._answer(self._send("POST", path, parameters, content=content, headers=headers), kind)

    def delete(self, path: str, kind: type[_T], **parameters: Any) -> _T:
        """Ask that what is at `path` ends."""
        return self._answer(self._send("DELETE", path, parameters), kind)

    def events(self, path: str, *, after: int | None = None, **parameters: Any) -> Iterator[EventView]:
        """Events as they come, for ever; a broken connection is taken up again after the last event seen."""
        last = after
        while True:
            headers = {"Last-Event-ID": str(last)} if last is not None else {}
            try:
                with self._http.stream(
                    "GET",
                    path,
                    params=_given(parameters),
                    headers=headers,
                    timeout=httpx.Timeout(REQUEST_TIMEOUT_S, read=STREAM_TIMEOUT_S),
                ) as answer:
                    if answer.is_error:
                        answer.read()
                        raise _error_of(answer)
                    for line in answer.iter_lines():
                        if line.startswith("data:"):
                            event = msgspec.json.decode(line[5:].strip(), type=EventView)
                            last = event.sequence
                            yield event
            except httpx.ReadTimeout:
                continue
            except httpx.TransportError as error:
                if last is None:
                    raise _unreachable(self._http, error) from error

    def _send(self, method: str, path: str, parameters: dict[str, Any], **more: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, params=_given(parameters), **more)
        except httpx.TransportError as error:
            raise _unreachable(self._http, error) from error
        if answer.is_error:
            raise _error_of(answer)
        return answer

    @staticmethod
    def _answer(answer: httpx.Response, kind: type[_T]) -> _T:
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.MsgspecError as error:
            raise ElasticGridError(
                f"the gateway answered something else than expected: {error}",
                where=str(answer.url),
                hint="gateway and command line may be of different versions: see elasticgrid --version",
            ) from error


def _given(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


def _unreachable(http: httpx.Client, error: Exception) -> BusUnavailable:
    return BusUnavailable(
        f"the gateway does not answer: {error}", where=str(http.base_url), hint="start one with: elasticgrid up"
    )


def _error_of(answer: httpx.Response) -> ElasticGridError:
    try:
        problem = msgspec.json.decode(answer.content, type=_Problem)
    except msgspec.MsgspecError:
        problem = _Problem(detail=f"the gateway answered {answer.status_code} {answer.reason_phrase}")
    kind = _BY_CODE.get(problem.code) or _BY_STATUS.get(answer.status_code, ElasticGridError)
    return kind(problem.detail or problem.title, where=problem.where, hint=problem.hint)


@contextmanager
def gateway(flags: dict[str, str | None]) -> Iterator[Gateway]:
    """The gateway that flags, environment, files or the data folder name.

    Raises:
        InvalidInput: none is named and none runs from the data folder.
        NotFound: the key file is not there.
    """
    settings = resolve(flags, os.environ, folder=Path.cwd())
    url, key_file = _where(settings)
    headers = {"X-API-Key": _key(key_file)}
    with httpx.Client(base_url=url, headers=headers, timeout=REQUEST_TIMEOUT_S, trust_env=False) as http:
        yield Gateway(http)


def _where(settings: Settings) -> tuple[str, str]:
    url, key_file = settings.gateway_url.value, settings.key_file.value
    if url and key_file:
        return url, key_file
    told = Path(settings.data_dir.value) / GATEWAY_FILE
    try:
        here = msgspec.json.decode(told.read_bytes(), type=GatewayFile)
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidInput(
            "no gateway is named and none runs from this folder",
            where=str(told),
            hint="start one with: elasticgrid up, or name one with --url and --key-file",
        ) from error
    if url and url != here.url:
        raise InvalidInput("the key for this gateway is not named", where=url, hint="name it with --key-file")
    return url or here.url, key_file or here.key_file


def _key(path: str) -> str:
    if path == "-":
        return input().strip()
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise NotFound(f"the key file cannot be read: {error.strerror}", where=path) from error
