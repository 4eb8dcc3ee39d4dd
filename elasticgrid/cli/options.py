"""Options that many verbs share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from elasticgrid.cli.completion import complete_job, complete_provider
from elasticgrid.cli.output import Format

#: Where settings come from is told by `config show --origin`, so that the environment is not read as if it were flags.
WHICH_GRID = "Which grid"


class Level(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


LogLevel = Annotated[Level, typer.Option("--log-level", case_sensitive=False, help="How much is logged.")]

Output = Annotated[Format, typer.Option("-o", "--output", help="How data is printed.")]
Json = Annotated[bool, typer.Option("--json", help="The same as -o json.")]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The gateway; else ELASTICGRID_GATEWAY_URL, else this folder's.",
        rich_help_panel=WHICH_GRID,
    ),
]
KeyFile = Annotated[
    str | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        help="The file with its key; - reads stdin. Else ELASTICGRID_KEY_FILE.",
        rich_help_panel=WHICH_GRID,
    ),
]
DataDir = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="The data folder of a control plane here. Else ELASTICGRID_DATA_DIR.",
        rich_help_panel=WHICH_GRID,
    ),
]
Tenant = Annotated[
    str | None,
    typer.Option("--tenant", metavar="NAME", help="Whose job it is; the key's own tenant, else `default`."),
]
JobArgument = Annotated[
    str,
    typer.Argument(
        help="The job's id, or TENANT/ID; `jobs list` shows them.", metavar="JOB", autocompletion=complete_job
    ),
]
ProviderArgument = Annotated[
    str, typer.Argument(help="The provider's name.", metavar="PROVIDER", autocompletion=complete_provider)
]


def flags(url: str | None, key_file: str | None, data: str | None) -> dict[str, str | None]:
    """The flags that say where the gateway is, by setting."""
    return {"gateway_url": url, "key_file": key_file, "data_dir": data}


def chosen(output: Format, json: bool) -> Format:
    """The format asked for."""
    return Format.JSON if json else output
