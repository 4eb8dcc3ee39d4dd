"""The gateway as the command line sees it: requests, pages, streams, whole archives, and its errors as ours."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import httpx
import msgspec

from elasticgrid.cli.flag_names import flag_of, with_flags
from elasticgrid.cli.output import say
from elasticgrid.config.settings import Settings, resolve
from elasticgrid.core.errors import (
    BusUnavailable,
    CannotPlace,
    Conflict,
    ElasticGridError,
    InvalidInput,
    NotAllowed,
    NotFound,
    Outdated,
    QuotaExceeded,
    RateLimited,
)
from elasticgrid.core.names import is_name
from elasticgrid.projections.results import EventView
from elasticgrid.runtime.gateway_file import GATEWAY_FILE, GatewayFile

_T = TypeVar("_T")

#: Names the certificates that the gateway's is checked with.
HTTP_CA: Final = "ELASTICGRID_HTTP_CA"
REQUEST_TIMEOUT_S: Final = 30.0
#: The server says something at least this often on a stream; longer silence means that it is gone.
STREAM_TIMEOUT_S: Final = 45.0
#: A whole log may be written into an archive, or appended from one, before the first byte of an answer.
ARCHIVE_TIMEOUT_S: Final = 3_600.0
#: Between two tries to take a broken stream up again.
RECONNECT_S: Final = 1.0
_CHUNK_BYTES: Final = 256 * 1024

OnProgress = Callable[[int, int], None]


class _Problem(msgspec.Struct):
    """What is read of a problem+json answer."""

    detail: str = ""
    title: str = ""
    code: str = ""
    where: str = ""
    hint: str = ""
    more: tuple[str, ...] = ()


class _WhoAmI(msgspec.Struct):
    """What is read of who asks."""

    tenant: str = ""


class StreamBroken(BusUnavailable):
    """A stream ended before its end; it can be taken up again."""


_BY_CODE: Final[dict[str, type[ElasticGridError]]] = {
    error.code: error
    for error in (
        BusUnavailable,
        CannotPlace,
        Conflict,
        InvalidInput,
        NotAllowed,
        NotFound,
        Outdated,
        QuotaExceeded,
        RateLimited,
    )
}
_BY_STATUS: Final[dict[int, type[ElasticGridError]]] = {
    400: InvalidInput,
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    412: Outdated,
    413: InvalidInput,
    422: InvalidInput,
    429: RateLimited,
    503: BusUnavailable,
}


def job_path(job: str, *rest: str) -> str:
    """The path of a job, or of something of it.

    Raises:
        NotFound: no job can be called so.
    """
    if not is_name(job):
        raise NotFound(f"there is no job {job[:80]!r}", hint="elasticgrid jobs list shows their ids")
    return "/".join(("/v1/jobs", job, *rest))


def provider_path(provider: str, *rest: str) -> str:
    """The path of a provider. Raises as `job_path`."""
    if not is_name(provider):
        raise NotFound(f"there is no provider {provider[:80]!r}", hint="elasticgrid providers list shows their names")
    return "/".join(("/v1/providers", provider, *rest))


def key_path(prefix: str, *rest: str) -> str:
    """The path of a key. Raises as `job_path`."""
    if not is_name(prefix):
        raise NotFound("there is no such key", where=prefix[:12], hint="elasticgrid keys list shows their prefixes")
    return "/".join(("/v1/keys", prefix, *rest))


def quota_path(tenant: str) -> str:
    """The path of a tenant's quota. Raises as `job_path`."""
    if not is_name(tenant):
        raise NotFound(f"there is no tenant {tenant[:80]!r}", hint="elasticgrid tenants list shows their names")
    return f"/v1/quotas/{tenant}"


