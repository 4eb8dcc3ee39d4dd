"""Who may do what on the bus: the accounts, what passes between them, and the permissions of each kind of user.

The streams are in the account of the grid. Each tenant has an account of its own, with no JetStream: it sees the few
subjects of the grid that it imports, each with the tenant's name in it. What it publishes there the server carries
over, and an answer comes back into the tenant's account only. So whatever a tenant's user writes as the subject for an
answer means nothing outside its own account.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from elasticgrid.bus.subjects import (
    EVENTS_ROOT,
    EVENTS_STREAM,
    HEARTBEATS_ROOT,
    LIVE_ROOT,
    READ_ROOT,
    RENEWALS_ROOT,
    ROUNDS_ROOT,
    SAMPLES_ROOT,
    SAMPLES_STREAM,
    WATCHERS_ROOT,
    live_filter,
    read_subject,
    renewal_subject,
)
from elasticgrid.core.events import Writer

Role = Literal["service", "decider", "launcher", "gateway", "reader"]
#: `service` may write every event: `elasticgrid up`, where all services share a connection, and restoring a log.
ROLES: Final[tuple[Role, ...]] = ("service", "decider", "launcher", "gateway", "reader")

#: What the holder of a launch's credential may read of its job: what was decided and what became of its launches.
LAUNCH_READS: Final[tuple[Writer, ...]] = ("decision", "launch", "job")

#: What no role may ask: nothing that destroys a stream or a message in it. A stream can be deleted although it denies
#: the deletion of its messages, so only this keeps it.
DESTRUCTIVE: Final = (
    "$JS.API.STREAM.DELETE.>",
    "$JS.API.STREAM.PURGE.>",
    "$JS.API.STREAM.MSG.DELETE.>",
    "$JS.API.STREAM.RESTORE.>",
    "$JS.API.ACCOUNT.PURGE.>",
    "$JS.API.SERVER.>",
)

_STREAMS: Final = (EVENTS_STREAM, SAMPLES_STREAM)
#: What reading the streams takes.
_READING: Final = tuple(
    subject
    for stream in _STREAMS
    for subject in (
        f"$JS.API.STREAM.INFO.{stream}",
        f"$JS.API.STREAM.MSG.GET.{stream}",
        f"$JS.API.DIRECT.GET.{stream}",
        f"$JS.API.CONSUMER.CREATE.{stream}.>",
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.*",
    )
)
#: What making the streams takes. Who may change a stream can have it copy anything anywhere, so one role does it.
_MAKING: Final = tuple(f"$JS.API.STREAM.{verb}.{stream}" for stream in _STREAMS for verb in ("CREATE", "UPDATE"))
_WRITES: Final[Mapping[Role, tuple[str, ...]]] = {
    "decider": (f"{EVENTS_ROOT}.*.*.decision.>",),
    "launcher": (f"{EVENTS_ROOT}.*.*.launch.>", *_MAKING),
    "gateway": (f"{EVENTS_ROOT}.*.*.job.>", f"{WATCHERS_ROOT}.*"),
    "reader": (),
}
#: A service answers each question once, within this time.
_ANSWERS: Final = {"max": 1, "ttl": 10_000_000_000}
_UNLIMITED: Final = {"subs": -1, "data": -1, "payload": -1}
#: A user whose token is proof enough, by an ordinary connection: the WebSocket listener is for dashboards alone.
_USER: Final = {**_UNLIMITED, "bearer_token": True, "allowed_connection_types": ["STANDARD"]}
_ACCOUNT: Final = {**_UNLIMITED, "imports": -1, "wildcards": True, "conn": -1, "leaf": 0}
_JETSTREAM: Final = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}

_ASKED: Final = (SAMPLES_ROOT, HEARTBEATS_ROOT, READ_ROOT, RENEWALS_ROOT)


def operator_claims(system_account: str) -> dict[str, Any]:
    """The operator, who vouches for all accounts."""
    return {"system_account": system_account}


def system_account_claims() -> dict[str, Any]:
    """The account that the server speaks of itself in."""
    return {"limits": {**_ACCOUNT, "exports": -1}}


def grid_account_claims(revoked: Mapping[str, int]) -> dict[str, Any]:
    """The account with the streams, and what of it others may be given."""
    asked = [*(f"{root}.>" for root in _ASKED), f"{EVENTS_ROOT}.*.*.node.>"]
    return {
        "limits": {**_ACCOUNT, **_JETSTREAM, "exports": -1},
        "exports": [
            *({"name": subject, "subject": subject, "type": "service"} for subject in asked),
            {"name": LIVE_ROOT, "subject": f"{LIVE_ROOT}.>", "type": "stream"},
        ],
        **_revocations(revoked),
    }


def tenant_account_claims(tenant: str, grid_account: str, revoked: Mapping[str, int]) -> dict[str, Any]:
    """A tenant's account: what it sees of the grid.

    Args:
        tenant: its name.
        grid_account: public key of the account with the streams.
        revoked: users of the account by public key; tokens issued until that time, Unix seconds, are refused.
    """
    asked = [*(f"{root}.{tenant}.>" for root in _ASKED), f"{EVENTS_ROOT}.{tenant}.*.node.>"]
    imports = [_import(subject, grid_account, "service") for subject in asked]
    imports.append(_import(f"{LIVE_ROOT}.{tenant}.>", grid_account, "stream"))
    return {"limits": {**_ACCOUNT, "exports": 0}, "imports": imports, **_revocations(revoked)}


def role_claims(role: Role, inbox_prefix: str) -> dict[str, Any]:
    """A user of the grid's account: every role may read all, and writes its own part."""
    if role == "service":
        return {
            **_USER,
            "pub": {"allow": [">"], "deny": list(DESTRUCTIVE)},
            "sub": {"allow": [">"]},
        }
    return {
        **_USER,
        "pub": {"allow": [*_READING, *_WRITES[role]]},
        "sub": {"allow": ["grid.>", f"{inbox_prefix}.>"]},
        "resp": _ANSWERS,
    }


