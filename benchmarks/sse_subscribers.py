"""What watchers cost the decider: `python -m benchmarks.sse_subscribers [--subscribers N] [--mute N] [--seconds S]`.

One process runs a bus, a decider and a gateway as `elasticgrid up` does. Jobs are submitted and cancelled all the
time, and every request is answered by a decision. The same load runs without watchers and with them, in turns; of the
watchers, which live in a process of their own, some take nothing after their request. Prints JSON, for each number of
watchers:

decision_ms       from a request to the decision that answers it, by the times of the log: p50 and p99
append_ms         an append of the decider: p50 and p99
events_per_s      events in the log for each second, at the load that is offered
burst_per_s       jobs a second, from submission to their end, when there are always as many under way
received          of the events of the load, the share that the slowest reading watcher had at the end
cut               connections of mute watchers that the gateway had given up by the end
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing
from functools import partial
from pathlib import Path
from typing import Any

from elasticgrid.bus.streams import ensure_streams
from elasticgrid.core import events as ev
from elasticgrid.core.names import derived_id
from elasticgrid.core.spec import JobSpec, ProviderSpec
from elasticgrid.log.mirror import Mirror
from elasticgrid.log.mirrored import AppendOutcome, MirroredLog, mirrored_log
from elasticgrid.log.port import Scope
from elasticgrid.logs import configure_logging
from elasticgrid.metrics.registry import new_registry
from elasticgrid.runtime import services
from elasticgrid.testing.bus import bus_client, embedded_server

#: Jobs under way at any time in a burst, and the pause between two jobs of the offered load.
JOBS = 20
PAUSE_S = 0.25
PATIENCE_S = 60.0


def enough_files() -> None:
    """Allow this process as many open connections as it may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


# ---------------------------------------------------------------------------------------------------------------------
# The process of the watchers
# ---------------------------------------------------------------------------------------------------------------------


class Watching(asyncio.Protocol):
    """One watcher. `last` is the last sequence it was told."""

    def __init__(self, request: bytes, mute: bool) -> None:
        self.last = 0
        self.closed = False
        self.begun = asyncio.get_running_loop().create_future()
        self._request = request
        self.mute = mute
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.begun.done():
            self.begun.set_result(None)
            if self.mute:
                self._transport.pause_reading()
                return
        # The last id is in the last bytes, or was seen before.
        text = self._rest + data
        place = text.rfind(b"\nid: ")
        end = text.find(b"\n", place + 5) if place >= 0 else -1
        if end > 0:
            self.last = max(self.last, int(text[place + 5 : end]))
        self._rest = text[-64:]

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self.closed = True


def _same(watcher: Watching) -> Watching:
    return watcher


async def watch(host: str, port: int, key: str, subscribers: int, mute: int) -> None:
    enough_files()
    loop = asyncio.get_running_loop()
    request = f"GET /v1/events/stream HTTP/1.1\r\nHost: grid\r\nX-API-Key: {key}\r\n\r\n".encode()
    watchers: list[Watching] = []
    for number in range(subscribers):
        watcher = Watching(request, number < mute)
        connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        connection.setblocking(False)
        if watcher.mute:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        await loop.sock_connect(connection, (host, port))
        await loop.create_connection(partial(_same, watcher), sock=connection)
        watchers.append(watcher)
        if number % 50 == 49:
            await asyncio.gather(*(each.begun for each in watchers))
    await asyncio.gather(*(each.begun for each in watchers))
    print("ready", flush=True)
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        wanted = int(line)
        readers = watchers[mute:]
        deadline = loop.time() + PATIENCE_S
        while min((each.last for each in readers), default=wanted) < wanted and loop.time() < deadline:  # noqa: ASYNC110 - a thousand of them
            await asyncio.sleep(0.05)
        slowest = min((each.last for each in readers), default=wanted)
        print(json.dumps({"slowest": slowest, "cut": sum(each.closed for each in watchers[:mute])}), flush=True)


