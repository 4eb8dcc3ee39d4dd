"""What the flags of `elasticgrid run` mean, torchrun's ways of writing them included."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from elasticgrid.core.errors import InvalidInput
from elasticgrid.elastic.config import LaunchConfig

#: `--rdzv-conf` keys, torchrun's own names for them too, and the field each is.
RDZV_CONF: Final[dict[str, str]] = {
    "join_timeout_s": "join_timeout_s",
    "join_timeout": "join_timeout_s",
    "timeout": "join_timeout_s",
    "last_call_s": "last_call_s",
    "last_call_timeout": "last_call_s",
    "node_timeout_s": "node_timeout_s",
    "bus_timeout_s": "bus_timeout_s",
    "read_timeout": "bus_timeout_s",
    "orphan_timeout_s": "orphan_timeout_s",
    "grace_s": "grace_s",
}

#: The flag that gives each field of a `LaunchConfig`, where it has not the field's own name.
_FLAGS: Final[dict[str, str]] = {
    "min_nodes": "--nnodes",
    "max_nodes": "--nnodes",
    "bus_url": "--bus",
    "monitor_interval_s": "--monitor-interval",
    "event_destination": "--event-log-handler",
    **{field: f"--rdzv-conf {field}" for field in RDZV_CONF.values() if field != "last_call_s"},
}
#: What to do about a field that is refused, in flags.
_HINTS: Final[dict[str, str]] = {
    "max_nodes": "N or MIN:MAX, the smaller one first",
    "bus_url": "--bus, --host-bus or --rdzv-endpoint; or --node-rank, --master-addr and --master-port",
    "run_id": "the same name on every node: lower-case letters, digits, - and _, at most 63",
}
_PORTS: Final = range(1, 65_536)


def in_flags(error: InvalidInput) -> InvalidInput:
    """What was said of a field of a `LaunchConfig`, said of the flag that gives it; other errors as they are."""
    if error.where not in LaunchConfig.__struct_fields__:
        return error
    flag = _FLAGS.get(error.where, f"--{error.where.replace('_', '-')}")
    return InvalidInput(error.what, where=flag, hint=_HINTS.get(error.where, error.hint))


def port(number: int, flag: str) -> int:
    """A port that somebody can listen on.

    Raises:
        InvalidInput: it is none.
    """
    if number not in _PORTS:
        raise InvalidInput(f"{number} is no port", where=flag, hint="1 to 65535")
    return number


def node_range(text: str) -> tuple[int, int]:
    """`N` or `MIN:MAX`.

    Raises:
        InvalidInput: it is neither.
    """
    least, _, most = text.partition(":")
    most = most or least
    if not (_is_number(least) and _is_number(most)) or (":" in text and text.endswith(":")):
        raise InvalidInput(f"{text!r} is not a number of nodes", where="--nnodes", hint="N or MIN:MAX")
    return int(least), int(most)


def worker_count(text: str) -> int:
    """A number, `cpu`, `gpu` or `auto` (the GPUs there are, or else the CPUs).

    Raises:
        InvalidInput: it is none of these, or there is no GPU.
    """
    if _is_number(text) and int(text) > 0:
        return int(text)
    if text not in ("auto", "cpu", "gpu"):
        raise InvalidInput(
            f"{text!r} is not a number of workers", where="--nproc-per-node", hint="a number, auto, cpu or gpu"
        )
    gpus = 0 if text == "cpu" else gpu_count()
    if text == "gpu" and not gpus:
        raise InvalidInput("nvidia-smi lists no GPU here", where="--nproc-per-node", hint="auto takes the CPUs then")
    return gpus or len(os.sched_getaffinity(0))


def gpu_count() -> int:
    """The GPUs that nvidia-smi lists; 0 where it is not there."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        listed = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def rdzv_conf(text: str) -> dict[str, float]:
    """`key=seconds,...` as fields of a `LaunchConfig`.

    Raises:
        InvalidInput: a key is not known or a value is no number.
    """
    found: dict[str, float] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        key, _, value = part.partition("=")
        field = RDZV_CONF.get(key.strip())
        if field is None:
            known = ", ".join(dict.fromkeys(RDZV_CONF.values()))
            raise InvalidInput(f"there is no {key.strip()!r}", where="--rdzv-conf", hint=f"one of {known}")
        try:
            found[field] = float(value)
        except ValueError:
            raise InvalidInput(f"{part!r} has no number", where="--rdzv-conf", hint=f"{key}=30") from None
    return found


