"""Names for the shell to complete, asked of the gateway quickly; without one there are simply none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from elasticgrid.cli.client import Gateway

#: Somebody waits at the keyboard.
TIMEOUT_S: Final = 1.0
_MOST: Final = 200
#: Whose jobs an id alone names, for whoever sees those of several.
DEFAULT_TENANT: Final = "default"
_FLAGS: Final = {"gateway_url": "url", "key_file": "key_file", "data_dir": "data"}


def complete_job(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Jobs that begin so, the newest first, each with its phase: as ids, or as TENANT/ID where an id is not enough.

    That is so for whoever sees several tenants and has named none, of tenants that are not the default one.
    """

    def jobs(grid: Gateway) -> list[tuple[str, str]]:
        from elasticgrid.cli.client import tenant_of
        from elasticgrid.cli.output import counted
        from elasticgrid.projections.results import JobPage

        tenant = context.params.get("tenant")
        found = grid.get("/v1/jobs", JobPage, tenant=tenant, limit=_MOST).items
        foreign = any(job.tenant != DEFAULT_TENANT for job in found)
        own = tenant or (tenant_of(grid) if foreign else "") or DEFAULT_TENANT

        def name(tenant: str, job: str) -> str:
            return job if tenant == own and "/" not in incomplete else f"{tenant}/{job}"

        return [(name(job.tenant, job.id), f"{job.phase}, {counted(job.world_nodes, 'node')}") for job in found]

    return _beginning_with(incomplete, context, jobs)


def complete_provider(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Names of providers that begin so, each with its engine."""

    def providers(grid: Gateway) -> list[tuple[str, str]]:
        from elasticgrid.gateway.answers import ProviderList

        return [(view.spec.name, view.spec.engine) for view in grid.get("/v1/providers", ProviderList).items]

    return _beginning_with(incomplete, context, providers)


def _beginning_with(
    incomplete: str, context: typer.Context, ask: Callable[[Gateway], list[tuple[str, str]]]
) -> list[tuple[str, str]]:
    """What the gateway that the line typed so far names answers; nothing, when anything goes wrong."""
    # A message in the middle of a line that is being typed helps nobody.
    with contextlib.suppress(Exception):
        from elasticgrid.cli.client import gateway

        given = {setting: context.params.get(flag) for setting, flag in _FLAGS.items()}
        with gateway(given, timeout_s=TIMEOUT_S, from_stdin=False) as grid:
            return [(name, told) for name, told in ask(grid) if name.startswith(incomplete)]
    return []