class Watchers:
    """The watchers' process, running inside an `async with` block."""

    def __init__(self, host: str, port: int, key: str, subscribers: int, mute: int) -> None:
        arguments = [host, str(port), key, str(subscribers), str(mute)]
        self._command = [sys.executable, "-m", "benchmarks.sse_subscribers", "--watch", *arguments]

    async def __aenter__(self) -> Watchers:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe)
        await self._line()
        return self

    async def reached(self, sequence: int) -> dict[str, int]:
        """How far the slowest reader is, once it is there or patience is at its end."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{sequence}\n".encode())
        told: dict[str, int] = json.loads(await self._line())
        return told

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the watchers' process has ended")
        return line

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()


# ---------------------------------------------------------------------------------------------------------------------
# The load
# ---------------------------------------------------------------------------------------------------------------------


class Load:
    """Jobs that are submitted and, once they are placed, cancelled: two requests, each answered by a decision."""

    def __init__(self, log: MirroredLog) -> None:
        self._log = log
        self._submitted = 0

    async def story(self) -> None:
        """One job, from its submission to its end; the decider's answers are waited for."""
        self._submitted += 1
        job = f"j{self._submitted}"
        spec = JobSpec(name=job, command=("train",), workdir="/", min_nodes=1, max_nodes=1)
        answers = self._log.follow(
            after=await self._append(job, ev.JobSubmitted(spec=spec)), scope=Scope("default", job)
        )
        async with aclosing(answers), asyncio.timeout(PATIENCE_S):
            async for recorded in answers:
                data = recorded.event.data if isinstance(recorded.event, ev.Event) else None
                if isinstance(data, ev.PlacementDecided) and not data.waiting:
                    await self._append(job, ev.JobCancelRequested())
                elif isinstance(data, ev.OutcomeDecided):
                    return

    async def offered(self, seconds: float) -> None:
        """A job every so often, whatever became of those before."""
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as stories:
            while time.monotonic() < end:
                stories.create_task(self.story())
                await asyncio.sleep(PAUSE_S)

    async def burst(self, seconds: float) -> float:
        """Some jobs at any time, each begun when another is over; return how many are over in a second."""
        began = time.monotonic()
        over = 0

        async def keep_submitting() -> None:
            nonlocal over
            while time.monotonic() < began + seconds:
                await self.story()
                over += 1

        await asyncio.gather(*(keep_submitting() for _ in range(JOBS)))
        return over / (time.monotonic() - began)

    async def _append(self, job: str, data: ev.EventData) -> int:
        now_ms = time.time_ns() // 1_000_000
        event = ev.Event(
            id=derived_id(now_ms, job, ev.type_of(data)),
            time_ms=now_ms,
            tenant="default",
            job=job,
            actor="load",
            data=data,
        )
        _, last = await self._log.append([event])
        return last


async def decision_latencies(log: MirroredLog, after: int) -> list[float]:
    """Milliseconds from each request after `after` to the decision that names it as its cause."""
    asked: dict[str, int] = {}
    found: list[float] = []
    async for recorded in log.read(after=after, scope=Scope("default")):
        event = recorded.event
        if not isinstance(event, ev.Event):
            continue
        if isinstance(event.data, ev.JobSubmitted | ev.JobCancelRequested):
            asked[event.id] = recorded.recorded_ms
        elif event.basis is not None and event.causation_id in asked:
            found.append(recorded.recorded_ms - asked.pop(event.causation_id))
    return found


def quantiles(values: list[float]) -> dict[str, float]:
    """The middle, and what one in a hundred exceeds."""
    if len(values) < 2:
        return {"p50": 0.0, "p99": 0.0}
    cuts = statistics.quantiles(values, n=100)
    return {"p50": round(cuts[49], 2), "p99": round(cuts[98], 2)}


# ---------------------------------------------------------------------------------------------------------------------
# The measurement
# ---------------------------------------------------------------------------------------------------------------------


