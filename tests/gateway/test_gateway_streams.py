"""Event streams over real sockets: nothing is missed over a reconnect, and nobody can hold the gateway up."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from callers import new_key, tenant
from nats.aio.client import Client

from elasticgrid.core import events as ev
from elasticgrid.core.spec import JobSpec, ProviderSpec
from elasticgrid.gateway.feed import BUFFER_EVENTS, EventFeed
from elasticgrid.gateway.login import SESSION_COOKIE
from elasticgrid.gateway.server import RunningGateway, serve_gateway
from elasticgrid.gateway.service import GatewayService, open_gateway
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.memory import MemoryLog
from elasticgrid.testing.clock import VirtualClock

JOB: dict[str, Any] = {"name": "train", "command": ["python"], "workdir": "/srv", "max_nodes": 4}
EVENTS, OF_JOB, OUTPUT = "/events/stream?after=0", "/jobs/{job}/events/stream?after=0", "/jobs/{job}/logs/stream"


class Watcher:
    """Reads a stream as a browser would."""

    def __init__(self, answer: httpx.Response) -> None:
        self.last_id = ""
        self._lines = answer.aiter_lines()

    async def event(self) -> dict[str, Any]:
        """The next event."""
        async for line in self._lines:
            if line.startswith("id: "):
                self.last_id = line.removeprefix("id: ")
            elif line.startswith("data: "):
                found: dict[str, Any] = json.loads(line.removeprefix("data: "))
                assert self.last_id == str(found["sequence"])
                return found
        raise EOFError

    async def events(self, number: int) -> list[dict[str, Any]]:
        async with asyncio.timeout(10):
            return [await self.event() for _ in range(number)]

    async def heartbeat(self) -> None:
        """Wait for a comment."""
        async for line in self._lines:
            if line.startswith(":"):
                return
        raise EOFError

    async def rest(self) -> str:
        """What comes until the gateway ends the stream."""
        async with asyncio.timeout(10):
            return "\n".join([line async for line in self._lines])

    async def begun(self) -> str:
        """Wait for the stream's beginning and return the id it begins after."""
        async for line in self._lines:
            if line.startswith("id: "):
                self.last_id = line.removeprefix("id: ")
                return self.last_id
        raise EOFError


@asynccontextmanager
async def watch(browser: httpx.AsyncClient, path: str = "/events/stream", last: str = "") -> AsyncIterator[Watcher]:
    headers = {"Last-Event-ID": last} if last else {}
    async with browser.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        yield Watcher(answer)


async def connections(server: RunningGateway, number: int) -> None:
    """Wait until so many clients are connected."""
    async with asyncio.timeout(20):
        while server.connections != number:  # noqa: ASYNC110 - the kernel tells nobody but the server
            await asyncio.sleep(0.01)


def fact(number: int, *, job: str = "noise", size: int = 0) -> ev.Event:
    """Some event of some job."""
    data: ev.EventData = ev.JobPauseRequested(reason="x" * size)
    if number == 0:
        data = ev.JobSubmitted(spec=JobSpec(name=job, command=("x",)))
    return ev.Event(id=f"{job}{number}", time_ms=0, tenant="default", job=job, actor="key:test", data=data)


@pytest.mark.server
async def test_events_come_as_they_happen_with_their_sequence_as_id(browser: httpx.AsyncClient) -> None:
    async with watch(browser) as watcher:
        start = int(await watcher.begun())
        job = (await browser.post("/jobs", json=JOB)).json()["job"]["id"]
        await browser.delete(f"/jobs/{job}")
        submitted, cancelled = await watcher.events(2)
    assert (submitted["sequence"], submitted["type"]) == (start + 1, "job.submitted")
    assert (cancelled["job"], cancelled["text"]) == (job, "cancel")
    assert cancelled["event"]["data"]["type"] == "job.cancel_requested"


@pytest.mark.server
async def test_nothing_is_missed_and_nothing_repeated_over_reconnects(
    browser: httpx.AsyncClient, log: MemoryLog
) -> None:
    start = await log.last_sequence()

    async def write() -> None:
        for number in range(300):
            await log.append([fact(number)])
            await asyncio.sleep(0)

    writer = asyncio.create_task(write())
    seen: list[int] = []
    last = str(start)
    while len(seen) < 300:
        async with watch(browser, last=last) as watcher:
            found = await watcher.events(min(37, 300 - len(seen)))
            seen += [each["sequence"] for each in found]
            last = watcher.last_id
    await writer
    assert seen == list(range(start + 1, start + 301))


@pytest.mark.server
async def test_a_client_that_lost_its_connection_before_the_first_event_comes_back_to_the_same_place(
    browser: httpx.AsyncClient, log: MemoryLog
) -> None:
    async with watch(browser) as watcher:
        last = await watcher.begun()
    await log.append([fact(0)])
    async with watch(browser, last=last) as watcher:
        (found,) = await watcher.events(1)
    assert found["sequence"] == int(last) + 1


