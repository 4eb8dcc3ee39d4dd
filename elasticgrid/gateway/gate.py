"""The one place that every request behind the check of keys goes through.

It tells who asks, refuses what their key does not allow, and holds a tenant's key to its tenant: whatever a route is
asked, its parameter `tenant` is the key's own. A route without that parameter is closed to such keys, unless it says
that it looks at its caller itself.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler

from elasticgrid.core.errors import NotFound
from elasticgrid.gateway.access import Access, looks_itself, needed
from elasticgrid.gateway.keys import Keyring
from elasticgrid.gateway.login import authenticate
from elasticgrid.gateway.query import require_known

_PLAIN: Final = "elasticgrid_plain"
#: What clients of the service's first interface have in a query.
_FIRST_PARAMETERS: Final = frozenset(("state", "lines"))
_CALLER: Final = "elasticgrid_caller"
_SAFE: Final = frozenset(("GET", "HEAD", "OPTIONS"))


def let_in(keyring: Keyring, connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Let a request go on to its handler, which finds out by `caller_of` who asks.

    Raises:
        NotAuthenticated, NotAllowed, RateLimited: it may not.
        InvalidInput: it has a parameter that its route has not.
        NotFound: it is about another tenant than its key's.
    """
    connection.scope["state"][_PLAIN] = {name for name, _ in _query(connection)} <= _FIRST_PARAMETERS
    caller = authenticate(keyring, connection, writes=connection.scope.get("method") not in _SAFE)
    keyring.count_request(caller)
    scope, whole_grid = needed(handler)
    caller.require(scope, whole_grid=whole_grid)
    require_known(handler, (name for name, _ in _query(connection)))
    if caller.tenant and not looks_itself(handler):
        if not takes_tenant(handler):
            caller.require(scope, whole_grid=True)
        _bind(connection, caller.tenant)
    connection.scope["state"][_CALLER] = caller


def caller_of(request: Request[Any, Any, Any]) -> Access:
    """Who asks."""
    caller: Access = request.scope["state"][_CALLER]
    return caller


def is_plain(request: Request[Any, Any, Any]) -> bool:
    """Whether a request had no parameters but those of the service's first interface."""
    return bool(request.scope["state"][_PLAIN])


def takes_tenant(handler: BaseRouteHandler) -> bool:
    """Whether a route has the parameter `tenant` in its query."""
    in_path = any("{tenant:" in path for path in getattr(handler, "paths", ()))
    return isinstance(handler, HTTPRouteHandler) and not in_path and "tenant" in handler.parsed_fn_signature.parameters


def _bind(connection: ASGIConnection[Any, Any, Any, Any], tenant: str) -> None:
    """Make `tenant` the request's. It is done before anybody has read the query."""
    query = _query(connection)
    if any(name == "tenant" and value not in ("", tenant) for name, value in query):
        raise NotFound("there is no such tenant", where="tenant", hint="leave it out: a key is one tenant's")
    others = [(name, value) for name, value in query if name != "tenant"]
    connection.scope["query_string"] = urlencode([*others, ("tenant", tenant)], encoding="utf-8").encode()


def _query(connection: ASGIConnection[Any, Any, Any, Any]) -> list[tuple[str, str]]:
    return parse_qsl(connection.scope["query_string"].decode("latin-1"), keep_blank_values=True)
