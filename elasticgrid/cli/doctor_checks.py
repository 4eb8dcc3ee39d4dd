"""The usual troubles, each as a pure check of what was found: what is wrong, and what helps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec

#: The first nats-server with atomic batches.
LEAST_SERVER: Final = (2, 12)
#: Clocks that differ by more make ages and deadlines wrong.
MAX_SKEW_S: Final = 5.0
LEAST_FREE_BYTES: Final = 1024**3
LEAST_FREE_SHARE: Final = 0.02

Status = Literal["ok", "problem", "skipped"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one check says.

    Attributes:
        check: its name.
        status: `skipped` where there was nothing to look at.
        says: what was found.
        remedy: what to do about a problem.
    """

    check: str
    status: Status
    says: str
    remedy: str = ""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was found on this machine and asked of the gateway and the bus. None and empty: could not be looked at.

    Attributes:
        http: the address a gateway of this machine would listen on; `http_taken` whether somebody listens there.
        gateway_url: the gateway that settings name, empty when there is none; `gateway_problem` why it does not answer.
        gateway_here: it runs from the data folder.
        gateway_status: the HTTP status of a question asked with the key.
        gateway_ready: whether it reaches its log; `gateway_ready_problem` what it says when not.
        log_compared: events of the log that are as its mirror says, None where nothing could be compared, with why as
            `log_unknown`; `log_problem` where they are not, `log_remedy` what helps.
        our_version, gateway_version: of elasticgrid.
        skew_s: the gateway's clock minus ours; `round_trip_s` how uncertain that is.
        key_file: the file of the key; `key_problem` why it cannot be read; `key_mode` its permissions.
        engines: iroh-tinker's engines that can be used here; `engine_problem` why there are none.
        server_path, server_version, server_problem: the embedded nats-server.
        data_dir: the data folder, `data_dir_problem` why it cannot be written to.
        free_bytes, total_bytes: of its file system.
        bus_url: the bus that the environment names, or with `bus_here` the one that runs from the data folder;
            `bus_problem` why it cannot be reached or entered.
        bus_server_version: of the server there.
        credentials: the file to enter the bus with; `credentials_problem` why it cannot be read.
        credentials_refused: the bus was reached and did not take it.
    """

    http: str = ""
    http_taken: bool | None = None
    gateway_url: str = ""
    gateway_here: bool = False
    log_compared: int | None = None
    log_problem: str = ""
    log_remedy: str = ""
    log_unknown: str = ""
    gateway_problem: str = ""
    gateway_status: int | None = None
    gateway_ready: bool | None = None
    gateway_ready_problem: str = ""
    our_version: str = ""
    gateway_version: str = ""
    skew_s: float | None = None
    round_trip_s: float = 0.0
    key_file: str = ""
    key_problem: str = ""
    key_mode: int | None = None
    engines: tuple[str, ...] = ()
    engine_problem: str = ""
    server_path: str = ""
    server_version: str = ""
    server_problem: str = ""
    data_dir: str = ""
    data_dir_problem: str = ""
    free_bytes: int | None = None
    total_bytes: int = 0
    bus_url: str = ""
    bus_here: bool = False
    bus_problem: str = ""
    bus_server_version: str = ""
    credentials: str = ""
    credentials_problem: str = ""
    credentials_refused: bool = False


def diagnose(found: Found) -> tuple[Finding, ...]:
    """Every check, in the order in which one would look."""
    return tuple(check(found) for check in CHECKS)


def _ok(check: str, says: str) -> Finding:
    return Finding(check=check, status="ok", says=says)


def _skipped(check: str, says: str) -> Finding:
    return Finding(check=check, status="skipped", says=says)


def _problem(check: str, says: str, remedy: str) -> Finding:
    return Finding(check=check, status="problem", says=says, remedy=remedy)


def engine(found: Found) -> Finding:
    """Something that can launch nodes."""
    if found.engine_problem:
        return _problem("engine", found.engine_problem, "pip install 'elasticgrid[server]'")
    if not found.engines:
        return _problem("engine", "no engine of iroh-tinker can be used here", "elasticgrid providers check says why")
    return _ok("engine", f"iroh-tinker can use: {', '.join(found.engines)}")


def server(found: Found) -> Finding:
    """A nats-server of a version that knows atomic batches, here or where the environment says."""
    version, where = found.server_version, found.server_path
    if found.bus_url and found.bus_server_version:
        version, where = found.bus_server_version, found.bus_url
    elif found.bus_url:
        return _skipped("nats-server", "the bus did not say its version")
    elif found.server_problem:
        return _problem("nats-server", found.server_problem, "pip install 'elasticgrid[server]'")
    number = parse_version(version)
    if number is None:
        return _problem("nats-server", f"{where} does not say its version", "is it a nats-server?")
    if number < LEAST_SERVER:
        needed = ".".join(map(str, LEAST_SERVER))
        return _problem("nats-server", f"{where} is of version {version}", f"use version {needed} or later")
    return _ok("nats-server", f"version {version}")


def folder(found: Found) -> Finding:
    """A data folder that can be written to."""
    if found.data_dir_problem:
        return _problem(
            "permission", f"{found.data_dir}: {found.data_dir_problem}", "make it yours, or name another with --data"
        )
    return _ok("permission", f"{found.data_dir} can be written to")


def disk(found: Found) -> Finding:
    """Space for the log."""
    if found.free_bytes is None:
        return _skipped("disk", f"{found.data_dir} cannot be looked at")
    free = f"{found.free_bytes / 1024**3:.1f} GiB free at {found.data_dir}"
    if found.free_bytes < LEAST_FREE_BYTES or found.free_bytes < LEAST_FREE_SHARE * found.total_bytes:
        return _problem("disk", free, "free some space: with a full disk nothing is appended to the log any more")
    return _ok("disk", free)


def port(found: Found) -> Finding:
    """The gateway's port is free, or it is our gateway that has it."""
    if found.gateway_here and not found.gateway_problem:
        return _ok("port", f"this folder's gateway listens at {found.gateway_url}")
    if found.http_taken is None:
        return _skipped("port", f"{found.http} is no address of this machine")
    if not found.http_taken:
        return _ok("port", f"{found.http} is free")
    if found.gateway_url.endswith(f":{found.http.rpartition(':')[2]}") and not found.gateway_problem:
        return _ok("port", f"the gateway listens on {found.http}")
    return _problem(
        "port", f"something else listens on {found.http}", "end it, or: elasticgrid up --http 127.0.0.1:8081"
    )


