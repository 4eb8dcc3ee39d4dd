"""`config show`: what the command line goes by, and where each setting came from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from elasticgrid.cli.failures import OK
from elasticgrid.cli.files import GROUP
from elasticgrid.cli.options import DataDir, Json, KeyFile, Output, Url, chosen, flags
from elasticgrid.cli.output import Format, print_data, print_table


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    config = typer.Typer(help="The settings of the command line.", no_args_is_help=True)
    config.command("show")(show)
    app.add_typer(config, name="config", rich_help_panel=GROUP)


def show(
    origin: Annotated[bool, typer.Option("--origin", help="Also where each setting came from.")] = False,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Show the settings in force.

    A flag wins over the environment, that over elasticgrid.yaml in this folder, that over your own configuration file.

    Example: elasticgrid config show --origin
    """
    from elasticgrid.config.settings import VARIABLES, resolve

    settings = resolve(flags(url, key_file, data), os.environ, folder=Path.cwd())
    found = [getattr(settings, name) for name in VARIABLES]
    wanted = chosen(output, json)
    if wanted is not Format.TEXT:
        print_data(found if origin else {each.name: each.value for each in found}, wanted)
    elif origin:
        print_table(
            ("setting", "value", "from", "~where"),
            ((each.name, each.value or _UNSET, each.source, each.where) for each in found),
        )
    else:
        print_table(("setting", "~value"), ((each.name, each.value or _UNSET) for each in found))
    return OK


_UNSET = "(what runs from the data folder)"
