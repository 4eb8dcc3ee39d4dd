"""Routes about who may do what, and how much of it: tenants, keys and quotas."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response, delete, get, post, put
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from elasticgrid.core.errors import InvalidInput
from elasticgrid.core.events import KeyScope, Quota
from elasticgrid.gateway.access import Access, looks_at_caller, needs
from elasticgrid.gateway.bodies import ReasonRequest, decode_body
from elasticgrid.gateway.conditions import IfMatch, etag, wanted_sequence
from elasticgrid.gateway.parameters import Caller, Gateway, Reason, TenantFilter, takes
from elasticgrid.gateway.service import GatewayService
from elasticgrid.gateway.tenants import (
    ACCESS_SCOPE,
    MAX_TTL_S,
    CreatedKey,
    KeyView,
    QuotaView,
    TenantView,
)

Rate = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class TenantRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant to be created. `note` is for people."""

    name: str
    note: str = ""


class KeyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A key to be created.

    Attributes:
        tenant: whose key; left out by a tenant's own admin, and for a key of the whole grid.
        whole_grid: for every tenant and for the grid itself; only the grid's admins make such keys.
        scope: what it may do; each scope includes those before it.
        label: what it is for, for people.
        ttl_s: for how long it is good; for ever when left out.
        expires_ms: instead of that, until when, Unix milliseconds.
        rate_per_s, burst: requests it may make, instead of what every key may.
    """

    tenant: str = ""
    whole_grid: bool = False
    scope: KeyScope = "read"
    label: str = ""
    ttl_s: Annotated[int, msgspec.Meta(ge=1, le=MAX_TTL_S)] | None = None
    expires_ms: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None = None
    rate_per_s: Rate | None = None
    burst: Rate | None = None


class QuotaRequest(Quota, frozen=True, kw_only=True):
    """What a tenant may have and use from now on, and why; what is left out is not limited."""

    reason: str = ""


class TenantList(msgspec.Struct, frozen=True, kw_only=True):
    """Tenants, by name."""

    items: tuple[TenantView, ...]


class KeyList(msgspec.Struct, frozen=True, kw_only=True):
    """Keys, the newest first."""

    items: tuple[KeyView, ...]


class QuotaList(msgspec.Struct, frozen=True, kw_only=True):
    """What every tenant may have and use, by name."""

    items: tuple[QuotaView, ...]


async def _seen(gateway: GatewayService) -> dict[str, str]:
    """The sequence that these answers hold as of, read before them."""
    return etag(await gateway.caught_up(ACCESS_SCOPE))


@post(
    "/tenants",
    operation_class=takes(TenantRequest, required=True),
    opt=needs("admin", whole_grid=True),
    summary="Create a tenant",
)
async def create_tenant(
    request: Request[Any, Any, Any], gateway: Gateway, caller: Caller, if_match: IfMatch = None
) -> Response[TenantView]:
    """Its jobs, events and costs are seen by its own keys and by the grid's."""
    asked = decode_body(await request.body(), TenantRequest)
    made = await gateway.tenants.create_tenant(
        asked.name, note=asked.note, actor=caller.actor, if_match=wanted_sequence(if_match)
    )
    return Response(made, status_code=201, headers={"Location": f"/v1/tenants/{made.name}", **await _seen(gateway)})


@get("/tenants", opt=looks_at_caller(), summary="List tenants")
async def list_tenants(gateway: Gateway, caller: Caller) -> Response[TenantList]:
    """With how many jobs and nodes they have now."""
    headers = await _seen(gateway)
    return Response(TenantList(items=gateway.tenants.tenants(caller)), headers=headers)


@get("/tenants/{tenant:str}", opt=looks_at_caller(), summary="Show a tenant")
async def show_tenant(tenant: FromPath[str], gateway: Gateway, caller: Caller) -> Response[TenantView]:
    """With how many jobs and nodes it has now."""
    headers = await _seen(gateway)
    return Response(gateway.tenants.tenant(caller.tenant_of(tenant, "tenant")), headers=headers)


@post(
    "/keys",
    operation_class=takes(KeyRequest, required=True),
    opt=needs("admin") | looks_at_caller(),
    summary="Create a key",
)
async def create_key(
    request: Request[Any, Any, Any], gateway: Gateway, caller: Caller, if_match: IfMatch = None
) -> Response[CreatedKey]:
    """The answer has the whole key, this once."""
    asked = decode_body(await request.body(), KeyRequest)
    made = await gateway.tenants.create_key(
        tenant=_tenant_of_key(asked, caller),
        scope=asked.scope,
        label=asked.label,
        expires_ms=_expiry(asked, gateway.now_ms()),
        rate_per_s=asked.rate_per_s,
        burst=asked.burst,
        actor=caller.actor,
        if_match=wanted_sequence(if_match),
    )
    headers = {"Location": f"/v1/keys/{made.key.prefix}", "Cache-Control": "no-store", **await _seen(gateway)}
    return Response(made, status_code=201, headers=headers)