def gateway(found: Found) -> Finding:
    """A gateway that answers and reaches its log."""
    if not found.gateway_url:
        return _skipped("gateway", "none is named, and none runs from the data folder; start one with: elasticgrid up")
    if found.gateway_problem:
        return _problem(
            "gateway",
            f"{found.gateway_url}: {found.gateway_problem}",
            "start it with: elasticgrid up, or correct --url",
        )
    if found.gateway_ready is False:
        return _problem(
            "gateway",
            f"{found.gateway_url} is not ready: {found.gateway_ready_problem}",
            "is its bus up? its log says more",
        )
    return _ok("gateway", f"{found.gateway_url} answers")


def key(found: Found) -> Finding:
    """A key that the gateway takes, and that nobody else can read."""
    if not found.gateway_url:
        return _skipped("key", "there is no gateway to use one with")
    if found.key_problem:
        return _problem("key", f"{found.key_file}: {found.key_problem}", "name the key's file with --key-file")
    if found.key_mode is not None and found.key_mode & 0o077:
        return _problem("key", f"others can read {found.key_file}", f"chmod 600 {found.key_file}")
    if found.gateway_status == 401:
        return _problem(
            "key",
            f"the gateway does not know the key in {found.key_file}",
            "use the key of this gateway: `elasticgrid up` prints its file; or ask for a new one",
        )
    if found.gateway_status == 403:
        return _problem("key", "the key is valid and may not list jobs", "ask for a key with the scope read")
    if found.gateway_status is None:
        return _skipped("key", "the gateway did not answer")
    return _ok("key", f"the gateway takes the key in {found.key_file}")


