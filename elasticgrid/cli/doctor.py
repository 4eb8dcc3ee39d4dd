"""`doctor`: what works here, what does not, and what helps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from elasticgrid.cli.failures import FAILED, OK
from elasticgrid.cli.options import DataDir, Json, KeyFile, Output, Url, chosen, flags
from elasticgrid.cli.output import Format, print_data, print_table, say, waiting

GROUP = "Help"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("doctor", rich_help_panel=GROUP)(doctor)


def doctor(
    http: Annotated[
        str,
        typer.Option(
            "--http", envvar="ELASTICGRID_HTTP", metavar="HOST:PORT", help="Where a gateway here would listen."
        ),
    ] = "127.0.0.1:8080",
    nats_server: Annotated[
        Path | None, typer.Option("--nats-server", metavar="FILE", help="Another nats-server than the installed one.")
    ] = None,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Look for the usual troubles and say what helps; exit 1 if there is one.

    Engine, nats-server, permissions, disk, port, gateway, key, versions, the log against its mirror, clocks, bus and
    its credential. Nothing is changed; the log of a grid that does not run is compared on a copy.

    Example: elasticgrid doctor
    """
    from elasticgrid.cli.doctor_checks import diagnose
    from elasticgrid.cli.doctor_probes import look
    from elasticgrid.config.settings import resolve

    settings = resolve(flags(url, key_file, data), os.environ, folder=Path.cwd())
    with waiting("looking"):
        server = str(nats_server) if nats_server is not None else None
        findings = diagnose(look(settings, os.environ, http=http, nats_server=server))
    wanted = chosen(output, json)
    if wanted is Format.TEXT:
        print_table(("check", "status", "~found"), ((each.check, each.status, each.says) for each in findings))
    else:
        print_data(findings, wanted)
    problems = [each for each in findings if each.status == "problem"]
    for each in problems:
        say(f"{each.check}: {each.remedy}")
    if not problems and wanted is Format.TEXT:
        gateway_is_there = any(each.check == "gateway" and each.status == "ok" for each in findings)
        say(f"all is well; next: elasticgrid {'submit FILE' if gateway_is_there else 'up'}")
    return FAILED if problems else OK
