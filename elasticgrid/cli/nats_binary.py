"""`--nats-server`: another binary than the installed one, tried before anything is begun with it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Annotated, Final

import typer

from elasticgrid.core.errors import InvalidInput

NatsServer = Annotated[
    Path | None,
    typer.Option(
        "--nats-server", metavar="FILE", help="Another nats-server than the installed one, for a bus of its own."
    ),
]
_FLAG: Final = "--nats-server"
_HINT: Final = "give the path of nats-server"
#: How long it may take to say which version it is.
_TIMEOUT_S: Final = 10.0


def checked(given: Path | None) -> str | None:
    """The path of the binary that was named, None when none was.

    Raises:
        InvalidInput: nothing there can be run, or it does not say that it is a nats-server.
    """
    if given is None:
        return None
    from elasticgrid.bus.embedded import find_nats_server

    path = find_nats_server(str(given), flag=_FLAG)
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be run: {error}", where=_FLAG, hint=_HINT) from error
    if said.returncode != 0 or not said.stdout.startswith("nats-server:"):
        raise InvalidInput(f"{path} is no nats-server: it does not say its version", where=_FLAG, hint=_HINT)
    return str(path)
