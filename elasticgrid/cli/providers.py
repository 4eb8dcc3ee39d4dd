"""`providers` and `cost`: the grid, and what it costs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from elasticgrid.cli.failures import FAILED, OK
from elasticgrid.cli.hints import next_command
from elasticgrid.cli.options import DataDir, Json, KeyFile, Output, ProviderArgument, Url, chosen, flags
from elasticgrid.cli.output import Format, dollars, print_data, print_table, say
from elasticgrid.cli.times import optional_time_ms

GROUP = "Look"


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    providers = typer.Typer(
        help="The providers of the grid: list, check, cordon, uncordon, interrupt.", no_args_is_help=True
    )
    providers.command("list")(list_providers)
    providers.command("check")(check)
    providers.command("cordon")(cordon)
    providers.command("uncordon")(uncordon)
    providers.command("interrupt")(interrupt)
    app.add_typer(providers, name="providers", rich_help_panel=GROUP)
    app.command("cost", rich_help_panel=GROUP)(cost)


def list_providers(
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """List the providers with what they hold, and why one takes no nodes where it does not.

    Example: elasticgrid providers list
    """
    from elasticgrid.cli.client import gateway
    from elasticgrid.gateway.answers import ProviderList

    with gateway(flags(url, key_file, data)) as grid:
        found = grid.get("/v1/providers", ProviderList).items
    if chosen(output, json) is not Format.TEXT:
        print_data(found, chosen(output, json))
        return OK
    print_table(
        ("!provider", "engine", "market", "#price/h", "#nodes", "#used", "#coming", "#leaving", "~takes nodes"),
        (
            (
                view.spec.name,
                view.spec.engine,
                view.spec.market,
                dollars(view.spec.price_microdollars_per_hour, places=4),
                view.spec.max_nodes,
                view.in_use,
                view.in_flight,
                view.draining,
                f"no: {view.refused} {view.detail}".rstrip() if view.refused else "yes",
            )
            for view in found
        ),
    )
    if found:
        say(f"next: {next_command('providers check', where=flags(url, key_file, data))}")
    else:
        say("no providers; the file given to `elasticgrid up --config` names them")
    return OK


def check(
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="The providers of a grid file, with no gateway asked."),
    ] = None,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Say whether each provider can be used from this machine, and if not why and what helps; exit 1 if any cannot.

    Run it where the launcher runs. Nothing is launched and no cloud is asked.

    Example: elasticgrid providers check --config examples/elastic_numpy/grid.yaml
    """
    from msgspec.structs import replace

    from elasticgrid.cli.provider_checks import check_provider, this_machine

    here = this_machine(os.environ)
    if config is not None:
        from elasticgrid.config.grid_file import read_grid

        checks = [check_provider(spec, here) for spec in read_grid(config)]
    else:
        from elasticgrid.cli.client import gateway
        from elasticgrid.gateway.answers import ProviderList

        with gateway(flags(url, key_file, data)) as grid:
            found = grid.get("/v1/providers", ProviderList).items
        checks = [
            replace(check_provider(view.spec, here), refused=f"{view.refused} {view.detail}".strip())
            for view in found
            if not view.withdrawn
        ]
    if chosen(output, json) is Format.TEXT:
        print_table(
            ("!provider", "engine", "usable", "~why not"),
            ((each.provider, each.engine, "yes" if each.usable else "no", each.why or each.refused) for each in checks),
        )
    else:
        print_data(checks, chosen(output, json))
    for each in checks:
        if each.remedy:
            say(f"{each.provider}: {each.remedy}")
    return OK if all(each.usable for each in checks) else FAILED