def shown_ranks(tee: str, redirects: str, local_ranks_filter: str, nproc_per_node: int) -> frozenset[int]:
    """Of which workers of the node the output is repeated on the terminal.

    All of them, if nothing else is said. `--redirects` keeps output in the files; `--tee` shows it as well.

    Args:
        tee, redirects: `0` or `3`, or `RANK:3,...` for some of the node's workers; empty when not given.
        local_ranks_filter: `0,1`; empty for all.

    Raises:
        InvalidInput: one of them is not of that form.
    """
    everyone = frozenset(range(nproc_per_node))
    kept = _ranks_of(redirects, "--redirects", everyone)
    shown = _ranks_of(tee, "--tee", everyone) if tee else everyone - kept
    if not local_ranks_filter:
        return shown
    words = [word.strip() for word in local_ranks_filter.split(",")]
    if not all(map(_is_number, words)):
        raise InvalidInput(f"{local_ranks_filter!r} is no list of ranks", where="--local-ranks-filter", hint="0,1")
    return shown & frozenset(_local_rank(int(word), "--local-ranks-filter", everyone) for word in words)


def _local_rank(rank: int, flag: str, everyone: frozenset[int]) -> int:
    if rank not in everyone:
        last = len(everyone) - 1
        hint = f"0 to {last}" if last else "only 0"
        raise InvalidInput(
            f"there is no worker {rank} on a node with {len(everyone)}",
            where=flag,
            hint=hint,
        )
    return rank


def _ranks_of(text: str, flag: str, everyone: frozenset[int]) -> frozenset[int]:
    ranks: set[int] = set()
    for part in filter(None, text.split(",")):
        rank, separator, what = part.strip().rpartition(":")
        if what not in ("0", "3") or (separator and not _is_number(rank)):
            raise InvalidInput(
                f"{part.strip()!r} is not usable",
                where=flag,
                hint="0 or 3, or RANK:3,... - output and errors of a worker are kept together, in one file",
            )
        concerned = {_local_rank(int(rank), flag, everyone)} if separator else set(everyone)
        ranks = ranks | concerned if what == "3" else ranks - concerned
    return frozenset(ranks)


def worker_command(script: str, arguments: Sequence[str], *, module: bool, no_python: bool) -> list[str]:
    """What each worker runs.

    Raises:
        InvalidInput: a module is Python.
    """
    if no_python:
        if module:
            raise InvalidInput("a module cannot be run without Python", where="--no-python", hint="leave out -m")
        return [script, *arguments]
    return [sys.executable, "-u", *(["-m"] if module else []), script, *arguments]


def bus_url(bus: str, rdzv_endpoint: str, *, is_alone: bool = False) -> tuple[str, bool]:
    """Where the nodes meet, and whether the endpoint may be served by the node it names.

    Port 0 is any that is free. Only a node that nobody else has to find may have that, so it needs no place to meet.

    Args:
        is_alone: whether the run has one node.

    Raises:
        InvalidInput: an endpoint without a port, or with one that is none.
    """
    if bus:
        return bus, False
    if not rdzv_endpoint:
        return "", False
    host, separator, digits = rdzv_endpoint.rpartition(":")
    if not separator or not host or not _is_number(digits):
        raise InvalidInput(f"{rdzv_endpoint!r} is not HOST:PORT", where="--rdzv-endpoint", hint="node0:29400")
    if int(digits) == 0 and is_alone:
        return "", False
    if int(digits) == 0:
        raise InvalidInput(
            "no other node could find a port that is any free one", where="--rdzv-endpoint", hint="node0:29400"
        )
    return f"nats://{host}:{port(int(digits), '--rdzv-endpoint')}", True


def is_this_machine(host: str) -> bool:
    """Whether an address is one of this machine's own: one that something here could listen on."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
        except OSError:
            continue
        return True
    return False


def listens(host: str, port: int) -> bool:
    """Whether something listens there already."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def threads_variable(environ: Mapping[str, str], nproc_per_node: int) -> dict[str, str]:
    """`OMP_NUM_THREADS=1` for several workers on a node, unless it is set: else each would take every core."""
    return {"OMP_NUM_THREADS": "1"} if nproc_per_node > 1 and "OMP_NUM_THREADS" not in environ else {}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 7
