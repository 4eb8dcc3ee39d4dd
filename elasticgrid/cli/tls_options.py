"""Options by which a grid listens elsewhere than on the loopback address, and with certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from elasticgrid.bus.server_config import ServerTls
from elasticgrid.core.errors import InvalidInput

PANEL = "Certificates and listeners"


def _path(flag: str, variable: str, help_text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        flag, envvar=variable, metavar="FILE", help=help_text, rich_help_panel=PANEL
    )
    return option


HttpCert: TypeAlias = Annotated[
    Path | None, _path("--http-cert", "ELASTICGRID_HTTP_CERT", "The gateway's certificate (PEM); it speaks HTTPS then.")
]
HttpKey: TypeAlias = Annotated[Path | None, _path("--http-key", "ELASTICGRID_HTTP_KEY", "The certificate's key (PEM).")]
HttpCa: TypeAlias = Annotated[
    Path | None, _path("--http-ca", "ELASTICGRID_HTTP_CA", "What commands check the gateway's certificate with (PEM).")
]
BusCert: TypeAlias = Annotated[
    Path | None,
    _path("--bus-cert", "ELASTICGRID_BUS_CERT", "The embedded bus's certificate (PEM), for TLS."),
]
BusKey: TypeAlias = Annotated[Path | None, _path("--bus-key", "ELASTICGRID_BUS_KEY", "The certificate's key (PEM).")]
BusCa: TypeAlias = Annotated[
    Path | None, _path("--bus-ca", "ELASTICGRID_NATS_CA", "What nodes check the bus's certificate with (PEM).")
]
BusListen: TypeAlias = Annotated[
    str,
    typer.Option(
        "--bus-listen",
        envvar="ELASTICGRID_BUS_LISTEN",
        metavar="HOST[:PORT]",
        help="The address of this machine the embedded bus listens on.",
        rich_help_panel=PANEL,
    ),
]
BusWebSocket: TypeAlias = Annotated[
    str,
    typer.Option(
        "--bus-websocket",
        envvar="ELASTICGRID_BUS_WEBSOCKET",
        metavar="HOST:PORT",
        help="Where dashboards reach the bus by WebSocket; nowhere if not given.",
        rich_help_panel=PANEL,
    ),
]
BusOrigin: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--bus-origin",
        envvar="ELASTICGRID_BUS_ORIGIN",
        metavar="ORIGIN",
        help="A page's origin that may do so, such as https://grid.example.com; may be given again.",
        rich_help_panel=PANEL,
    ),
]


def certificate(cert: Path | None, key: Path | None, ca: Path | None, *, what: str) -> ServerTls | None:
    """What a listener shows; None when no certificate is named.

    Raises:
        InvalidInput: one of certificate and key is missing, or a file cannot be read.
    """
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise InvalidInput("a certificate needs its key, and a key its certificate", where=f"--{what}-cert")
    for path in (cert, key, ca):
        if path is not None and not path.is_file():
            raise InvalidInput("there is no such file", where=str(path), hint="name a PEM file")
    return ServerTls(cert=str(cert.absolute()), key=str(key.absolute()), ca=str(ca.absolute()) if ca else "")
