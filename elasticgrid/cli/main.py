"""The command `elasticgrid`: its verbs, and what becomes of its errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer
import typer.core
from typer.exceptions import TyperException

from elasticgrid.cli import (
    bus,
    decisions,
    demo,
    doctor,
    events,
    files,
    jobs,
    plan,
    providers,
    replay,
    serve,
    settings,
    tenants,
)
from elasticgrid.cli import run as run_alone
from elasticgrid.cli.failures import FAILED, INTERRUPTED, INVALID, OK, exit_code
from elasticgrid.cli.output import say
from elasticgrid.core.errors import ElasticGridError

#: The groups of verbs in the help, in the order of somebody who meets all this for the first time.
GROUPS: Final = (
    serve.GROUP,
    jobs.GROUP,
    providers.GROUP,
    tenants.GROUP,
    replay.GROUP,
    plan.GROUP,
    files.GROUP,
    doctor.GROUP,
)


class GroupedVerbs(typer.core.TyperGroup):
    """Lists the verbs by group."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override] # typer's own context is the same
        """The names of the verbs in the order of the help."""

        def place(name: str) -> int:
            panel = getattr(self.commands[name], "rich_help_panel", None)
            return GROUPS.index(panel) if panel in GROUPS else len(GROUPS)

        return sorted(super().list_commands(ctx), key=place)


app = typer.Typer(
    name="elasticgrid",
    cls=GroupedVerbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from elasticgrid import __version__

        sys.stdout.write(f"elasticgrid {__version__}\n")
        raise typer.Exit


@app.callback()
def elasticgrid(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A control plane for elastic training whose every decision can be replayed.

    Example: elasticgrid demo
    """


for module in (
    demo,
    serve,
    bus,
    run_alone,
    jobs,
    providers,
    tenants,
    decisions,
    events,
    replay,
    plan,
    files,
    settings,
    doctor,
):
    module.register(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. Errors are told on standard error, with what to do."""
    command = typer.main.get_command(app)
    try:
        given = list(arguments) if arguments is not None else None
        result = command.main(args=given, prog_name=app.info.name, standalone_mode=False)
    except ElasticGridError as error:
        say(f"error: {error}")
        return exit_code(error)
    except TyperException as error:
        # Without any verb the help was the answer.
        if text := error.format_message().replace(": Value error, ", ": ", 1):
            context = getattr(error, "ctx", None)
            say(f"error: {text}")
            say(f"see: {context.command_path if context is not None else app.info.name} --help")
        return INVALID
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away, as `head` does; that is no failure.
        sys.stderr.close()
        return OK
    except OSError as error:
        say(f"error: {error}")
        return FAILED
    return result if isinstance(result, int) else OK


def run() -> None:
    """Run it as a program of its own."""
    # A closed stream is None: what is written to it has nowhere to go, which is no reason to fail.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - open until the program ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - open until the program ends
    sys.exit(main())


if __name__ == "__main__":
    run()