def tenant_path(tenant: str) -> str:
    """The path of a tenant. Raises as `job_path`."""
    if not is_name(tenant):
        raise NotFound(f"there is no tenant {tenant[:80]!r}", hint="elasticgrid tenants list shows their names")
    return f"/v1/tenants/{tenant}"


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

    def put(self, path: str, kind: type[_T], body: Any) -> _T:
        """Let what is at `path` be `body`."""
        return self._answer(self._send("PUT", path, {}, content=msgspec.json.encode(body)), kind)

    def delete(self, path: str, kind: type[_T], **parameters: Any) -> _T:
        """Ask that what is at `path` ends."""
        return self._answer(self._send("DELETE", path, parameters), kind)

    def events(self, path: str, *, after: int | None = None, **parameters: Any) -> Iterator[EventView]:
        """Events as they come, for ever; a broken connection is taken up again after the last event seen."""
        last = after
        lost = False
        while True:
            headers = {"Last-Event-ID": str(last)} if last is not None else {}
            try:
                for event in self.stream(path, EventView, headers=headers, **parameters):
                    lost = False
                    last = event.sequence
                    yield event
            except BusUnavailable:
                if last is None:
                    raise
            if not lost:
                lost = True
                say("the gateway went away; waiting for it (Ctrl-C to stop)")
            time.sleep(RECONNECT_S)

    def stream(
        self, path: str, kind: type[_T], *, headers: dict[str, str] | None = None, **parameters: Any
    ) -> Iterator[_T]:
        """The values of one stream of server-sent events, to its end.

        Raises:
            StreamBroken: it broke off.
            BusUnavailable: it could not be begun.
        """
        begun = False
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
                begun = True
                for line in answer.iter_lines():
                    if line == "event: end":
                        return
                    if line.startswith("data:"):
                        yield msgspec.json.decode(line[5:].strip(), type=kind)
        except httpx.TransportError as error:
            if not begun:
                raise _unreachable(self._http, error) from error
        raise StreamBroken("the gateway ended the stream", where=str(self._http.base_url), hint="is it restarted?")

    def download(self, path: str, file: BinaryIO, *, on_progress: OnProgress | None = None, **parameters: Any) -> int:
        """Write what is at `path` into a file and return its size; `on_progress` is told the bytes so far and all."""
        timeout = httpx.Timeout(REQUEST_TIMEOUT_S, read=ARCHIVE_TIMEOUT_S)
        size = 0
        try:
            with self._http.stream("GET", path, params=_given(parameters), timeout=timeout) as answer:
                if answer.is_error:
                    answer.read()
                    raise _error_of(answer)
                whole = int(answer.headers.get("Content-Length", "0"))
                for chunk in answer.iter_raw(_CHUNK_BYTES):
                    size += len(chunk)
                    file.write(chunk)
                    if on_progress is not None:
                        on_progress(size, whole)
        except httpx.TransportError as error:
            raise _unreachable(self._http, error) from error
        if whole != size:
            raise StreamBroken(f"{size:,} of {whole:,} bytes came", where=path, hint="try again")
        return size

    def upload(
        self, path: str, file: BinaryIO, kind: type[_T], *, on_progress: OnProgress | None = None, **parameters: Any
    ) -> _T:
        """Send a file's bytes as the body to `path`."""
        whole = os.fstat(file.fileno()).st_size

        def chunks() -> Iterator[bytes]:
            size = 0
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
                size += len(chunk)
                if on_progress is not None:
                    on_progress(size, whole)

        timeout = httpx.Timeout(REQUEST_TIMEOUT_S, read=ARCHIVE_TIMEOUT_S)
        headers = {"Content-Length": str(whole), "Content-Type": "application/octet-stream"}
        answer = self._send("POST", path, parameters, content=chunks(), headers=headers, timeout=timeout)
        return self._answer(answer, kind)

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
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        hint = f"name the CA that signed it with {HTTP_CA}"
        return BusUnavailable(f"the gateway's certificate is not trusted: {error}", where=str(http.base_url), hint=hint)
    return BusUnavailable(
        f"the gateway does not answer: {error}", where=str(http.base_url), hint="start one with: elasticgrid up"
    )


def _error_of(answer: httpx.Response) -> ElasticGridError:
    try:
        problem = msgspec.json.decode(answer.content, type=_Problem)
    except msgspec.MsgspecError:
        problem = _Problem(detail=f"the gateway answered {answer.status_code} {answer.reason_phrase}")
    kind = _BY_CODE.get(problem.code) or _BY_STATUS.get(answer.status_code, ElasticGridError)
    what, hint, *story = map(with_flags, (problem.detail or problem.title, problem.hint, *problem.more))
    return kind(what, where=flag_of(problem.where), hint=hint, story=story)


@contextmanager
def gateway(
    flags: dict[str, str | None], *, timeout_s: float = REQUEST_TIMEOUT_S, from_stdin: bool = True
) -> Iterator[Gateway]:
    """The gateway that flags, environment, files or the data folder name.

    Args:
        flags: those given, by setting.
        timeout_s: how long an answer may take.
        from_stdin: whether a key may be read from standard input.

    Raises:
        InvalidInput: none is named and none runs from the data folder, or the key cannot be one.
        NotFound: the key file is not there.
    """
    settings = resolve(flags, os.environ, folder=Path.cwd())
    url, key_file = where(settings)
    if key_file == "-" and not from_stdin:
        raise InvalidInput("the key would have to be typed", where="--key-file")
    headers = {"X-API-Key": read_key(key_file)}
    try:
        http = httpx.Client(
            base_url=url, headers=headers, timeout=timeout_s, trust_env=False, verify=trusted(settings, url)
        )
    except (httpx.InvalidURL, ValueError) as error:
        raise InvalidInput(f"this is no gateway's address: {error}", where=url, hint="http://HOST:PORT") from error
    with http:
        yield Gateway(http)


def trusted(settings: Settings, url: str) -> ssl.SSLContext | bool:
    """What the gateway's certificate is checked with: ELASTICGRID_HTTP_CA, or what the data folder names.

    Raises:
        InvalidInput: the file cannot be used.
    """
    ca = os.environ.get(HTTP_CA, "")
    if not ca:
        with suppress(OSError, msgspec.MsgspecError):
            told = (Path(settings.data_dir.value) / GATEWAY_FILE).read_bytes()
            here = msgspec.json.decode(told, type=GatewayFile)
            ca = here.ca if here.url == url else ""
    if not ca:
        return True
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(
            f"the certificates that the gateway's is checked with cannot be used: {error}",
            where=ca,
            hint=f"{HTTP_CA} names a PEM file",
        ) from error


def own_tenant(flags: dict[str, str | None]) -> str:
    """The tenant of whoever asks: their key's, or `default` for a key of the whole grid. Raises as `gateway`."""
    with gateway(flags) as grid:
        return tenant_of(grid) or "default"


def tenant_of(grid: Gateway) -> str:
    """The one tenant that whoever asks sees anything of; empty for a key of the whole grid."""
    return grid.get("/v1/whoami", _WhoAmI).tenant


def where(settings: Settings) -> tuple[str, str]:
    """The gateway's address, and the file with the key for it.

    Raises:
        InvalidInput: none is named and none runs from the data folder.
    """
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


def read_key(path: str) -> str:
    """The key in a file; `-` is standard input.

    Raises:
        NotFound: there is no such file that can be read.
        InvalidInput: it holds no key.
    """
    if path == "-":
        try:
            text = input()
        except EOFError:
            text = ""
    else:
        try:
            text = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise NotFound(
                f"the key file cannot be read: {error.strerror}", where=path, hint="name another with --key-file"
            ) from error
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise InvalidInput("there is no key in it", where=path, hint="one line, as `elasticgrid up` writes it")
    return key
