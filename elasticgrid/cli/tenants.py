"""`tenants`, `keys` and `quota`: who may use a grid, and how much of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elasticgrid.cli.failures import OK
from elasticgrid.cli.hints import next_command
from elasticgrid.cli.options import DataDir, Json, KeyFile, Output, Url, chosen, flags
from elasticgrid.cli.output import Format, clock, dollars, print_data, print_table, print_text, say

if TYPE_CHECKING:
    from elasticgrid.gateway.tenants import QuotaLine, QuotaView

GROUP = "Share a grid"
HOUR_MS = 3_600_000

Name = Annotated[str, typer.Argument(help="The tenant's name.", metavar="NAME")]
Prefix = Annotated[str, typer.Argument(help="The key's prefix, between its two underscores.", metavar="PREFIX")]
Reason = Annotated[str, typer.Option(help="Why; kept in the log.")]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    tenants = typer.Typer(help="Who shares the grid: create, list.", no_args_is_help=True)
    tenants.command("create")(create_tenant)
    tenants.command("list")(list_tenants)
    app.add_typer(tenants, name="tenants", rich_help_panel=GROUP)
    keys = typer.Typer(help="Keys of tenants and of the grid: create, revoke, list.", no_args_is_help=True)
    keys.command("create")(create_key)
    keys.command("revoke")(revoke_key)
    keys.command("list")(list_keys)
    app.add_typer(keys, name="keys", rich_help_panel=GROUP)
    quota = typer.Typer(help="What a tenant may have and use: set, show.", no_args_is_help=True)
    quota.command("set")(set_quota)
    quota.command("show")(show_quota)
    app.add_typer(quota, name="quota", rich_help_panel=GROUP)


# --------------------------------------------------------------------------------------------------------------------
# Tenants
# --------------------------------------------------------------------------------------------------------------------


def create_tenant(
    name: Name,
    note: Annotated[str, typer.Option(help="What it is, for people.")] = "",
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Create a tenant: a name whose jobs, events and costs only its own keys and the grid's see.

    Example: elasticgrid tenants create research --note "the language group"
    """
    from elasticgrid.cli.client import gateway
    from elasticgrid.gateway.tenants import TenantView

    with gateway(flags(url, key_file, data)) as grid:
        made = grid.post("/v1/tenants", TenantView, {"name": name, "note": note})
    if chosen(output, json) is not Format.TEXT:
        print_data(made, chosen(output, json))
    else:
        say(f"there is a tenant {made.name} now")
    words = ("--tenant", made.name, "--scope", "submit", "--out", f"{made.name}.key")
    say(f"next: {next_command('keys create', *words, where=flags(url, key_file, data))}")
    return OK


