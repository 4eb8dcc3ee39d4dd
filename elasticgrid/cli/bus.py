"""`bus`: the secret that a bus of its own trusts, what is made from it, and credentials for dashboards."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from elasticgrid.cli.failures import OK
from elasticgrid.cli.options import DataDir, Json, KeyFile, Output, Url, chosen, flags
from elasticgrid.cli.output import Format, print_data, say
from elasticgrid.core.errors import InvalidInput

GROUP = "Run a grid"
#: Where services/nats/nats.conf keeps its storage.
ACCOUNTS_DIR = "/var/lib/nats/accounts"


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    bus = typer.Typer(help="Who may enter the bus: init, env, watcher.", no_args_is_help=True)
    bus.command("init")(init)
    bus.command("env")(env)
    bus.command("watcher")(watcher)
    app.add_typer(bus, name="bus", rich_help_panel=GROUP)


def init(
    folder: Annotated[Path, typer.Argument(help="A private folder for the secret and what is made from it.")],
    accounts_dir: Annotated[
        str, typer.Option("--accounts-dir", help="Where the server keeps tenants' accounts, on its own machine.")
    ] = ACCOUNTS_DIR,
    ca: Annotated[
        Path | None, typer.Option("--ca", help="Certificates, as PEM, that the server's own is checked with.")
    ] = None,
    output: Output = Format.TEXT,
    json: Json = False,
) -> int:
    """Write what a nats-server of your own includes, and a credential for each service.

    A secret that is in the folder already is kept. Without it, everything is made anew and the old is worthless.

    Example: elasticgrid bus init secrets
    """
    from elasticgrid.bus.deployment import write_deployment

    pem = ca.read_text() if ca is not None else ""
    written = write_deployment(folder, accounts_dir, int(time.time()), ca=pem)
    if chosen(output, json) is not Format.TEXT:
        print_data({"files": [str(path) for path in written]}, chosen(output, json))
        return OK
    for path in written:
        say(f"wrote {path}")
    say("next: include trust.conf in the server's configuration; each service gets its own file, the launcher also")
    say("      authority.key (ELASTICGRID_BUS_AUTHORITY)")
    return OK


def env(
    secret: Annotated[
        Path | None, typer.Option("--secret", metavar="FILE", help="Use the secret in this file, not a new one.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write; private.")] = Path(".env"),
) -> int:
    """Write what compose.yaml needs, as variables. They hold secrets.

    A file that is there is not replaced: everything that was made from its secret would be worthless.

    Example: elasticgrid bus env --out .env
    """
    import secrets as random

    from elasticgrid.bus.authority import Authority, read_authority
    from elasticgrid.bus.credentials import write_private
    from elasticgrid.bus.deployment import deployment_variables

    if secret is not None:
        authority, text = read_authority(secret), secret.read_text().strip()
    else:
        text = random.token_hex(32)
        authority = Authority(bytes.fromhex(text))
    if out.exists():
        raise InvalidInput(
            "there is such a file already", where=str(out), hint="add to it what a new one has, or move it"
        )
    variables = deployment_variables(authority, text, int(time.time()))
    write_private(out.absolute(), "".join(f"{name}={value}\n" for name, value in variables.items()).encode())
    say(f"wrote {out}")
    say("next: docker compose up --build --wait")
    return OK


def watcher(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The credential file to write; private.")],
    tenant: Annotated[str | None, typer.Option("--tenant", help="Whose events; the key's own if absent.")] = None,
    name: Annotated[str, typer.Option("--name", help="Of the dashboard.")] = "dashboard",
    lasts_s: Annotated[int, typer.Option("--lasts-s", help="How long it is valid, in seconds.")] = 3_600,
    websocket: Annotated[bool, typer.Option("--websocket", help="For the WebSocket listener alone.")] = False,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Get a credential with which a dashboard reads one tenant's events from the bus, and can do nothing else.

    Example: elasticgrid bus watcher --tenant default --out watcher.json
    """
    from elasticgrid.bus.credentials import write_credentials
    from elasticgrid.cli.client import gateway
    from elasticgrid.gateway.bus_credentials import WatcherCredential, WatcherRequest

    wish = WatcherRequest(tenant=tenant, name=name, lasts_s=lasts_s, websocket=websocket)
    with gateway(flags(url, key_file, data)) as grid:
        made = grid.post("/v1/bus/watchers", WatcherCredential, wish)
    write_credentials(out.absolute(), made.credentials)
    if chosen(output, json) is not Format.TEXT:
        # Without what is secret of it: that is in the file.
        print_data({"file": str(out), "tenant": made.tenant, "expires_s": made.expires_s}, chosen(output, json))
        return OK
    say(f"wrote {out}: reads the events of {made.tenant} for {lasts_s} s")
    return OK
