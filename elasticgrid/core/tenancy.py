"""Tenants and their keys as the log tells them: a fold over the facts about who may do what."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from elasticgrid.core import events as ev

#: Each scope includes those before it.
SCOPES: Final[tuple[ev.KeyScope, ...]] = ("read", "submit", "operate", "admin")


class TenantState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tenant that was created. `note` is for people."""

    name: str
    note: str = ""
    created_ms: int


class KeyState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key as the log tells it.

    Attributes:
        tenant: whose it is; empty for one of the whole grid.
        digest: keyed digest of the key, hex.
        created_by: who asked for it.
        expires_ms: from when it is none any more; None for never.
        revoked_ms: when it was revoked; 0 when it was not.
    """

    prefix: str
    tenant: str
    scope: ev.KeyScope
    digest: str
    label: str = ""
    created_ms: int
    created_by: str
    expires_ms: int | None = None
    rate_per_s: int | None = None
    burst: int | None = None
    revoked_ms: int = 0


class AccessState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything the log says about tenants, by name, and keys, by prefix."""

    tenants: dict[str, TenantState] = {}
    keys: dict[str, KeyState] = {}


def evolve_access(state: AccessState, recorded: ev.Recorded) -> AccessState:
    """The state after one more event; the very same when it says nothing of this. Never raises.

    What is created a second time stays as it was created first.
    """
    event = recorded.event
    if isinstance(event, ev.UnknownEvent):
        return state
    match event.data:
        case ev.TenantCreated() as data if data.name not in state.tenants:
            tenant = TenantState(name=data.name, note=data.note, created_ms=recorded.recorded_ms)
            return replace(state, tenants=state.tenants | {data.name: tenant})
        case ev.KeyCreated() as data if data.prefix not in state.keys:
            key = KeyState(
                prefix=data.prefix,
                tenant=data.tenant,
                scope=data.scope,
                digest=data.digest,
                label=data.label,
                created_ms=recorded.recorded_ms,
                created_by=event.actor,
                expires_ms=data.expires_ms,
                rate_per_s=data.rate_per_s,
                burst=data.burst,
            )
            return replace(state, keys=state.keys | {data.prefix: key})
        case ev.KeyRevoked() as data if data.prefix in state.keys and not state.keys[data.prefix].revoked_ms:
            revoked = replace(state.keys[data.prefix], revoked_ms=recorded.recorded_ms)
            return replace(state, keys=state.keys | {data.prefix: revoked})
    return state


def is_open(key: KeyState, as_of_ms: int) -> bool:
    """Whether the key opens anything at this time."""
    return not key.revoked_ms and (key.expires_ms is None or as_of_ms < key.expires_ms)


def includes(scope: ev.KeyScope, needed: ev.KeyScope) -> bool:
    """Whether what `needed` allows is allowed by `scope` too."""
    return SCOPES.index(scope) >= SCOPES.index(needed)