def version(found: Found) -> Finding:
    """The same interface on both sides."""
    if not found.gateway_version:
        return _skipped("version", f"elasticgrid {found.our_version}; no gateway to compare with")
    ours, theirs = parse_version(found.our_version), parse_version(found.gateway_version)
    if ours != theirs:
        return _problem(
            "version",
            f"this is elasticgrid {found.our_version}, the gateway is {found.gateway_version}",
            f"pip install 'elasticgrid=={found.gateway_version}' here, or bring the gateway up to date",
        )
    return _ok("version", f"elasticgrid {found.our_version} on both sides")


def log(found: Found) -> Finding:
    """A log that is what its mirror says."""
    if found.log_problem:
        remedy = found.log_remedy or "stop the grid and run: elasticgrid events restore --from mirror"
        return _problem("log", found.log_problem, remedy)
    if found.log_compared is None:
        return _skipped("log", found.log_unknown or "no gateway with a mirror to ask")
    return _ok("log", f"{found.log_compared:,} events are as their mirror says")


def clock(found: Found) -> Finding:
    """Clocks that agree."""
    if found.skew_s is None:
        return _skipped("clock", "no gateway to compare with")
    # The answer's date has whole seconds.
    uncertain_s = 1.0 + found.round_trip_s
    if abs(found.skew_s) > MAX_SKEW_S + uncertain_s:
        direction = "ahead of" if found.skew_s > 0 else "behind"
        return _problem(
            "clock",
            f"the gateway's clock is {abs(found.skew_s):.0f} s {direction} this one",
            "let NTP set both, for example: timedatectl set-ntp true",
        )
    return _ok("clock", f"this and the gateway's agree within {abs(found.skew_s) + uncertain_s:.0f} s")


def bus(found: Found) -> Finding:
    """A bus that can be reached."""
    if not found.bus_url:
        return _skipped("bus", "ELASTICGRID_NATS_URL is not set, and none runs from the data folder")
    if found.bus_problem and not found.credentials_refused:
        remedy = "start it, open its port, or correct ELASTICGRID_NATS_URL"
        if found.bus_here:
            remedy = f"its log is in {found.data_dir}/bus; stop the grid and start it again: elasticgrid up"
        return _problem("bus", f"{found.bus_url}: {found.bus_problem}", remedy)
    return _ok("bus", f"{found.bus_url} can be reached")


def credential(found: Found) -> Finding:
    """A credential that the bus takes."""
    if not found.bus_url:
        return _skipped("credential", "there is no bus to use one with")
    name = found.credentials or "none (ELASTICGRID_CREDENTIALS is not set)"
    if found.credentials_problem:
        return _problem(
            "credential", f"{name}: {found.credentials_problem}", "name the right file in ELASTICGRID_CREDENTIALS"
        )
    if found.credentials_refused:
        return _problem(
            "credential",
            f"the bus refuses it: {name}",
            "it was replaced or has expired: take the file that the bus was started with",
        )
    if found.bus_problem:
        return _skipped("credential", "the bus cannot be reached")
    return _ok("credential", f"the bus takes it: {name}")


#: Asked in this order.
CHECKS: Final[tuple[Callable[[Found], Finding], ...]] = (
    engine,
    server,
    folder,
    disk,
    port,
    gateway,
    key,
    version,
    log,
    clock,
    bus,
    credential,
)


def parse_version(text: str) -> tuple[int, int] | None:
    """Major and minor version in a text such as `nats-server: v2.12.1`; None when there is none."""
    for word in text.replace(":", " ").split():
        parts = word.removeprefix("v").split(".")
        if len(parts) >= 2 and parts[0].isdigit() and parts[1].isdigit():
            return int(parts[0]), int(parts[1])
    return None
