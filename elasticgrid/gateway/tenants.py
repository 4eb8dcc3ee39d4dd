"""What the gateway does about tenants, keys and quotas: requests become facts, and what there is is shown."""

from __future__ import annotations

from typing import Final

import msgspec

from elasticgrid.core import events as ev
from elasticgrid.core.errors import Conflict, InvalidInput, NotFound, QuotaExceeded
from elasticgrid.core.fleet_state import FleetState
from elasticgrid.core.grid import GridFold
from elasticgrid.core.job_quota import amount, standings, submit_refusal, tenant_nodes
from elasticgrid.core.names import ACCESS, GRID_TENANT, is_record
from elasticgrid.core.quotas import jobs_of, period_at, used_since
from elasticgrid.core.spec import JobSpec
from elasticgrid.core.tenancy import KeyState, is_open
from elasticgrid.gateway.access import DEFAULT_TENANT, Access, require_tenant_name
from elasticgrid.gateway.bodies import check_reason
from elasticgrid.gateway.fact_writer import FactWriter
from elasticgrid.gateway.job_names import require_tenant
from elasticgrid.gateway.keys import Keyring
from elasticgrid.log.port import Scope

#: The facts about who may do what: what an append of one of them expects to be the last.
ACCESS_SCOPE: Final = Scope(GRID_TENANT, ACCESS, "job")
MAX_TTL_S: Final = 10 * 366 * 86_400
MAX_TEXT: Final = 200


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant.

    Attributes:
        created_ms: when it was created; 0 for one that only has jobs.
        jobs: how many are not over; `nodes` how many these have.
    """

    name: str
    note: str
    created_ms: int
    jobs: int
    nodes: int


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A key, without what it opens with.

    Attributes:
        tenant: whose it is; empty for one of the whole grid.
        state: `open`, `expired` or `revoked`.
        created_by: the actor who asked for it.
    """

    prefix: str
    tenant: str
    scope: ev.KeyScope
    state: str
    label: str
    created_ms: int
    created_by: str
    expires_ms: int | None
    revoked_ms: int
    rate_per_s: int | None
    burst: int | None


class CreatedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A new key. `secret` is the whole of it; it is shown this once, and kept nowhere."""

    key: KeyView
    secret: str


class QuotaLine(msgspec.Struct, frozen=True, kw_only=True):
    """One limit of a tenant.

    Attributes:
        what: `jobs`, `nodes`, `accelerator_ms` or `microdollars`.
        limit: None when there is none; `left` likewise.
        frees_ms: when the period ends, Unix milliseconds; None for what is counted at a time.
    """

    what: str
    limit: int | None
    used: int
    left: int | None
    frees_ms: int | None


class QuotaView(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant may have and use, and what it has and used.

    Attributes:
        quota: as it was set; None when nothing was.
        period_start_ms, period_end_ms: the period it is in; a month when nothing was set.
    """

    tenant: str
    quota: ev.Quota | None
    period_start_ms: int
    period_end_ms: int
    lines: tuple[QuotaLine, ...]