@pytest.mark.server
async def test_a_jobs_stream_has_the_jobs_events_alone(browser: httpx.AsyncClient, log: MemoryLog) -> None:
    job = (await browser.post("/jobs", json=JOB)).json()["job"]["id"]
    async with watch(browser, f"/jobs/{job}/events/stream?after=0") as watcher:
        assert (await watcher.events(1))[0]["type"] == "job.submitted"
        await log.append([fact(0)])
        await browser.post(f"/jobs/{job}/pause", json={"reason": "line\nbreak\r\n\r\nid: 7"})
        (paused,) = await watcher.events(1)
    assert paused["text"] == "pause: line\nbreak\r\n\r\nid: 7"
    assert (await browser.get("/jobs/none/events/stream")).status_code == 404


@pytest.mark.server
async def test_a_quiet_stream_has_heartbeats(browser: httpx.AsyncClient, log: MemoryLog) -> None:
    async with watch(browser) as watcher:
        await watcher.begun()
        async with asyncio.timeout(5):
            await watcher.heartbeat()
        await log.append([fact(0)])
        assert (await watcher.events(1))[0]["job"] == "noise"


@pytest.mark.server
async def test_streams_end_at_once_when_the_gateway_is_closed(gateway: GatewayService, key: str) -> None:
    server = await serve_gateway(gateway)
    async with httpx.AsyncClient(base_url=f"{server.url}/v1", headers={"X-API-Key": key}) as browser:
        async with watch(browser) as watcher:
            await watcher.begun()
            waiting = asyncio.create_task(server.wait())
            async with asyncio.timeout(2):
                await server.close()
                with pytest.raises(EOFError):
                    await watcher.event()
                await waiting
        with pytest.raises(httpx.ConnectError):
            await browser.get("/healthz")


@pytest.mark.server
async def test_a_client_that_goes_away_is_forgotten(running: RunningGateway, browser: httpx.AsyncClient) -> None:
    async with watch(browser) as watcher:
        await watcher.begun()
        assert running.connections == 1
    await connections(running, 0)


@pytest.mark.server
async def test_a_client_that_takes_nothing_is_cut_off_and_others_go_on(
    gateway: GatewayService, key: str, log: MemoryLog
) -> None:
    async with await serve_gateway(gateway, stalled_client_s=0.5) as server:
        with socket.create_connection((server.host, server.port)) as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            stuck.sendall(f"GET /v1/events/stream HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\n\r\n".encode())
            async with (
                httpx.AsyncClient(base_url=f"{server.url}/v1", headers={"X-API-Key": key}) as browser,
                watch(browser) as watcher,
            ):
                await watcher.begun()
                await connections(server, 2)
                for number in range(200):
                    await log.append([fact(number, size=50_000)])
                assert len(await watcher.events(200)) == 200
                await connections(server, 1)


@pytest.mark.server
async def test_the_signals_of_the_process_are_left_alone(gateway: GatewayService) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    async with await serve_gateway(gateway) as server, httpx.AsyncClient(base_url=f"{server.url}/v1") as asking:
        await asking.get("/healthz")
        assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.server
async def test_a_taken_port_is_said_to_be_taken(gateway: GatewayService, running: RunningGateway) -> None:
    with pytest.raises(Exception, match="cannot listen there"):
        await serve_gateway(gateway, port=running.port)
    with pytest.raises(Exception, match="cannot listen there"):
        await serve_gateway(gateway, host="host.invalid")


@pytest.mark.server
async def test_a_body_sent_in_pieces_is_limited_too(browser: httpx.AsyncClient) -> None:
    async def pieces() -> AsyncGenerator[bytes]:
        for _ in range(40):
            yield b" " * 8_192

    answer = await browser.post("/jobs", content=pieces())
    assert answer.status_code == 413


@pytest.mark.server
async def test_two_gateways_on_one_log_accept_a_key_once(bus_client: Client, tmp_path: Path) -> None:
    log = JetStreamLog(bus_client)
    providers = (ProviderSpec(name="here", max_nodes=4),)
    spec = JobSpec(name="train", command=("x",), workdir="/")
    async with (
        open_gateway(log, tmp_path / "one", providers=providers) as one,
        open_gateway(log, tmp_path / "two", providers=providers) as two,
    ):
        submitted = await asyncio.gather(
            *(each.jobs.submit(spec, actor="key:x", idempotency_key="same") for each in (one, two, one, two))
        )
        assert len({each.job.id for each in submitted}) == 1
        job = submitted[0].job.id
        await asyncio.gather(*(each.jobs.cancel("default", job, actor="key:x") for each in (one, two)))
        assert (await two.views.job("default", job, as_of_ms=0)).job.cancel_requested
        assert await one.require_ready() == await two.require_ready() == await log.last_sequence()
        events = (await one.views.events()).items
    assert [each.type for each in events].count("job.submitted") == 1
    assert [each.type for each in events].count("provider.declared") == 1