def list_tenants(
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """List the tenants with how many jobs and nodes they have now.

    Example: elasticgrid tenants list
    """
    from elasticgrid.cli.client import gateway
    from elasticgrid.gateway.tenant_routes import TenantList

    with gateway(flags(url, key_file, data)) as grid:
        found = grid.get("/v1/tenants", TenantList).items
    if chosen(output, json) is not Format.TEXT:
        print_data(found, chosen(output, json))
        return OK
    print_table(
        ("!tenant", "#jobs", "#nodes", "created", "~note"),
        (
            (each.name, each.jobs, each.nodes, clock(each.created_ms) if each.created_ms else "", each.note)
            for each in found
        ),
    )
    say(f"next: {next_command('quota show', where=flags(url, key_file, data))}")
    return OK


# --------------------------------------------------------------------------------------------------------------------
# Keys
# --------------------------------------------------------------------------------------------------------------------


def create_key(
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="Whose key.")] = "",
    whole_grid: Annotated[
        bool, typer.Option("--whole-grid", help="A key for every tenant and the grid itself.")
    ] = False,
    scope: Annotated[
        Literal["read", "submit", "operate", "admin"],
        typer.Option(help="What it may do; each includes those before it."),
    ] = "read",
    label: Annotated[str, typer.Option(help="What it is for, for people.")] = "",
    ttl: Annotated[str | None, typer.Option("--ttl", metavar="TIME", help="For how long, such as 12h or 90d.")] = None,
    rate: Annotated[
        int | None, typer.Option("--rate", help="Requests a second; as the gateway has it when left out.", min=1)
    ] = None,
    burst: Annotated[int | None, typer.Option("--burst", help="Requests at once; likewise.", min=1)] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the key there, for its owner alone, and not to stdout."),
    ] = None,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Create a key and print it. It is shown this once; the grid keeps only what it recognises it by.

    Example: elasticgrid keys create --tenant research --scope submit --ttl 90d --out research.key
    """
    from elasticgrid.cli.client import gateway
    from elasticgrid.cli.times import seconds
    from elasticgrid.gateway.tenants import CreatedKey

    body = {
        "tenant": tenant,
        "whole_grid": whole_grid,
        "scope": scope,
        "label": label,
        "ttl_s": seconds(ttl, where="--ttl") if ttl is not None else None,
        "rate_per_s": rate,
        "burst": burst,
    }
    # Taken before anything is asked for: a key that cannot be written would be lost.
    handle = _new_private_file(out) if out is not None else None
    try:
        with gateway(flags(url, key_file, data)) as grid:
            made = grid.post("/v1/keys", CreatedKey, body)
    except BaseException:
        if out is not None and handle is not None:
            os.close(handle)
            out.unlink(missing_ok=True)
        raise
    if handle is not None:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(f"{made.secret}\n")
        say(f"wrote {out}")
    wanted = chosen(output, json)
    if wanted is not Format.TEXT:
        print_data(made.key if out is not None else made, wanted)
    elif out is None:
        print_text(made.secret)
    until = f" until {clock(made.key.expires_ms)} UTC" if made.key.expires_ms is not None else ""
    say(f"key {made.key.prefix} of {made.key.tenant or 'the whole grid'} may {made.key.scope}{until}")
    used = {**flags(url, None, data), "key_file": str(out or "FILE")}
    say(f"next: {next_command('jobs list', where=used)}")
    say(f"to end it: {next_command('keys revoke', made.key.prefix, where=flags(url, key_file, data))}")
    return OK


def _new_private_file(path: Path) -> int:
    from elasticgrid.core.errors import InvalidInput

    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidInput(
            f"the key cannot be written there: {error.strerror}", where=str(path), hint="name a new file"
        ) from error


def revoke_key(
    prefix: Prefix,
    reason: Reason = "",
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Let a key open nothing from now on.

    Example: elasticgrid keys revoke 8c41d07e --reason "left on a laptop"
    """
    from elasticgrid.cli.client import gateway, key_path
    from elasticgrid.gateway.tenants import KeyView

    with gateway(flags(url, key_file, data)) as grid:
        gone = grid.post(key_path(prefix, "revoke"), KeyView, {"reason": reason})
    if chosen(output, json) is not Format.TEXT:
        print_data(gone, chosen(output, json))
    say(f"key {gone.prefix} of {gone.tenant or 'the whole grid'} is {gone.state}")
    return OK


