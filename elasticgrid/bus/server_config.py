"""The bus server's configuration file: whom it trusts, limits, storage, listeners."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from elasticgrid.bus.accounts import DESTRUCTIVE
from elasticgrid.bus.authority import Authority
from elasticgrid.bus.credentials import Credentials

MAX_PAYLOAD_BYTES = 256 * 1024
#: Messages JetStream may hold in memory between receiving and storing them; the default, 10,000, drops bursts.
MAX_BUFFERED_MSGS = 200_000
LOG_FILE_BYTES = 16 * 1024 * 1024
LOOPBACK = "127.0.0.1"


class ServerTls(msgspec.Struct, frozen=True, kw_only=True):
    """What the server shows to clients, as paths of PEM files.

    Attributes:
        cert, key: its certificate, with those between it and the CA, and the certificate's key.
        ca: what its clients check the certificate with; empty when the machines trust it anyway.
    """

    cert: str
    key: str
    ca: str = ""


class WebSocket(msgspec.Struct, frozen=True, kw_only=True):
    """The listener for browsers.

    Attributes:
        listen: host and port.
        allowed_origins: pages of which origins may connect, such as `https://grid.example.com`. A program that is no
            browser says any origin or none: what protects is the credential.
    """

    listen: tuple[str, int]
    allowed_origins: tuple[str, ...] = ()


class Listening(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server listens, and how.

    Attributes:
        host: an address of this machine.
        tls: None for connections in the clear.
        websocket: None for no such listener.
    """

    host: str = LOOPBACK
    tls: ServerTls | None = None
    websocket: WebSocket | None = None


class ClusterMember(msgspec.Struct, frozen=True, kw_only=True):
    """One server of a cluster on this machine.

    Attributes:
        cluster: the cluster's name.
        server: this server's name, unique in the cluster.
        port: where this server listens for the others.
        routes: ports of all members.
        route_password: what members show to each other.
        authority: path of the secret that all members trust, so that a client may move between them.
    """

    cluster: str
    server: str
    port: int
    routes: tuple[int, ...]
    route_password: str
    authority: str


def render(
    *,
    folder: Path,
    port: int,
    trusted: Authority | Credentials | Literal["open"],
    now_s: int,
    listening: Listening = Listening(),
    cluster: ClusterMember | None = None,
) -> str:
    """The configuration text of the embedded server.

    Args:
        folder: holds its storage, accounts, log and ports file.
        port: -1 lets the server choose one.
        trusted: whose signatures let in; or the one user that everybody is; or nobody is asked.
        now_s: Unix seconds.
        listening: where and how.
        cluster: makes it one server of a cluster.
    """
    parts = [
        f"server_name: {_quoted(cluster.server if cluster else 'elasticgrid')}",
        f"listen: {_quoted(f'{listening.host}:{port}')}",
        f"ports_file_dir: {_quoted(folder)}",
        f"pid_file: {_quoted(folder / 'nats-server.pid')}",
        f"log_file: {_quoted(folder / 'nats-server.log')}",
        f"logfile_size_limit: {LOG_FILE_BYTES}",
        "logfile_max_num: 2",
        f"max_payload: {MAX_PAYLOAD_BYTES}",
        "\n".join(
            [
                "jetstream {",
                f"  store_dir: {_quoted(folder / 'storage')}",
                "  sync_interval: always",
                f"  max_buffered_msgs: {MAX_BUFFERED_MSGS}",
                "}",
            ]
        ),
        trust(trusted, now_s, accounts_dir=str(folder / "accounts"))
        if isinstance(trusted, Authority)
        else _one_user(trusted),
    ]
    if listening.tls is not None:
        parts.append(_section("tls", _tls(listening.tls)))
    if listening.websocket is not None:
        parts.append(_section("websocket", _websocket(listening.websocket, listening.tls)))
    if cluster is not None:
        parts.append(_cluster(cluster))
    return "\n".join(parts) + "\n"


def trust(authority: Authority, now_s: int, *, accounts_dir: str) -> str:
    """The part of a server's configuration by which it trusts what the authority signed.

    There is no secret in it. Tenants' accounts are brought to the server while it runs and kept in `accounts_dir`.
    """
    preload = {
        authority.system_account: authority.system_account_token(now_s),
        authority.grid_account: authority.grid_account_token(now_s),
    }
    resolver = {"type": "full", "dir": accounts_dir, "allow_delete": False, "interval": "2m"}
    return "\n".join(
        [
            f"operator: {authority.operator_token(now_s)}",
            f"system_account: {authority.system_account}",
            _section("resolver", resolver),
            _section("resolver_preload", preload),
        ]
    )


def _one_user(shared: Credentials | Literal["open"]) -> str:
    """No accounts: whoever is let in may do all but destroy."""
    allowed = {"publish": {"allow": [">"], "deny": list(DESTRUCTIVE)}, "subscribe": {"allow": [">"]}}
    if shared == "open":
        users = [{"user": "anybody", "password": secrets.token_urlsafe(32), "permissions": allowed}]
        return f"{_section('authorization', {'users': users})}\nno_auth_user: anybody"
    users = [{"user": shared.user, "password": shared.password, "permissions": allowed}]
    return _section("authorization", {"users": users})


def _tls(tls: ServerTls) -> dict[str, object]:
    return {"cert_file": tls.cert, "key_file": tls.key, "timeout": 5}


def _websocket(websocket: WebSocket, tls: ServerTls | None) -> dict[str, object]:
    host, port = websocket.listen
    section: dict[str, object] = {"listen": f"{host}:{port}"}
    section |= {"no_tls": True} if tls is None else {"tls": _tls(tls)}
    if websocket.allowed_origins:
        section["allowed_origins"] = list(websocket.allowed_origins)
    return section


def _cluster(member: ClusterMember) -> str:
    routes = [f"nats-route://route:{member.route_password}@127.0.0.1:{port}" for port in member.routes]
    return _section(
        "cluster",
        {
            "name": member.cluster,
            "listen": f"127.0.0.1:{member.port}",
            "authorization": {"user": "route", "password": member.route_password, "timeout": 5},
            "routes": routes,
        },
    )


def _section(name: str, body: Mapping[str, object]) -> str:
    return f"{name}: {json.dumps(body, indent=2)}"


def _quoted(value: object) -> str:
    """A string as the configuration's language wants it: JSON's, of which it is a superset."""
    return json.dumps(str(value))
