"""`up`, `serve`, `agent`: the processes a grid is made of."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from elasticgrid import environment
from elasticgrid.cli.failures import OK
from elasticgrid.cli.nats_binary import NatsServer, checked
from elasticgrid.cli.options import Level, LogLevel
from elasticgrid.cli.output import say
from elasticgrid.cli.tls_options import (
    BusCa,
    BusCert,
    BusKey,
    BusListen,
    BusOrigin,
    BusWebSocket,
    HttpCa,
    HttpCert,
    HttpKey,
    certificate,
)
from elasticgrid.core.errors import InvalidInput

GROUP = "Run a grid"

DataDir = Annotated[
    Path, typer.Option("--data", envvar="ELASTICGRID_DATA_DIR", help="Where everything is kept.", show_default=True)
]
GridFile = Annotated[
    Path | None, typer.Option("--config", envvar="ELASTICGRID_GRID", help="The grid file, which lists the providers.")
]
Http = Annotated[str, typer.Option("--http", envvar="ELASTICGRID_HTTP", help="HOST:PORT the gateway listens on.")]
Metrics = Annotated[
    str,
    typer.Option(
        "--metrics",
        envvar="ELASTICGRID_METRICS",
        metavar="HOST:PORT",
        help="Where decider or launcher tell their metrics; nowhere if not given. The gateway has its own /metrics.",
    ),
]


_EXAMPLE_JOB: Final = "examples/elastic_numpy/job.yaml"


class Service(StrEnum):
    """The services that can be started alone."""

    DECIDER = "decider"
    LAUNCHER = "launcher"
    GATEWAY = "gateway"


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("up", rich_help_panel=GROUP)(up)
    app.command("serve", rich_help_panel=GROUP)(serve)
    app.command("agent", rich_help_panel=GROUP, context_settings={"ignore_unknown_options": True})(agent)


def host_and_port(text: str, where: str = "--http") -> tuple[str, int]:
    """`HOST:PORT` as its two parts; `where` is the flag that it was given as.

    Raises:
        InvalidInput: it is not of that form.
    """
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65_535:
        raise InvalidInput(f"{text!r} is not HOST:PORT", where=where, hint="for example 127.0.0.1:8080")
    return host, int(port)


def _make(data: Path) -> None:
    """Make the data folder where there is none.

    Raises:
        InvalidInput: it cannot be made.
    """
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InvalidInput(f"no folder can be made at {data}: {error.strerror}", where="--data") from error


def _next_step() -> str:
    """What to type next: the example's job where that is at hand."""
    if Path(_EXAMPLE_JOB).is_file():
        return f"elasticgrid submit {_EXAMPLE_JOB} --wait"
    return "elasticgrid submit FILE --wait (elasticgrid init writes a job file to begin with)"


def up(
    data: DataDir = Path(".elasticgrid"),
    config: GridFile = None,
    http: Http = "127.0.0.1:8080",
    nats_server: NatsServer = None,
    http_cert: HttpCert = None,
    http_key: HttpKey = None,
    http_ca: HttpCa = None,
    bus_listen: BusListen = "127.0.0.1",
    bus_cert: BusCert = None,
    bus_key: BusKey = None,
    bus_ca: BusCa = None,
    bus_websocket: BusWebSocket = "",
    bus_origin: BusOrigin = None,
    log_level: LogLevel = Level.INFO,
) -> int:
    """Run the whole control plane on this machine until Ctrl-C, with an embedded nats-server.

    With ELASTICGRID_NATS_URL and without --nats-server it is on the bus that runs there.

    Example: elasticgrid up --config examples/elastic_numpy/grid.yaml
    """
    from elasticgrid.bus.connect import BusAddress
    from elasticgrid.bus.server_config import Listening, WebSocket
    from elasticgrid.config.grid_file import read_grid
    from elasticgrid.logs import configure_logging
    from elasticgrid.runtime.control_plane import ControlPlane
    from elasticgrid.runtime.node_bus import NodeBus
    from elasticgrid.runtime.services import default_providers
    from elasticgrid.runtime.signals import run_until_signalled

    configure_logging(level=log_level)
    providers = read_grid(config) if config is not None else default_providers()
    server = checked(nats_server)
    bus = BusAddress.from_environment(os.environ) if server is None else None
    host, _, port = bus_listen.partition(":")
    listening = Listening(
        host=host,
        tls=certificate(bus_cert, bus_key, bus_ca, what="bus"),
        websocket=WebSocket(
            listen=host_and_port(bus_websocket, "--bus-websocket"), allowed_origins=tuple(bus_origin or ())
        )
        if bus_websocket
        else None,
    )
    _make(data)
    plane = ControlPlane(
        data,
        providers,
        nats_server=server,
        bus=bus,
        node=NodeBus.from_environment(os.environ, bus) if bus is not None else None,
        listening=listening,
        bus_port=host_and_port(bus_listen, "--bus-listen")[1] if port else None,
        http=host_and_port(http),
        http_tls=certificate(http_cert, http_key, http_ca, what="http"),
    )

    async def run() -> int:
        async with plane:
            say(f"gateway    {plane.url}")
            say(f"admin key  {plane.key_file}")
            say(f"data       {plane.data_dir}")
            say(f"next: in another shell of this folder: {_next_step()}")
            await plane.wait()
        return OK

    code = run_until_signalled(run())
    say("stopped; jobs that were running go on by themselves and are found again by the next `elasticgrid up`")
    return code


def serve(
    service: Annotated[Service, typer.Argument(help="Which service.")],
    data: DataDir = Path(".elasticgrid"),
    config: GridFile = None,
    http: Http = "127.0.0.1:8080",
    metrics: Metrics = "",
    http_cert: HttpCert = None,
    http_key: HttpKey = None,
    log_level: LogLevel = Level.INFO,
) -> int:
    """Run one service, configured by file and environment, for deployments.

    The bus is where ELASTICGRID_NATS_URL says, entered with the file that ELASTICGRID_CREDENTIALS names.

    Example: ELASTICGRID_NATS_URL=nats://127.0.0.1:4222 elasticgrid serve decider
    """
    from elasticgrid.bus.connect import BusAddress
    from elasticgrid.config.grid_file import read_grid
    from elasticgrid.launcher.config import orphan_timeout_s
    from elasticgrid.logs import configure_logging
    from elasticgrid.runtime import services
    from elasticgrid.runtime.node_bus import NodeBus
    from elasticgrid.runtime.signals import run_until_signalled

    configure_logging(level=log_level)
    address = BusAddress.from_environment(os.environ)
    if address is None:
        raise InvalidInput("the bus is not named", where=environment.NATS_URL, hint="set it to nats://HOST:PORT")
    told = host_and_port(metrics, "--metrics") if metrics else None
    _make(data)
    if service is Service.DECIDER:
        return run_until_signalled(services.serve_decider(address, data, told))
    if service is Service.LAUNCHER:
        node = NodeBus.from_environment(os.environ, address)
        return run_until_signalled(services.serve_launcher(address, node, data, orphan_timeout_s(os.environ), told))
    providers = read_grid(config) if config is not None else None
    tls = certificate(http_cert, http_key, None, what="http")
    return run_until_signalled(services.serve_gateway(address, data, providers, host_and_port(http), tls))


def agent(
    command: Annotated[list[str], typer.Argument(help="The command each worker runs.", metavar="-- COMMAND...")],
) -> int:
    """Run the node agent; launches do this, and a person can, too.

    Example: elasticgrid agent -- python train.py
    """
    from elasticgrid.agent.__main__ import main

    return main(command)
