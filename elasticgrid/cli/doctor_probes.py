"""What `doctor` looks at: this machine, the gateway, the bus, and the log. No probe raises or changes anything."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from elasticgrid import __version__, environment
from elasticgrid.bus.connect import BusAddress, connect, disconnect
from elasticgrid.bus.credentials import read_credentials
from elasticgrid.bus.embedded import EmbeddedServer, find_nats_server
from elasticgrid.bus.server_config import LOOPBACK
from elasticgrid.cli.client import read_key, where
from elasticgrid.cli.doctor_checks import Found
from elasticgrid.config.settings import Settings
from elasticgrid.core.errors import BusUnavailable, ElasticGridError, InvalidInput, LogDiverged, NotAllowed
from elasticgrid.log.mirror_file import MIRROR_FILE, MirrorDamaged
from elasticgrid.log.offline_check import check_offline
from elasticgrid.log.restore_folder import held
from elasticgrid.runtime.gateway_file import read_gateway_file

TIMEOUT_S: Final = 3.0
#: How long all of the log may take to be compared with its mirror.
COMPARE_TIMEOUT_S: Final = 300.0
_ENGINES: Final = ("local", "ssh", "gcp", "aws", "azure")


def look(settings: Settings, environ: Mapping[str, str], *, http: str, nats_server: str | None = None) -> Found:
    """Everything the checks need."""
    data_dir = Path(settings.data_dir.value)
    facts = {
        **_port(http),
        **_engines(),
        **_server(nats_server),
        **_folder(data_dir),
        **_gateway(settings, data_dir),
        **asyncio.run(_bus(environ, data_dir.absolute())),
    }
    if "gateway_version" not in facts:
        facts |= asyncio.run(_stopped_log(data_dir.absolute(), nats_server))
    return Found(http=http, our_version=__version__, **facts)


def _port(http: str) -> dict[str, Any]:
    host, _, port = http.rpartition(":")
    if not host or not port.isdigit():
        return {}
    try:
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S):
            return {"http_taken": True}
    except ConnectionRefusedError:
        return {"http_taken": False}
    except (OSError, OverflowError):
        return {}


def _engines() -> dict[str, Any]:
    try:
        from iroh_tinker.cloud.engines import engines_available
    except ImportError as error:
        return {"engine_problem": f"iroh-tinker is not installed: {error}"}
    return {"engines": tuple(name for name in engines_available() if name in _ENGINES)}


def _server(given: str | None) -> dict[str, Any]:
    try:
        path = find_nats_server(given)
        told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except ElasticGridError as error:
        return {"server_problem": error.what}
    except (OSError, subprocess.SubprocessError) as error:
        return {"server_problem": f"it cannot be run: {error}"}
    return {"server_path": str(path), "server_version": told.stdout.strip().removeprefix("nats-server: ")}


def _folder(data_dir: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {"data_dir": str(data_dir)}
    there = data_dir
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        facts["data_dir_problem"] = f"{there} is no folder"
    elif not os.access(there, os.W_OK | os.X_OK):
        facts["data_dir_problem"] = "it cannot be written to" if there == data_dir else f"{there} cannot be written to"
    try:
        usage = shutil.disk_usage(there)
    except OSError:
        return facts
    return {**facts, "free_bytes": usage.free, "total_bytes": usage.total}


def _gateway(settings: Settings, data_dir: Path) -> dict[str, Any]:
    try:
        url, key_file = where(settings)
    except InvalidInput:
        return {"gateway_url": settings.gateway_url.value, "key_problem": "no key is named"}
    here = read_gateway_file(data_dir)
    facts: dict[str, Any] = {"gateway_url": url, "key_file": key_file}
    facts["gateway_here"] = here is not None and here.url == url
    key = ""
    if key_file == "-":
        facts["key_problem"] = "a key from standard input is not read here"
    else:
        try:
            key = read_key(key_file)
            facts["key_mode"] = stat.S_IMODE(Path(key_file).stat().st_mode)
        except (ElasticGridError, OSError) as error:
            facts["key_problem"] = error.what if isinstance(error, ElasticGridError) else str(error.strerror)
    try:
        with httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False) as asking:
            return {**facts, **_answers(asking, key)}
    except (httpx.HTTPError, httpx.InvalidURL, msgspec.MsgspecError, ValueError) as error:
        return {**facts, "gateway_problem": f"it does not answer as a gateway: {error}"}


def _answers(asking: httpx.Client, key: str) -> dict[str, Any]:
    begun_s, begun = time.time(), time.monotonic()
    version = asking.get("/v1/version").raise_for_status()
    round_trip_s = time.monotonic() - begun
    facts: dict[str, Any] = {
        "gateway_version": str(msgspec.json.decode(version.content, type=dict[str, Any]).get("version", "")),
        "round_trip_s": round_trip_s,
    }
    if "Date" in version.headers:
        theirs_s = parsedate_to_datetime(version.headers["Date"]).timestamp()
        facts["skew_s"] = theirs_s - (begun_s + round_trip_s / 2)
    facts |= _readiness(asking)
    if key:
        headers = {"X-API-Key": key}
        facts["gateway_status"] = asking.get("/v1/jobs", params={"limit": 1}, headers=headers).status_code
        if facts["gateway_ready"]:
            facts |= _log(asking.post("/v1/events/verify", headers=headers, timeout=COMPARE_TIMEOUT_S))
        else:
            facts["log_unknown"] = "the gateway does not reach the log"
    return facts


def _readiness(asking: httpx.Client) -> dict[str, Any]:
    """A gateway that answered before, and not now, waits for its log."""
    try:
        ready = asking.get("/v1/readyz")
    except httpx.TimeoutException:
        return {"gateway_ready": False, "gateway_ready_problem": f"its log did not answer within {TIMEOUT_S:g} s"}
    if ready.is_success:
        return {"gateway_ready": True}
    said = msgspec.json.decode(ready.content, type=dict[str, Any])
    return {"gateway_ready": False, "gateway_ready_problem": str(said.get("detail", ""))}


def _log(answer: httpx.Response) -> dict[str, Any]:
    """What the comparison of the log with its mirror says; nothing where there is no mirror, or no leave to ask."""
    said = msgspec.json.decode(answer.content, type=dict[str, Any])
    if answer.is_success:
        return {"log_compared": said.get("compared")}
    return {"log_problem": str(said.get("detail", ""))} if said.get("code") == LogDiverged.code else {}


async def _stopped_log(data_dir: Path, nats_server: str | None) -> dict[str, Any]:
    """The comparison of a log with its mirror where no gateway could make it, on copies of both."""
    try:
        verified = await check_offline(data_dir, data_dir / MIRROR_FILE, nats_server=nats_server)
    except (LogDiverged, MirrorDamaged) as error:
        problem = {"log_problem": f"{error.what} ({error.where})"}
        return problem | ({"log_remedy": error.hint} if isinstance(error, MirrorDamaged) else {})
    except NotAllowed:
        return {"log_unknown": "the bus runs, and no gateway could be asked"}
    except ElasticGridError as error:
        return {"log_unknown": error.what}
    except OSError as error:
        return {"log_unknown": f"it cannot be looked at: {error.strerror or error}"}
    return {"log_compared": verified.compared}


def _own_bus(data_dir: Path, ca: str) -> BusAddress | None:
    """The bus that `elasticgrid up` runs in this folder; None where none runs, or what to trust it by is not known."""
    folder = EmbeddedServer(data_dir).folder
    try:
        port = int((folder / "port").read_text())
        secured = "\ntls: {" in (folder / "nats-server.conf").read_text()
        with held(folder):
            return None
    except NotAllowed:
        if secured and not ca:
            return None
        return BusAddress(f"{'tls' if secured else 'nats'}://{LOOPBACK}:{port}", str(folder / "service.json"), ca)
    except (OSError, ValueError, InvalidInput):
        return None


async def _bus(environ: Mapping[str, str], data_dir: Path) -> dict[str, Any]:
    address = BusAddress.from_environment(environ)
    ca = environ.get(environment.NATS_CA, "").strip()
    here = None if address is not None else await asyncio.to_thread(_own_bus, data_dir, ca)
    address = address or here
    if address is None:
        return {}
    facts: dict[str, Any] = {"bus_url": address.url, "credentials": address.credentials, "bus_here": here is not None}
    if address.credentials:
        try:
            read_credentials(address.credentials)
        except InvalidInput as error:
            return {**facts, "credentials_problem": error.what}
    try:
        client = await connect(address, name="doctor", connect_timeout_s=TIMEOUT_S)
    except BusUnavailable as error:
        return {**facts, "bus_problem": error.what, "credentials_refused": "refused the credential" in error.hint}
    except InvalidInput as error:
        return {**facts, "bus_problem": error.what, "credentials_refused": False}
    try:
        return {**facts, "bus_server_version": str(client.connected_server_version)}
    finally:
        await disconnect(client)