def cordon(
    provider: ProviderArgument,
    reason: Annotated[str, typer.Option(help="Why; kept in the log.")] = "",
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Keep new nodes off a provider; what runs there stays.

    Example: elasticgrid providers cordon local-spot --reason maintenance
    """
    return _ask(provider, "cordon", {"reason": reason}, chosen(output, json), flags(url, key_file, data))


def uncordon(
    provider: ProviderArgument,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Let a cordoned provider take nodes again.

    Example: elasticgrid providers uncordon local-spot
    """
    return _ask(provider, "uncordon", None, chosen(output, json), flags(url, key_file, data))


def interrupt(
    provider: ProviderArgument,
    notice_s: Annotated[
        int, typer.Option("--notice-s", help="In how many seconds they are said to go; 0 says no time.")
    ] = 120,
    reason: Annotated[str, typer.Option(help="Why; kept in the log.")] = "",
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Give notice to every node at a provider, as the provider would before it takes them away.

    Jobs commit a checkpoint, leave these nodes and ask for others, which may be at the same provider: cordon it first
    if they must not. Nothing is taken away by this itself.

    Example: elasticgrid providers interrupt local-spot --notice-s 60
    """
    from elasticgrid.cli.client import gateway, provider_path
    from elasticgrid.gateway.providers import Interrupted

    body = {"notice_s": notice_s, "reason": reason}
    where = flags(url, key_file, data)
    with gateway(where) as grid:
        told = grid.post(provider_path(provider, "interrupt"), Interrupted, body)
    if chosen(output, json) is not Format.TEXT:
        print_data(told, chosen(output, json))
        return OK
    nodes = sum(len(each.nodes) for each in told.jobs)
    say(f"{nodes} nodes of {len(told.jobs)} jobs at {told.provider} were given notice")
    for each in told.jobs[:5]:
        say(f"next: {next_command('jobs watch', each.job, tenant=each.tenant, where=where)}")
    return OK


def _ask(provider: str, what: str, body: dict[str, str] | None, output: Format, where: dict[str, str | None]) -> int:
    from elasticgrid.cli.client import gateway, provider_path
    from elasticgrid.gateway.providers import ProviderView

    with gateway(where) as grid:
        view = grid.post(provider_path(provider, what), ProviderView, body)
    if output is not Format.TEXT:
        print_data(view, output)
    elif view.cordon is not None:
        opposite = next_command("providers uncordon", view.spec.name, where=where)
        say(f"{view.spec.name} is cordoned; the opposite is: {opposite}")
    else:
        say(f"{view.spec.name} takes nodes")
    return OK


def cost(
    by: Annotated[Literal["job", "tenant", "provider"], typer.Option(help="What to sum over.")] = "job",
    since: Annotated[str | None, typer.Option(help="A UTC time, or so long ago such as 24h.")] = None,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Say what nodes cost, from the prices in the log.

    Example: elasticgrid cost --by provider --since 24h
    """
    from elasticgrid.cli.client import gateway
    from elasticgrid.projections.results import CostReport

    since_ms = optional_time_ms(since, where="--since")
    where = flags(url, key_file, data)
    with gateway(where) as grid:
        report = grid.get("/v1/cost", CostReport, by=by, since_ms=since_ms)
    if chosen(output, json) is not Format.TEXT:
        print_data(report, chosen(output, json))
        return OK
    several = by == "job" and len({line.tenant for line in report.lines}) > 1
    print_table(
        (f"!{by}", "#nodes", "#node hours", "#cost", "#now/h"),
        (
            (
                f"{line.tenant}/{line.name}" if several else line.name or line.tenant,
                line.nodes,
                f"{line.node_ms / 3_600_000:.3f}",
                dollars(line.cost_microdollars, places=4),
                dollars(line.price_microdollars_per_hour),
            )
            for line in report.lines
        ),
    )
    if report.lines:
        other = "provider" if by != "provider" else "job"
        look = next_command("cost", "--by", other, where=where)
        say(f"together {dollars(report.cost_microdollars, places=4)}; next: {look}")
    else:
        say(f"nothing has cost anything yet; submit a job with: {next_command('submit', where=where)} FILE")
    return OK