class Appends:
    """Remembers how long the decider's appends took, milliseconds."""

    def __init__(self) -> None:
        self.took_ms: list[float] = []

    def note(self, writer: str, outcome: AppendOutcome, duration_s: float) -> None:
        if writer == "decision" and outcome == "appended":
            self.took_ms.append(duration_s * 1000)


async def measure(
    folder: Path, counts: list[int], mute_of: Callable[[int], int], seconds: float, rounds: int
) -> dict[str, Any]:
    appends = Appends()
    results: dict[int, dict[str, list[Any]]] = {}
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(embedded_server(folder))
        client = await stack.enter_async_context(bus_client(server))
        await ensure_streams(client)
        mirror = await stack.enter_async_context(await Mirror.open(folder / "mirror.sqlite"))
        log = mirrored_log(client, mirror, on_append=appends.note)
        registry = new_registry()
        providers = (ProviderSpec(name="here", engine="local", max_nodes=1_000),)
        opened = await stack.enter_async_context(
            services.gateway(client, log, folder, providers, ("127.0.0.1", 0), registry)
        )
        decider = asyncio.create_task(services.run_decider(client, log, folder, registry))
        key = opened.service.key_file.read_text().strip()
        load = Load(log)
        try:
            await load.burst(1.0)
            for _ in range(rounds):
                for subscribers in counts:
                    arguments = (opened.http.host, opened.http.port, key, subscribers, mute_of(subscribers))
                    async with Watchers(*arguments) as watchers:
                        one = await _one(load, log, appends, watchers, seconds)
                    for name, value in one.items():
                        results.setdefault(subscribers, {}).setdefault(name, []).append(value)
            if decider.done():
                decider.result()
        finally:
            decider.cancel()
            await asyncio.gather(decider, return_exceptions=True)
    return {str(number): _summary(found) | {"mute": mute_of(number)} for number, found in results.items()}


async def _one(load: Load, log: MirroredLog, appends: Appends, watchers: Watchers, seconds: float) -> dict[str, Any]:
    first = await log.last_sequence()
    appends.took_ms.clear()
    began = time.monotonic()
    await load.offered(seconds)
    took_s = time.monotonic() - began
    last = await log.last_sequence()
    append_ms = list(appends.took_ms)
    decision_ms = await decision_latencies(log, first)
    burst = await load.burst(seconds / 2)
    end = await log.last_sequence()
    told = await watchers.reached(end)
    return {
        "decision_ms": decision_ms,
        "append_ms": append_ms,
        "events_per_s": (last - first) / took_s,
        "burst_per_s": burst,
        "received": (told["slowest"] - first) / (end - first),
        "cut": told["cut"],
    }


def _summary(found: dict[str, list[Any]]) -> dict[str, Any]:
    return {
        "decision_ms": quantiles([value for part in found["decision_ms"] for value in part]),
        "append_ms": quantiles([value for part in found["append_ms"] for value in part]),
        "decisions": sum(len(part) for part in found["decision_ms"]),
        "events_per_s": round(statistics.median(found["events_per_s"]), 1),
        "burst_per_s": round(statistics.median(found["burst_per_s"]), 1),
        "received": round(min(found["received"]), 3),
        "cut": max(found["cut"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subscribers", type=int, default=1_000)
    parser.add_argument("--mute", type=int, help="how many of them take nothing; a tenth if not given")
    parser.add_argument("--seconds", type=float, default=8.0, help="of the offered load, for each number of watchers")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--watch", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.watch:
        host, port, key, subscribers, mute = arguments.watch
        asyncio.run(watch(host, int(port), key, int(subscribers), int(mute)))
        return
    enough_files()
    configure_logging(level="error")

    def mute_of(subscribers: int) -> int:
        return min(subscribers // 10 if arguments.mute is None else arguments.mute, subscribers)

    with tempfile.TemporaryDirectory() as folder:
        counts = [0, arguments.subscribers]
        found = asyncio.run(measure(Path(folder), counts, mute_of, arguments.seconds, arguments.rounds))
    print(json.dumps({"subscribers": found}, indent=2))


if __name__ == "__main__":
    main()