def launch_claims(tenant: str, job: str, launch: str, inbox_prefix: str) -> dict[str, Any]:
    """A user of a tenant's account: the agents and workers of one launch.

    They publish the job's samples, heartbeats and node facts, talk with the job's other agents about the end of a
    round, and read what was decided about the job and what its launches became.
    """
    return {
        **_USER,
        "pub": {
            "allow": [
                f"{SAMPLES_ROOT}.{tenant}.{job}.*",
                f"{EVENTS_ROOT}.{tenant}.{job}.node.>",
                f"{HEARTBEATS_ROOT}.{tenant}.{job}.*",
                f"{ROUNDS_ROOT}.{tenant}.{job}.*",
                *(read_subject(tenant, job, writer) for writer in LAUNCH_READS),
                renewal_subject(tenant, job, launch),
            ]
        },
        "sub": {
            "allow": [
                f"{inbox_prefix}.>",
                f"{ROUNDS_ROOT}.{tenant}.{job}.*",
                *(live_filter(tenant, job, writer) for writer in LAUNCH_READS),
            ]
        },
        # An agent answers another agent's question about a round.
        "resp": _ANSWERS,
    }


def watcher_claims(tenant: str, inbox_prefix: str, *, websocket: bool) -> dict[str, Any]:
    """A user of a tenant's account who reads its events and writes nothing.

    Args:
        tenant: whose events.
        inbox_prefix: where it receives answers.
        websocket: it may enter by the WebSocket listener alone.
    """
    claims: dict[str, Any] = {
        **_USER,
        "pub": {"allow": [f"{READ_ROOT}.{tenant}.>"]},
        "sub": {"allow": [f"{inbox_prefix}.>", f"{LIVE_ROOT}.{tenant}.>"]},
    }
    if websocket:
        claims["allowed_connection_types"] = ["WEBSOCKET"]
    return claims


def system_claims(inbox_prefix: str) -> dict[str, Any]:
    """The user that brings accounts to the server."""
    return {
        **_USER,
        "pub": {"allow": ["$SYS.REQ.CLAIMS.UPDATE"]},
        "sub": {"allow": [f"{inbox_prefix}.>"]},
    }


def _import(subject: str, account: str, kind: str) -> dict[str, Any]:
    return {"name": subject, "subject": subject, "local_subject": subject, "account": account, "type": kind}


def _revocations(revoked: Mapping[str, int]) -> dict[str, Any]:
    return {"revocations": dict(sorted(revoked.items()))} if revoked else {}


def exported_subjects() -> Iterable[str]:
    """What tenants may be given of the grid's account, for documents."""
    return (*(f"{root}.<tenant>.>" for root in _ASKED), f"{EVENTS_ROOT}.<tenant>.*.node.>", f"{LIVE_ROOT}.<tenant>.>")
