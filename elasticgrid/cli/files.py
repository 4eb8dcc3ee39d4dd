"""`init`, `validate`, `schemas`: the files people write, and the documents made from code."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from elasticgrid.cli.failures import FAILED, OK, exit_code
from elasticgrid.cli.options import Json, Output, chosen
from elasticgrid.cli.output import Format, counted, print_data, say
from elasticgrid.core.errors import InvalidInput

GROUP = "Files"


class Kind(StrEnum):
    """The kinds of files there are."""

    JOB = "job"
    GRID = "grid"


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("init", rich_help_panel=GROUP)(init)
    app.command("validate", rich_help_panel=GROUP)(validate)
    schemas = typer.Typer(help="The documents in `schemas/`, generated from code.", no_args_is_help=True)
    schemas.command("write")(write_schemas)
    schemas.command("check")(check_schemas)
    app.add_typer(schemas, name="schemas", rich_help_panel=GROUP)


def init(
    folder: Annotated[Path, typer.Argument(help="Where to put the files.", metavar="[FOLDER]")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> int:
    """Write a commented example of a job file and of a grid file.

    Example: elasticgrid init my-project
    """
    from elasticgrid.config.templates import template

    folder.mkdir(parents=True, exist_ok=True)
    for kind in Kind:
        path = folder / f"{kind}.yaml"
        if path.exists() and not force:
            raise InvalidInput("is there already", where=str(path), hint="--force replaces it")
        path.write_text(template(kind.value), encoding="utf-8")
        say(f"wrote {path}")
    say(f"next: edit them, then: elasticgrid validate {folder / 'job.yaml'} --grid {folder / 'grid.yaml'}")
    return OK


def validate(
    file: Annotated[Path, typer.Argument(help="A job file, a SkyPilot task file or a grid file.", metavar="FILE")],
    kind: Annotated[Kind | None, typer.Option(help="What it is; told from the file's content when not given.")] = None,
    grid: Annotated[
        Path | None, typer.Option("--grid", metavar="FILE", help="Also check that the job can be placed on this grid.")
    ] = None,
    output: Output = Format.TEXT,
    json: Json = False,
) -> int:
    """Check a job or grid file and say everything that is wrong with it, with line, field and hint.

    It warns of what looks like a secret in the job and, where the work folder is at hand, in that. Of a SkyPilot task
    file it also says what is not honoured. With another output than text, prints what was read.

    Example: elasticgrid validate examples/elastic_numpy/job.yaml --grid examples/elastic_numpy/grid.yaml
    """
    from elasticgrid.cli.job_files import read_job_file
    from elasticgrid.cli.job_warnings import warn_of_job
    from elasticgrid.config.grid_file import read_grid
    from elasticgrid.core.placement import check_placeable

    wanted = chosen(output, json)
    if (kind or _kind_of(file)) is Kind.GRID:
        providers = read_grid(file)
        if wanted is Format.TEXT:
            say(f"{file}: a grid of {counted(len(providers), 'provider')}")
            say(f"next: elasticgrid up --config {file}")
        else:
            print_data(providers, wanted)
        return OK
    spec = read_job_file(file, {})
    if grid is not None:
        refusal = check_placeable(spec, read_grid(grid))
        if refusal is not None:
            raise refusal
    warn_of_job(spec)
    if wanted is Format.TEXT:
        placeable = f", can be placed on {grid}" if grid is not None else ""
        size = f"{spec.min_nodes} to " if spec.min_nodes < spec.max_nodes else ""
        say(f"{file}: job {spec.name} of {size}{counted(spec.max_nodes, 'node')}{placeable}")
        say(f"next: elasticgrid submit {file}")
    else:
        print_data(spec, wanted)
    return OK


def _kind_of(file: Path) -> Kind:
    """A file with a field `providers` at its top is a grid; a job has one of that name further down."""
    from elasticgrid.config.document import load
    from elasticgrid.config.files import read_source
    from elasticgrid.config.problems import Problems

    fields = load(read_source(file, InvalidInput), Problems(str(file)))
    return Kind.GRID if fields is not None and "providers" in fields.fields else Kind.JOB


Folder = Annotated[Path, typer.Argument(help="Where the schemas are.", metavar="[FOLDER]")]
Reference = Annotated[Path, typer.Option("--reference", metavar="FOLDER", help="Where the reference pages are.")]


def write_schemas(folder: Folder = Path("schemas"), reference: Reference = Path("docs/reference")) -> int:
    """Write the schemas and the pages of the reference that are missing or differ.

    Example: elasticgrid schemas write schemas
    """
    from elasticgrid.documents import reference as pages
    from elasticgrid.documents import schemas as documents

    for name in documents.write(folder):
        say(f"wrote {folder / name}")
    if reference.is_dir():
        for name in pages.write(reference, _reference_pages()):
            say(f"wrote {reference / name}")
    return OK


def check_schemas(folder: Folder = Path("schemas"), reference: Reference = Path("docs/reference")) -> int:
    """Say which schemas and pages of the reference differ from the code; exit 1 if any does.

    Example: elasticgrid schemas check schemas
    """
    from elasticgrid.documents import reference as pages
    from elasticgrid.documents import schemas as documents

    differences = documents.check(folder)
    if reference.is_dir():
        differences += pages.check(reference, _reference_pages())
    for difference in differences:
        say(difference)
    return FAILED if differences else OK


def _reference_pages() -> dict[str, str]:
    from elasticgrid.cli.main import app
    from elasticgrid.documents import reference as pages

    return pages.generate(typer.main.get_command(app), exit_code)
