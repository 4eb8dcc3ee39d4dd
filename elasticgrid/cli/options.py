"""Options that many verbs share."""

from __future__ import annotations

from typing import Annotated

import typer

from elasticgrid.cli.output import Format

Output = Annotated[Format, typer.Option("-o", "--output", help="How data is printed.")]
Json = Annotated[bool, typer.Option("--json", help="The same as -o json.")]
Url = Annotated[
    str | None,
    typer.Option("--url", envvar="ELASTICGRID_GATEWAY_URL", help="The gateway; else this folder's."),
]
KeyFile = Annotated[
    str | None,
    typer.Option("--key-file", envvar="ELASTICGRID_KEY_FILE", help="The file with its key; - reads stdin."),
]
DataDir = Annotated[
    str | None, typer.Option("--data", envvar="ELASTICGRID_DATA_DIR", help="The data folder of a control plane here.")
]
Tenant = Annotated[str, typer.Option("--tenant", help="Whose job it is.")]
JobArgument = Annotated[str, typer.Argument(help="The job's id; `jobs list` shows them.", metavar="JOB")]


def flags(url: str | None, key_file: str | None, data: str | None) -> dict[str, str | None]:
    """The flags that say where the gateway is, by setting."""
    return {"gateway_url": url, "key_file": key_file, "data_dir": data}


def chosen(output: Format, json: bool) -> Format:
    """The format asked for."""
    return Format.JSON if json else output