class TenantDesk:
    """Tenants, keys and quotas of one gateway."""

    def __init__(self, facts: FactWriter, keyring: Keyring) -> None:
        self._facts = facts
        self._keyring = keyring

    @property
    def sequence(self) -> int:
        """Where in the log the facts about the whole grid stand that answers contain."""
        return self._facts.grid.sequence

    # ----------------------------------------------------------------------------------------------------------------
    # Tenants
    # ----------------------------------------------------------------------------------------------------------------

    async def create_tenant(self, name: str, *, note: str, actor: str, if_match: int | None) -> TenantView:
        """A new tenant.

        Raises:
            InvalidInput: none can be called so.
            Conflict: there is one already.
            Outdated: something about tenants has changed.
        """
        require_tenant(name)
        _require_text(note, "note")

        def make(grid: GridFold) -> ev.EventData:
            if name in grid.access.tenants:
                raise Conflict(f"there is a tenant {name} already", where="name")
            return ev.TenantCreated(name=name, note=note)

        await self._facts.write_for_grid(ACCESS_SCOPE, make, actor, if_match)
        return self.tenant(name)

    def tenants(self, caller: Access) -> tuple[TenantView, ...]:
        """All that the caller may know of, by name; those that only have jobs, too."""
        grid = self._facts.grid
        names = {DEFAULT_TENANT, *grid.access.tenants, *grid.fleet.quotas.use, *grid.fleet.quotas.quotas}
        return tuple(self.tenant(name) for name in sorted(names) if caller.sees(name) and not is_record(name))

    def tenant(self, name: str) -> TenantView:
        """One of them.

        Raises:
            NotFound: there is none of this name.
        """
        grid = self._facts.grid
        self._require_known(name)
        known = grid.access.tenants.get(name)
        return TenantView(
            name=name,
            note=known.note if known is not None else "",
            created_ms=known.created_ms if known is not None else 0,
            jobs=jobs_of(grid.fleet.quotas, name),
            nodes=tenant_nodes(grid.fleet, name),
        )

    async def require_created(self, name: str) -> None:
        """Refuse a tenant that nobody created: a slip in its name would be one that nothing limits.

        Raises:
            NotFound: nobody did.
            BusUnavailable: the log cannot be reached.
        """
        if name == DEFAULT_TENANT or name in self._facts.grid.access.tenants:
            return
        await self._facts.caught_up(ACCESS_SCOPE)
        if name not in self._facts.grid.access.tenants:
            raise NotFound(
                f"there is no tenant {name[:64]}",
                where="tenant",
                hint=f"correct the name, or create it: elasticgrid tenants create {name[:64]}",
            )

    def _require_known(self, name: str) -> None:
        grid = self._facts.grid
        quotas = grid.fleet.quotas
        if name != DEFAULT_TENANT and not any(
            name in names for names in (grid.access.tenants, quotas.use, quotas.quotas)
        ):
            raise NotFound("there is no such tenant", where="tenant", hint="create it, or list those there are")

    # ----------------------------------------------------------------------------------------------------------------
    # Keys
    # ----------------------------------------------------------------------------------------------------------------

    async def create_key(
        self,
        *,
        tenant: str,
        scope: ev.KeyScope,
        label: str,
        expires_ms: int | None,
        rate_per_s: int | None,
        burst: int | None,
        actor: str,
        if_match: int | None,
    ) -> CreatedKey:
        """A new key; an empty tenant is the whole grid.

        Raises:
            NotFound: there is no such tenant.
            InvalidInput: it could never be used.
            Outdated: something about tenants has changed.
        """
        _require_text(label, "label")
        if tenant:
            self._require_known(require_tenant_name(tenant))
        if expires_ms is not None and not 0 < expires_ms - self._facts.now_ms() <= MAX_TTL_S * 1_000:
            raise InvalidInput("the key would expire before it was used", where="expires_ms", hint="at most ten years")
        new = self._keyring.new_key()
        data = ev.KeyCreated(
            prefix=new.prefix,
            tenant=tenant,
            scope=scope,
            digest=new.digest,
            label=label,
            expires_ms=expires_ms,
            rate_per_s=rate_per_s,
            burst=burst,
        )
        await self._facts.write_for_grid(ACCESS_SCOPE, lambda _: data, actor, if_match)
        return CreatedKey(key=self._key_view(self._facts.grid.access.keys[new.prefix]), secret=new.text)

    def keys(self, tenant: str, caller: Access) -> tuple[KeyView, ...]:
        """The keys of a tenant, or all that the caller may know of; the newest first."""
        found = [key for key in self._facts.grid.access.keys.values() if tenant in ("", key.tenant)]
        found.sort(key=lambda key: (-key.created_ms, key.prefix))
        return tuple(self._key_view(key) for key in found if caller.sees(key.tenant))

    def key(self, prefix: str, caller: Access) -> KeyView:
        """One of them.

        Raises:
            NotFound: there is none with this prefix that the caller may know of.
        """
        found = self._facts.grid.access.keys.get(prefix)
        if found is None or not caller.sees(found.tenant):
            raise NotFound("there is no such key", where="prefix", hint="list keys for their prefixes")
        return self._key_view(found)

    async def revoke_key(self, prefix: str, caller: Access, *, reason: str, if_match: int | None) -> KeyView:
        """Let a key open nothing from now on. A second time changes nothing. Raises as `key`."""
        check_reason(reason)
        self.key(prefix, caller)

        def make(grid: GridFold) -> ev.EventData | None:
            return None if grid.access.keys[prefix].revoked_ms else ev.KeyRevoked(prefix=prefix, reason=reason)

        await self._facts.write_for_grid(ACCESS_SCOPE, make, caller.actor, if_match)
        return self.key(prefix, caller)

    def _key_view(self, key: KeyState) -> KeyView:
        opens = is_open(key, self._facts.now_ms())
        return KeyView(
            prefix=key.prefix,
            tenant=key.tenant,
            scope=key.scope,
            state="open" if opens else "revoked" if key.revoked_ms else "expired",
            label=key.label,
            created_ms=key.created_ms,
            created_by=key.created_by,
            expires_ms=key.expires_ms,
            revoked_ms=key.revoked_ms,
            rate_per_s=key.rate_per_s,
            burst=key.burst,
        )

    # ----------------------------------------------------------------------------------------------------------------
    # Quotas
    # ----------------------------------------------------------------------------------------------------------------

    async def set_quota(
        self, tenant: str, quota: ev.Quota, *, reason: str, actor: str, if_match: int | None
    ) -> QuotaView:
        """What a tenant may have and use from now on. The same once more changes nothing.

        Raises:
            NotFound: there is no such tenant.
            Outdated: something about tenants has changed.
        """
        check_reason(reason)
        self._require_known(require_tenant_name(tenant))

        def make(grid: GridFold) -> ev.EventData | None:
            same = grid.fleet.quotas.quotas.get(tenant) == quota
            return None if same else ev.QuotaSet(tenant=tenant, quota=quota, reason=reason)

        await self._facts.write_for_grid(ACCESS_SCOPE, make, actor, if_match)
        return self.quota(tenant)

    def quotas(self, caller: Access) -> tuple[QuotaView, ...]:
        """Of every tenant that the caller may know of."""
        return tuple(self.quota(each.name) for each in self.tenants(caller))

    def quota(self, tenant: str) -> QuotaView:
        """Of one.

        Raises:
            NotFound: there is no such tenant.
        """
        self._require_known(require_tenant_name(tenant))
        return quota_view(self._facts.grid.fleet, tenant, self._facts.now_ms())

    def require_room(self, tenant: str, spec: JobSpec) -> None:
        """Refuse one more job of a tenant that has or used all that it may.

        Raises:
            QuotaExceeded: it does.
        """
        now_ms = self._facts.now_ms()
        refused = submit_refusal(self._facts.grid.fleet, tenant, spec, now_ms)
        if refused is None:
            return
        standing, asked = refused
        used, limit = amount(standing.what, standing.used), amount(standing.what, standing.limit)
        frees_ms = standing.frees_ms
        raise QuotaExceeded(
            f"tenant {tenant} uses {used} of {limit}"
            + (f", and {asked} more are asked for" if frees_ms is None else " for this period"),
            tenant=tenant,
            of=standing.what,
            limit=standing.limit,
            used=standing.used,
            asked=asked,
            frees_ms=frees_ms,
            retry_after_s=-(-(frees_ms - now_ms) // 1_000) if frees_ms is not None else None,
            hint=_what_helps(asked > standing.limit, frees_ms),
        )

    def is_limited(self, tenant: str) -> bool:
        """Whether there is anything that the tenant could go over."""
        return tenant in self._facts.grid.fleet.quotas.quotas


def quota_view(fleet: FleetState, tenant: str, as_of_ms: int) -> QuotaView:
    """A tenant's quota with every number there is, whether it is limited or not."""
    quota = fleet.quotas.quotas.get(tenant)
    start_ms, end_ms = period_at(quota or ev.Quota(), as_of_ms)
    accelerator_ms, microdollars = used_since(fleet.quotas, tenant, start_ms, as_of_ms)
    limits = {each.what: each for each in standings(fleet, tenant, as_of_ms)}
    numbers: tuple[tuple[str, int, int | None], ...] = (
        ("jobs", jobs_of(fleet.quotas, tenant), None),
        ("nodes", tenant_nodes(fleet, tenant), None),
        ("accelerator_ms", accelerator_ms, end_ms),
        ("microdollars", microdollars, end_ms),
    )
    lines = tuple(
        QuotaLine(
            what=what,
            limit=limits[what].limit if what in limits else None,
            used=used,
            left=limits[what].left if what in limits else None,
            frees_ms=frees_ms,
        )
        for what, used, frees_ms in numbers
    )
    return QuotaView(tenant=tenant, quota=quota, period_start_ms=start_ms, period_end_ms=end_ms, lines=lines)


def _what_helps(never_fits: bool, frees_ms: int | None) -> str:
    if never_fits:
        return "waiting does not help: ask an admin for a larger quota"
    return "wait until a job is over" if frees_ms is None else "wait for the next period, or ask for a larger quota"


def _require_text(text: str, where: str) -> None:
    if len(text) > MAX_TEXT or not text.isprintable():
        raise InvalidInput("this is no text of one line", where=where, hint=f"at most {MAX_TEXT} characters")
