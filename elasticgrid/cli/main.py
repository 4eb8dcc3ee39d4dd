"""The command `elasticgrid`: its verbs, and what becomes of its errors."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer
import typer.core
from typer.exceptions import TyperException

from elasticgrid.cli import decisions, demo, events, files, jobs, providers, replay, serve
from elasticgrid.cli.failures import FAILED, INTERRUPTED, INVALID, OK, exit_code
from elasticgrid.cli.output import say
from elasticgrid.core.errors import ElasticGridError

app = typer.Typer(
    name="elasticgrid",
    help="A control plane for elastic training whose every decision can be replayed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

demo.register(app)
serve.register(app)
files.register(app)
jobs.register(app)
decisions.register(app)
providers.register(app)
events.register(app)
replay.register(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. Errors are told on standard error, with what to do."""
    command = typer.main.get_command(app)
    try:
        result = command.main(args=list(arguments) if arguments is not None else None, standalone_mode=False)
    except ElasticGridError as error:
        say(f"error: {error}")
        return exit_code(error)
    except TyperException as error:
        say(f"error: {error}")
        say("see: elasticgrid --help")
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
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    run()
