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
_FLAGS: Final = {"gateway_url": "url", "key_file": "key_file", "data_dir": "data"}


def complete_job(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Ids of jobs that begin so, the newest first, each with its phase."""

    def jobs(grid: Gateway) -> list[tuple[str, str]]:
        from elasticgrid.projections.results import JobPage

        page = grid.get("/v1/jobs", JobPage, tenant=context.params.get("tenant"), limit=_MOST)
        return [(job.id, f"{job.phase}, {job.world_nodes} nodes") for job in page.items]

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
