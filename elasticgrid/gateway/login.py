"""Logging in with a key, for browsers: the key is sent once, and a cookie that scripts cannot read stands for it.

Every browser sends cookies along with requests that another site made it send. So a cookie alone only reads; whoever
writes with it also sends a header that no other site can make a browser send, and comes from this site.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from litestar import Request, Response, get, post
from litestar.connection import ASGIConnection
from litestar.types import ControllerRouterHandler

from elasticgrid.core.errors import NotAllowed
from elasticgrid.core.events import KeyScope
from elasticgrid.gateway.access import Access, looks_at_caller
from elasticgrid.gateway.bodies import decode_body
from elasticgrid.gateway.keys import Keyring
from elasticgrid.gateway.parameters import Caller, Gateway, takes
from elasticgrid.gateway.problems import NotAuthenticated

SESSION_COOKIE: Final = "elasticgrid_session"
SESSION_MS: Final = 12 * 3_600_000
#: What a page of this site sends with every request that changes something.
WRITE_HEADER: Final = "X-Requested-With"
WRITE_VALUE: Final = "elasticgrid"


class LoginRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The key to log in with."""

    key: str


class WhoAmI(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks.

    Attributes:
        prefix: of their key.
        tenant: the one they are bound to; empty for the whole grid.
        scope: what they may do; `scopes` is everything that includes.
        expires_ms: until when, Unix milliseconds; None for no end.
        session: whether by a login.
    """

    prefix: str
    tenant: str
    scope: KeyScope
    scopes: tuple[KeyScope, ...]
    expires_ms: int | None
    session: bool


def authenticate(keyring: Keyring, connection: ASGIConnection[Any, Any, Any, Any], *, writes: bool) -> Access:
    """Who makes this request.

    Raises:
        NotAuthenticated: nobody that is known.
        NotAllowed: it comes with a cookie and changes something, and may have been made by another site.
    """
    sent = keyring.who_sends(connection.headers)
    if sent is not None:
        return sent
    session = connection.cookies.get(SESSION_COOKIE, "")
    if not session:
        raise NotAuthenticated("the request has no key", hint="send it as X-API-Key, or as a bearer token")
    access = keyring.who_is_logged_in(session)
    if writes:
        if connection.headers.get(WRITE_HEADER.lower(), "") != WRITE_VALUE:
            raise NotAllowed(
                "a login alone only reads", where=WRITE_HEADER, hint=f"send {WRITE_HEADER}: {WRITE_VALUE} as well"
            )
        require_same_site(connection)
    return access


def require_same_site(connection: ASGIConnection[Any, Any, Any, Any]) -> None:
    """Refuse what a browser says that another site made it send. What is no browser says nothing of it.

    Raises:
        NotAllowed: it does.
    """
    origin = connection.headers.get("origin", "")
    fetched = connection.headers.get("sec-fetch-site", "")
    foreign = bool(origin) and urlsplit(origin).netloc != connection.headers.get("host", "")
    if foreign or fetched in ("cross-site", "same-site"):
        raise NotAllowed("another site made this request", where="Origin")


@post("/login", status_code=204, operation_class=takes(LoginRequest, required=True), summary="Log in", security=[{}])
async def log_in(request: Request[Any, Any, Any], gateway: Gateway) -> Response[None]:
    """Sets a cookie that stands for the key until it expires, is revoked, or the session is over."""
    require_same_site(request)
    asked = decode_body(await request.body(), LoginRequest)
    access = gateway.keyring.who_has(asked.key.strip())
    gateway.keyring.count_request(access)
    session, _ = gateway.keyring.begin_session(access, lifetime_ms=SESSION_MS)
    answer = Response(None, status_code=204, headers={"Cache-Control": "no-store"})
    _set_cookie(answer, request, session, SESSION_MS // 1_000)
    return answer


@post("/logout", status_code=204, summary="Log out", security=[{}])
async def log_out(request: Request[Any, Any, Any], gateway: Gateway) -> Response[None]:
    """Ends the session, for whoever has its cookie, and takes the cookie away."""
    require_same_site(request)
    if gateway.keyring.end_session(request.cookies.get(SESSION_COOKIE, "")):
        gateway.feed.look_again()
    answer = Response(None, status_code=204, headers={"Cache-Control": "no-store"})
    _set_cookie(answer, request, "", 0)
    return answer


def _set_cookie(answer: Response[None], request: Request[Any, Any, Any], value: str, max_age_s: int) -> None:
    answer.set_cookie(
        key=SESSION_COOKIE,
        value=value,
        max_age=max_age_s,
        path="/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )


@get("/whoami", opt=looks_at_caller(), summary="Who asks")
async def who_am_i(caller: Caller) -> WhoAmI:
    """Whose key it is, or which the login was with, and what it allows."""
    return WhoAmI(
        prefix=caller.prefix,
        tenant=caller.tenant,
        scope=caller.scope,
        scopes=caller.scopes,
        expires_ms=caller.expires_ms,
        session=bool(caller.session_id),
    )


LOGIN_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (log_in, log_out)
WHOAMI_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (who_am_i,)
