"""Who asks, and what that lets them see and do."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from litestar.handlers import BaseRouteHandler

from elasticgrid.core.errors import NotAllowed, NotFound
from elasticgrid.core.events import KeyScope
from elasticgrid.core.names import is_name
from elasticgrid.core.rate import RateLimit
from elasticgrid.core.tenancy import SCOPES, includes

#: The tenant of whoever names none and is bound to none.
DEFAULT_TENANT: Final = "default"
#: A tenant that there cannot be: nothing is found for it.
NO_TENANT: Final = "-"

_SCOPE: Final = "scope"
_WHOLE_GRID: Final = "whole_grid"
_LOOKS_AT_CALLER: Final = "looks_at_caller"


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks.

    Attributes:
        prefix: of their key.
        tenant: the one tenant they are bound to; empty for none, which is all of them.
        scope: what they may do.
        expires_ms: until when; None for no end.
        session_id: of their login; empty for those who send the key itself.
        limit: how often they may ask.
    """

    prefix: str
    tenant: str
    scope: KeyScope
    expires_ms: int | None = None
    session_id: str = ""
    limit: RateLimit

    @property
    def actor(self) -> str:
        """How they are named in events."""
        return f"key:{self.prefix}"

    @property
    def scopes(self) -> tuple[KeyScope, ...]:
        """All that their scope includes."""
        return SCOPES[: SCOPES.index(self.scope) + 1]

    def require(self, scope: KeyScope, *, whole_grid: bool = False) -> None:
        """Refuse what their key does not allow.

        Raises:
            NotAllowed: it does not.
        """
        if not includes(self.scope, scope):
            raise NotAllowed(
                f"this key may {self.scope}, and this needs {scope}", hint="ask an admin for a key that may"
            )
        if whole_grid and self.tenant:
            raise NotAllowed("this key is one tenant's, and this is about the whole grid", hint="ask the grid's admin")

    def tenant_of(self, given: str | None, what: str = "job") -> str:
        """The tenant that a request is about.

        Raises:
            NotFound: it names a tenant that they must not know of, whether there is one or not.
        """
        if self.tenant:
            if given not in (None, "", self.tenant):
                raise NotFound(f"there is no such {what}", where=what, hint="list what there is")
            return self.tenant
        return given or DEFAULT_TENANT

    def only(self, given: str) -> str:
        """The tenant that a list is about; empty for all of them."""
        if not self.tenant or given == self.tenant:
            return given
        return NO_TENANT if given else self.tenant

    def sees(self, tenant: str) -> bool:
        """Whether they may know of this tenant."""
        return self.tenant in ("", tenant)


def needs(scope: KeyScope, *, whole_grid: bool = False) -> dict[str, Any]:
    """What a route asks of whoever calls it, as the route's `opt`.

    Args:
        scope: what their key must allow.
        whole_grid: whether the route is for keys that are bound to no tenant.
    """
    return {_SCOPE: scope, _WHOLE_GRID: whole_grid}


def looks_at_caller() -> dict[str, Any]:
    """Says of a route, in its `opt`, that it looks at its caller itself and shows them only what is theirs."""
    return {_LOOKS_AT_CALLER: True}


def looks_itself(handler: BaseRouteHandler) -> bool:
    """Whether a route looks at its caller itself."""
    return bool(handler.opt.get(_LOOKS_AT_CALLER))


def needed(handler: BaseRouteHandler) -> tuple[KeyScope, bool]:
    """What a route asks: as it says; else reading for what only reads, and everything for everything else."""
    reads = getattr(handler, "http_methods", frozenset()) <= {"GET", "HEAD", "OPTIONS"}
    scope: KeyScope = handler.opt.get(_SCOPE, "read" if reads else "admin")
    return scope, bool(handler.opt.get(_WHOLE_GRID, not reads and _SCOPE not in handler.opt))


def require_tenant_name(name: str) -> str:
    """The name itself.

    Raises:
        NotFound: no tenant can be called so.
    """
    if not is_name(name):
        raise NotFound("there is no tenant of this name", where="tenant", hint="list tenants for their names")
    return name