def _tenant_of_key(asked: KeyRequest, caller: Access) -> str:
    if asked.whole_grid:
        caller.require("admin", whole_grid=True)
        if asked.tenant:
            raise InvalidInput("a key of the whole grid is no tenant's", where="tenant", hint="leave one of them out")
        return ""
    if not asked.tenant and not caller.tenant:
        raise InvalidInput("whose key it is to be is not said", where="tenant", hint="name a tenant, or say whole_grid")
    return caller.tenant_of(asked.tenant, "tenant")


def _expiry(asked: KeyRequest, now_ms: int) -> int | None:
    if asked.ttl_s is not None and asked.expires_ms is not None:
        raise InvalidInput("the end of the key is said twice", where="ttl_s", hint="leave ttl_s or expires_ms out")
    return now_ms + asked.ttl_s * 1_000 if asked.ttl_s is not None else asked.expires_ms


@get("/keys", opt=needs("admin"), summary="List keys")
async def list_keys(gateway: Gateway, caller: Caller, tenant: TenantFilter = "") -> Response[KeyList]:
    """Without what they open with, which nobody has but their holders. Those that are over are there as well."""
    headers = await _seen(gateway)
    return Response(KeyList(items=gateway.tenants.keys(tenant, caller)), headers=headers)


@get("/keys/{prefix:str}", opt=needs("admin") | looks_at_caller(), summary="Show a key")
async def show_key(prefix: FromPath[str], gateway: Gateway, caller: Caller) -> Response[KeyView]:
    """By its prefix, which stands between the two underscores of the key."""
    headers = await _seen(gateway)
    return Response(gateway.tenants.key(prefix, caller), headers=headers)


@delete("/keys/{prefix:str}", status_code=200, opt=needs("admin") | looks_at_caller(), summary="Revoke a key")
async def delete_key(
    prefix: FromPath[str], gateway: Gateway, caller: Caller, reason: Reason = "", if_match: IfMatch = None
) -> KeyView:
    """It opens nothing from the next request on. Asking again changes nothing."""
    return await gateway.tenants.revoke_key(prefix, caller, reason=reason, if_match=wanted_sequence(if_match))


@post(
    "/keys/{prefix:str}/revoke",
    status_code=200,
    operation_class=takes(ReasonRequest),
    opt=needs("admin") | looks_at_caller(),
    summary="Revoke a key, and say why",
)
async def revoke_key(
    prefix: FromPath[str], request: Request[Any, Any, Any], gateway: Gateway, caller: Caller, if_match: IfMatch = None
) -> KeyView:
    """The same with a reason in the body."""
    asked = decode_body(await request.body(), ReasonRequest)
    return await gateway.tenants.revoke_key(prefix, caller, reason=asked.reason, if_match=wanted_sequence(if_match))


@get("/quotas", opt=looks_at_caller(), summary="List quotas")
async def list_quotas(gateway: Gateway, caller: Caller) -> Response[QuotaList]:
    """With what was used and what is left of each."""
    headers = await _seen(gateway)
    return Response(QuotaList(items=gateway.tenants.quotas(caller)), headers=headers)


@get("/quotas/{tenant:str}", opt=looks_at_caller(), summary="Show a tenant's quota")
async def show_quota(tenant: FromPath[str], gateway: Gateway, caller: Caller) -> Response[QuotaView]:
    """With what was used and what is left of it."""
    headers = await _seen(gateway)
    return Response(gateway.tenants.quota(caller.tenant_of(tenant, "tenant")), headers=headers)


@put(
    "/quotas/{tenant:str}",
    status_code=200,
    operation_class=takes(QuotaRequest, required=True),
    opt=needs("admin", whole_grid=True),
    summary="Set a tenant's quota",
)
async def set_quota(
    tenant: FromPath[str],
    request: Request[Any, Any, Any],
    gateway: Gateway,
    caller: Caller,
    if_match: IfMatch = None,
) -> Response[QuotaView]:
    """It replaces the one there was. What a job has is not taken away for a lower number of jobs or nodes.

    A job whose tenant has used up its budget commits a checkpoint, gives its nodes back and waits for the next period.
    """
    asked = decode_body(await request.body(), QuotaRequest)
    quota = Quota(**{name: getattr(asked, name) for name in Quota.__struct_fields__})
    view = await gateway.tenants.set_quota(
        tenant, quota, reason=asked.reason, actor=caller.actor, if_match=wanted_sequence(if_match)
    )
    return Response(view, headers=await _seen(gateway))


TENANT_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (
    create_tenant,
    list_tenants,
    show_tenant,
    create_key,
    list_keys,
    show_key,
    delete_key,
    revoke_key,
    list_quotas,
    show_quota,
    set_quota,
)
