"""Facts the gateway records about who may do what, and how much of it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from elasticgrid.core.events.base import Value
from elasticgrid.core.names import Name

#: What a key may do: each scope includes those before it.
KeyScope = Literal["read", "submit", "operate", "admin"]
Period = Literal["day", "week", "month"]

Limit = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Quota(Value, frozen=True, kw_only=True):
    """What a tenant may have and use. What is None is not limited.

    Attributes:
        jobs: jobs that are not over, at a time.
        nodes: nodes at a time, from the decision that places them until they are gone.
        accelerator_hours: in a period; a node counts as many accelerators as its job runs workers on it.
        microdollars: in a period, at the prices that launches carry.
        period: calendar days, weeks from Monday or months, all UTC.
        period_s: a period of another length instead, whole hours, counted from 1970; 0 for none.
    """

    jobs: Limit | None = None
    nodes: Limit | None = None
    accelerator_hours: Limit | None = None
    microdollars: Limit | None = None
    period: Period = "month"
    period_s: Annotated[int, msgspec.Meta(ge=0, le=366 * 86_400, multiple_of=3_600)] = 0


class TenantCreated(Value, frozen=True, kw_only=True, tag_field="type", tag="tenant.created"):
    """There is a tenant of this name from now on. `note` is for people."""

    name: Name
    note: str = ""


class KeyCreated(Value, frozen=True, kw_only=True, tag_field="type", tag="key.created"):
    """There is a key from now on; what opens anything is not in here.

    Attributes:
        prefix: tells the key apart in events and lists, and opens nothing.
        tenant: whose key it is; empty for one of the whole grid.
        scope: what it may do.
        digest: keyed SHA-256 of the key, hex.
        label: what it is for, for people.
        expires_ms: from when it is no key any more, Unix milliseconds; None for never.
        rate_per_s, burst: requests it may make; None for the gateway's own limits.
    """

    prefix: str
    tenant: str
    scope: KeyScope
    digest: str
    label: str = ""
    expires_ms: int | None = None
    rate_per_s: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    burst: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None


class KeyRevoked(Value, frozen=True, kw_only=True, tag_field="type", tag="key.revoked"):
    """The key opens nothing any more."""

    prefix: str
    reason: str = ""


class QuotaSet(Value, frozen=True, kw_only=True, tag_field="type", tag="quota.set"):
    """What the tenant may have and use from now on; it replaces what was set before."""

    tenant: Name
    quota: Quota
    reason: str = ""