def list_keys(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.", metavar="NAME")] = None,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """List keys, without what they open with, the newest first.

    Example: elasticgrid keys list --tenant research
    """
    from elasticgrid.cli.client import gateway
    from elasticgrid.gateway.tenant_routes import KeyList

    with gateway(flags(url, key_file, data)) as grid:
        found = grid.get("/v1/keys", KeyList, tenant=tenant).items
    if chosen(output, json) is not Format.TEXT:
        print_data(found, chosen(output, json))
        return OK
    print_table(
        ("!prefix", "tenant", "scope", "state", "created", "expires", "#rate", "#burst", "by", "~label"),
        (
            (
                key.prefix,
                key.tenant or "(whole grid)",
                key.scope,
                key.state,
                clock(key.created_ms),
                clock(key.expires_ms) if key.expires_ms is not None else "never",
                f"{key.rate_per_s}/s" if key.rate_per_s is not None else "",
                "" if key.burst is None else key.burst,
                key.created_by,
                key.label,
            )
            for key in found
        ),
    )
    if not found:
        say("no keys but the admin key; create one with: elasticgrid keys create --tenant NAME")
    return OK


# --------------------------------------------------------------------------------------------------------------------
# Quotas
# --------------------------------------------------------------------------------------------------------------------


def set_quota(
    tenant: Name,
    jobs: Annotated[int | None, typer.Option(help="Jobs at a time.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes at a time.")] = None,
    accelerator_hours: Annotated[
        int | None, typer.Option("--accelerator-hours", help="In a period; a node counts as its workers.")
    ] = None,
    budget: Annotated[float | None, typer.Option("--dollars", help="In a period.", metavar="AMOUNT")] = None,
    none: Annotated[bool, typer.Option("--none", help="No limit at all, in place of what was set.")] = False,
    period: Annotated[
        Literal["day", "week", "month"] | None, typer.Option(help="Of the calendar, UTC; a month when left out.")
    ] = None,
    period_hours: Annotated[
        int | None, typer.Option("--period-hours", help="A period of so many hours instead.")
    ] = None,
    reason: Reason = "",
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Set what a tenant may have and use, in place of what was set; what is left out is not limited, --none is nothing.

    Over a limit, submissions are refused. A job whose tenant has used up its budget commits a checkpoint, gives its
    nodes back and goes on in the next period.

    Example: elasticgrid quota set research --jobs 8 --nodes 32 --dollars 1500 --period week
    """
    from elasticgrid.cli.client import gateway, quota_path
    from elasticgrid.core.errors import InvalidInput
    from elasticgrid.gateway.tenants import QuotaView

    limits = (jobs, nodes, accelerator_hours, budget)
    if none != all(limit is None for limit in limits):
        raise InvalidInput(
            "there are limits, and none are wanted" if none else "no limit is given, and what was set would be gone",
            where="--none",
            hint="leave it out" if none else "give --jobs, --nodes, --accelerator-hours or --dollars, or say --none",
        )
    if period is not None and period_hours is not None:
        raise InvalidInput("the period is said twice", where="--period-hours", hint="leave it or --period out")
    body = {
        "jobs": jobs,
        "nodes": nodes,
        "accelerator_hours": accelerator_hours,
        "microdollars": round(budget * 1_000_000) if budget is not None else None,
        "period": period or "month",
        "period_s": period_hours * 3_600 if period_hours is not None else 0,
        "reason": reason,
    }
    with gateway(flags(url, key_file, data)) as grid:
        view = grid.put(quota_path(tenant), QuotaView, body)
    _print_quotas((view,), chosen(output, json), one=True)
    return OK


def show_quota(
    tenant: Annotated[str | None, typer.Argument(help="Only this tenant's.", metavar="[NAME]")] = None,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Show what tenants may have and use, what they used, and what is left.

    Example: elasticgrid quota show research
    """
    from elasticgrid.cli.client import gateway, quota_path
    from elasticgrid.gateway.tenant_routes import QuotaList
    from elasticgrid.gateway.tenants import QuotaView

    with gateway(flags(url, key_file, data)) as grid:
        if tenant is not None:
            views: tuple[QuotaView, ...] = (grid.get(quota_path(tenant), QuotaView),)
        else:
            views = grid.get("/v1/quotas", QuotaList).items
    _print_quotas(views, chosen(output, json), one=tenant is not None)
    return OK


def _print_quotas(views: tuple[QuotaView, ...], output: Format, *, one: bool) -> None:
    if output is not Format.TEXT:
        print_data(views[0] if one else views, output)
        return
    print_table(
        ("!tenant", "what", "#limit", "#used", "#left", "frees"),
        (
            (
                view.tenant,
                line.what.replace("accelerator_ms", "accelerator-hours").replace("microdollars", "money"),
                "none" if line.limit is None else _amount(line, line.limit),
                _amount(line, line.used),
                "" if line.left is None else _amount(line, line.left),
                f"{clock(line.frees_ms)} UTC" if line.frees_ms is not None else "with a job",
            )
            for view in views
            for line in view.lines
        ),
    )
    for view in views:
        if view.quota is None:
            say(f"nothing is limited; to limit it: elasticgrid quota set {view.tenant} --jobs 4 --dollars 100")
            break


def _amount(line: QuotaLine, value: int) -> str:
    if line.what == "microdollars":
        return dollars(value)
    return f"{value / HOUR_MS:,.2f}" if line.what == "accelerator_ms" else str(value)
