"""The embedded server's configuration file: roles, what each may do, limits, storage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import msgspec

from elasticgrid.bus.subjects import (
    EVENTS_ROOT,
    EVENTS_STREAM,
    HEARTBEATS_ROOT,
    ROUNDS_ROOT,
    SAMPLES_ROOT,
)

Role = Literal["service", "node"]
ROLES: tuple[Role, ...] = ("service", "node")

MAX_PAYLOAD_BYTES = 256 * 1024
#: Messages JetStream may hold in memory between receiving and storing them; the default, 10,000, drops bursts.
MAX_BUFFERED_MSGS = 200_000
LOG_FILE_BYTES = 16 * 1024 * 1024

#: Where each role receives its answers, and nowhere else, so that nobody can listen to another role's.
INBOX_PREFIXES: dict[Role, str] = {"service": "_INBOX_service", "node": "_INBOX_node"}

#: What no role may ask: nothing that destroys a stream or a message in it. A stream can be deleted although it denies
#: the deletion of its messages, so only this keeps it.
_DESTRUCTIVE = (
    "$JS.API.STREAM.DELETE.>",
    "$JS.API.STREAM.PURGE.>",
    "$JS.API.STREAM.MSG.DELETE.>",
    "$JS.API.STREAM.RESTORE.>",
    "$JS.API.ACCOUNT.PURGE.>",
    "$JS.API.SERVER.>",
)

#: What agents and workers may publish: samples, their own facts, heartbeats, round agreements, and what reading the
#: event log takes.
_NODE_PUBLISH = (
    f"{SAMPLES_ROOT}.>",
    f"{EVENTS_ROOT}.*.*.node.>",
    f"{HEARTBEATS_ROOT}.>",
    f"{ROUNDS_ROOT}.>",
    f"$JS.API.STREAM.INFO.{EVENTS_STREAM}",
    f"$JS.API.STREAM.MSG.GET.{EVENTS_STREAM}",
    f"$JS.API.CONSUMER.CREATE.{EVENTS_STREAM}.*.{EVENTS_ROOT}.>",
    f"$JS.API.CONSUMER.MSG.NEXT.{EVENTS_STREAM}.*",
)


class ClusterMember(msgspec.Struct, frozen=True, kw_only=True):
    """One server of a cluster on this machine.

    Attributes:
        cluster: the cluster's name.
        server: this server's name, unique in the cluster.
        port: where this server listens for the others.
        routes: ports of all members.
        route_password: what members show to each other.
        passwords: by role; the same on every member, so that a client may move between them.
    """

    cluster: str
    server: str
    port: int
    routes: tuple[int, ...]
    route_password: str
    passwords: dict[Role, str]


def render(
    *,
    folder: Path,
    port: int,
    passwords: dict[Role, str],
    cluster: ClusterMember | None = None,
) -> str:
    """The configuration text. `port` -1 lets the server choose one; `folder` holds its storage, log and ports file."""
    parts = [
        f"server_name: {_quoted(cluster.server if cluster else 'elasticgrid')}",
        f'listen: "127.0.0.1:{port}"',
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
        _authorization(passwords),
    ]
    if cluster is not None:
        parts.append(_cluster(cluster))
    return "\n".join(parts) + "\n"


def _authorization(passwords: dict[Role, str]) -> str:
    permissions: dict[Role, object] = {
        "service": {
            "publish": {"allow": [">"], "deny": list(_DESTRUCTIVE)},
            "subscribe": {"allow": [">"]},
        },
        "node": {
            "publish": {"allow": list(_NODE_PUBLISH)},
            "subscribe": {"allow": [f"{INBOX_PREFIXES['node']}.>", f"{ROUNDS_ROOT}.>"]},
            # An agent answers another agent's question about a round; each question may be answered once.
            "allow_responses": True,
        },
    }
    users = [{"user": role, "password": passwords[role], "permissions": permissions[role]} for role in ROLES]
    return f"authorization: {json.dumps({'users': users}, indent=2)}"


def _cluster(member: ClusterMember) -> str:
    routes = [f"nats-route://route:{member.route_password}@127.0.0.1:{port}" for port in member.routes]
    body = {
        "name": member.cluster,
        "listen": f"127.0.0.1:{member.port}",
        "authorization": {"user": "route", "password": member.route_password, "timeout": 5},
        "routes": routes,
    }
    return f"cluster: {json.dumps(body, indent=2)}"


def _quoted(value: object) -> str:
    """A string as the configuration's language wants it: JSON's, of which it is a superset."""
    return json.dumps(str(value))
