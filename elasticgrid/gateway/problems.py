"""Errors as answers: every refusal is an `application/problem+json` with what, where and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException
from litestar.handlers import BaseRouteHandler

from elasticgrid.core.errors import (
    BusError,
    CannotPlace,
    Conflict,
    ElasticGridError,
    InvalidInput,
    InvalidJob,
    LogError,
    NotAllowed,
    NotFound,
    Outdated,
    QuotaExceeded,
    RateLimited,
)
from elasticgrid.gateway.bodies import MAX_BODY_BYTES
from elasticgrid.gateway.query import parameters_of

log = structlog.get_logger("gateway")

PROBLEM_JSON: Final = "application/problem+json"
_TYPE: Final = "urn:elasticgrid:problem:"
_DOCUMENT: Final = "/v1/openapi/openapi.json"
#: What helps where nothing better is known.
_HINTS: Final[Mapping[int, str]] = {
    HTTPStatus.BAD_REQUEST: f"correct it and ask again; {_DOCUMENT} has every parameter and field",
    HTTPStatus.UNAUTHORIZED: "send a key as X-API-Key, or as a bearer token",
    HTTPStatus.FORBIDDEN: "ask an admin for a key that may",
    HTTPStatus.NOT_FOUND: "list what there is",
    HTTPStatus.METHOD_NOT_ALLOWED: f"{_DOCUMENT} has every route with its methods",
    HTTPStatus.CONFLICT: "look at it again, then decide",
    HTTPStatus.PRECONDITION_FAILED: "look at it again, then decide",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: f"send at most {MAX_BODY_BYTES:,} bytes",
    HTTPStatus.UNPROCESSABLE_ENTITY: f"correct it and send it again; {_DOCUMENT} has every field",
    HTTPStatus.TOO_MANY_REQUESTS: "wait, then ask again",
    HTTPStatus.SERVICE_UNAVAILABLE: "ask again in a moment; the gateway's log says more",
}
#: How long a client should wait where only time helps.
_RETRY_AFTER_S: Final = "2"


class NotAuthenticated(NotAllowed):
    """The request has no key, or a wrong one."""

    code = "not_authenticated"


class OverQuota(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of a tenant that a request would go over.

    Attributes:
        what: `jobs`, `nodes`, `accelerator_ms` or `microdollars`.
        limit, used, asked: in these.
        frees_ms: when the period ends, Unix milliseconds; None where time alone frees nothing.
    """

    tenant: str
    what: str
    limit: int
    used: int
    asked: int
    frees_ms: int | None = None


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was not done (RFC 9457).

    Attributes:
        type: names the kind of problem, the same for every one of its kind.
        code: the same for programs, such as `not_found`.
        detail: what happened.
        where: the field, file or job it happened at.
        hint: what to do next.
        more: further problems of the same request.
        sequence: what the thing is at now, where a request was only for another.
        quota: the limit that a request would go over.
        retry_after_s: when to ask again, where time helps.
    """

    type: str
    title: str
    status: int
    code: str
    detail: str
    where: str = ""
    hint: str = ""
    more: tuple[str, ...] = ()
    sequence: int | None = None
    quota: OverQuota | None = None
    retry_after_s: int | None = None


# The first that fits.
_STATUS: Final[tuple[tuple[type[ElasticGridError], HTTPStatus], ...]] = (
    (InvalidJob, HTTPStatus.UNPROCESSABLE_ENTITY),
    (InvalidInput, HTTPStatus.BAD_REQUEST),
    (CannotPlace, HTTPStatus.UNPROCESSABLE_ENTITY),
    (NotFound, HTTPStatus.NOT_FOUND),
    (NotAuthenticated, HTTPStatus.UNAUTHORIZED),
    (NotAllowed, HTTPStatus.FORBIDDEN),
    (Outdated, HTTPStatus.PRECONDITION_FAILED),
    (QuotaExceeded, HTTPStatus.TOO_MANY_REQUESTS),
    (RateLimited, HTTPStatus.TOO_MANY_REQUESTS),
    (Conflict, HTTPStatus.CONFLICT),
    (BusError, HTTPStatus.SERVICE_UNAVAILABLE),
    (LogError, HTTPStatus.SERVICE_UNAVAILABLE),
)


def problem_of(error: Exception, handler: BaseRouteHandler | None = None) -> Problem:
    """The answer to a request that ended with `error`. What is no error of ours tells nothing of itself.

    Args:
        error: what a handler, or the framework before it, has raised.
        handler: of the route, where there is one: it knows what its parameters are.
    """
    if isinstance(error, ElasticGridError):
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)
        problem = _problem(error.code, status, error.what, where=error.where, hint=error.hint, more=tuple(error.story))
        return msgspec.structs.replace(problem, **_members(error))
    if isinstance(error, HTTPException):
        return _of_http(error, handler)
    return _problem(
        "internal", HTTPStatus.INTERNAL_SERVER_ERROR, "the gateway failed", hint="its log says more; try again"
    )


def answer_problem(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    """Turn an exception of a handler into its answer."""
    problem = problem_of(error, request.scope.get("route_handler"))
    if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("request_failed", code=problem.code, exc_info=error if problem.code == "internal" else None)
    headers: dict[str, str] = {}
    if isinstance(error, MethodNotAllowedException):
        headers |= {name.title(): value for name, value in (error.headers or {}).items()}
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="elasticgrid"'
    if problem.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = _RETRY_AFTER_S
    elif problem.retry_after_s is not None:
        headers["Retry-After"] = str(problem.retry_after_s)
    if problem.sequence is not None:
        headers["ETag"] = f'"{problem.sequence}"'
    return Response(problem, status_code=problem.status, media_type=PROBLEM_JSON, headers=headers)


def _members(error: ElasticGridError) -> dict[str, Any]:
    """What errors of some kinds say besides."""
    match error:
        case Outdated():
            return {"sequence": error.sequence}
        case RateLimited():
            return {"retry_after_s": error.retry_after_s}
        case QuotaExceeded():
            numbers = {name: getattr(error, name) for name in ("tenant", "limit", "used", "asked", "frees_ms")}
            return {"quota": OverQuota(what=error.of, **numbers), "retry_after_s": error.retry_after_s}
        case _:
            return {}


def _problem(
    code: str, status: HTTPStatus, detail: str, *, where: str = "", hint: str = "", more: tuple[str, ...] = ()
) -> Problem:
    return Problem(
        type=f"{_TYPE}{code}",
        title=status.phrase,
        status=status,
        code=code,
        detail=detail,
        where=where,
        hint=hint or _HINTS.get(status, f"see {_DOCUMENT}"),
        more=more,
    )


def _of_http(error: HTTPException, handler: BaseRouteHandler | None) -> Problem:
    """What the web framework found wrong: an unknown path, a method, a parameter, a body that is too large."""
    status = HTTPStatus(error.status_code)
    code = status.name.lower()
    findings = error.extra if isinstance(error.extra, list) else []
    found = [each for each in findings if isinstance(each, dict) and "message" in each]
    match status:
        case HTTPStatus.NOT_FOUND if isinstance(error, NotFoundException) and handler is None:
            return _problem(code, status, "there is no such route", hint=f"{_DOCUMENT} has every route")
        case HTTPStatus.METHOD_NOT_ALLOWED:
            methods = ", ".join(sorted((error.headers or {}).get("allow", "").split(", ")))
            hint = f"ask with one of {methods}" if methods else ""
            return _problem(code, status, "this route does not have that method", hint=hint)
        case HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return _problem(code, status, f"the body has more than {MAX_BODY_BYTES:,} bytes")
    if not found:
        return _problem(code, status, error.detail or status.phrase)
    first, *others = found
    key = str(first.get("key", ""))
    known = parameters_of(handler).get(key) if handler is not None else None
    return _problem(
        "invalid_input",
        status,
        str(first["message"]),
        where=known.name if known is not None else key,
        hint=known.hint if known is not None else "",
        more=tuple(f"{each.get('key', '')}: {each['message']}" for each in others),
    )