async def test_a_stream_that_begins_before_the_buffer_is_read_from_the_views(
    gateway: GatewayService, log: MemoryLog, clock: VirtualClock
) -> None:
    first = await log.last_sequence() + 1
    for start in range(0, BUFFER_EVENTS + 500, 500):
        await log.append([fact(number) for number in range(start, start + 500)])
    last = await log.last_sequence()
    await gateway.caught_up()
    async with asyncio.timeout(10):
        text = b""
        async for frame in gateway.feed.frames(first - 1):
            text += frame
            if b"id: %d\n" % last in text:
                break
    ids = [int(line.removeprefix(b"id: ")) for line in text.splitlines() if line.startswith(b"id: ")]
    assert ids == list(range(first - 1, last + 1))


@asynccontextmanager
async def somebody_watches(
    running: RunningGateway, path: str, headers: dict[str, str], cookies: dict[str, str] | None = None
) -> AsyncIterator[tuple[Watcher, httpx.AsyncClient]]:
    """Somebody else's open stream, and who watches it."""
    async with (
        httpx.AsyncClient(base_url=f"{running.url}/v1", headers=headers, cookies=cookies) as asking,
        watch(asking, path) as watcher,
    ):
        yield watcher, asking


@pytest.mark.server
@pytest.mark.parametrize("path", [EVENTS, OF_JOB, OUTPUT])
async def test_a_revoked_key_ends_the_streams_that_were_begun_with_it(
    running: RunningGateway, browser: httpx.AsyncClient, path: str
) -> None:
    await tenant(browser, "research")
    job = (await browser.post("/jobs", json=JOB, params={"tenant": "research"})).json()["job"]["id"]
    secret = await new_key(browser, tenant="research", scope="read")
    async with somebody_watches(running, path.format(job=job), {"X-API-Key": secret}) as (watcher, asking):
        await browser.delete(f"/keys/{secret[3:11]}")
        await browser.post(f"/jobs/{job}/pause", params={"tenant": "research"})
        assert "job.pause_requested" not in await watcher.rest()
        assert (await asking.get("/jobs")).status_code == 401


@pytest.mark.server
@pytest.mark.parametrize("path", [EVENTS, OF_JOB, OUTPUT])
async def test_a_stream_ends_when_its_key_expires(
    running: RunningGateway, browser: httpx.AsyncClient, clock: VirtualClock, path: str
) -> None:
    job = (await browser.post("/jobs", json=JOB)).json()["job"]["id"]
    secret = await new_key(browser, tenant="default", scope="read", ttl_s=60)
    async with somebody_watches(running, path.format(job=job), {"X-API-Key": secret}) as (watcher, _):
        clock.advance(60)
        await watcher.rest()


@pytest.mark.server
@pytest.mark.parametrize("path", [EVENTS, OF_JOB, OUTPUT])
async def test_signing_out_ends_the_streams_of_that_session_alone(
    running: RunningGateway, browser: httpx.AsyncClient, gateway: GatewayService, key: str, path: str
) -> None:
    job = (await browser.post("/jobs", json=JOB)).json()["job"]["id"]
    path = path.format(job=job)
    admin = gateway.keyring.who_has(key)
    one, other = ({SESSION_COOKIE: gateway.keyring.begin_session(admin, lifetime_ms=60_000)[0]} for _ in range(2))
    async with (
        somebody_watches(running, path, {}, one) as (watcher, asking),
        somebody_watches(running, path, {}, other) as (still, _),
    ):
        assert (await asking.post(f"{running.url}/logout")).status_code == 204
        await watcher.rest()
        if path == EVENTS:
            await still.heartbeat()
        assert (await asking.get("/whoami", headers={"Cookie": f"{SESSION_COOKIE}={one[SESSION_COOKIE]}"})).is_error


async def test_a_stream_ends_at_the_very_time_its_key_expires_and_not_at_the_next_sign_of_life(
    gateway: GatewayService,
) -> None:
    feed = EventFeed(gateway.views, heartbeat_s=3_600)
    until = asyncio.get_running_loop().time() + 0.2
    frames = feed.frames(0, left_s=lambda: max(until - asyncio.get_running_loop().time(), 0))
    assert (await anext(frames)).startswith(b"retry: ")
    async with asyncio.timeout(10):
        assert [frame async for frame in frames] == []


async def test_a_closed_feed_ends_its_streams(gateway: GatewayService) -> None:
    feed = EventFeed(gateway.views)
    frames = feed.frames(0)
    assert (await anext(frames)).startswith(b"retry: ")
    feed.close()
    with pytest.raises(StopAsyncIteration):
        await anext(frames)
