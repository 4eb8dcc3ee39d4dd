"""Each launch's credential for the bus: made for it alone, renewed while it lives, and worthless when it is over."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launcher_bench import Bench, running

from elasticgrid.agent.credential_renewal import renew_in_s
from elasticgrid.bus.authority import Authority, LaunchKey
from elasticgrid.bus.connect import BusAddress, connect, disconnect
from elasticgrid.bus.credentials import Credentials, read_credentials
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.core import events as ev
from elasticgrid.core.errors import CredentialRefused
from elasticgrid.launcher.launch_ends import MAX_REVOKED, LaunchEnds
from elasticgrid.log.event_reader import event_reader
from elasticgrid.testing.bus import until

pytestmark = [pytest.mark.process, pytest.mark.server]


def on(server: EmbeddedServer, **changes: Any) -> dict[str, Any]:
    """Settings of a launcher that makes credentials for this bus."""
    made = {"nats_url": server.url, "authority": str(server.authority_file), "node_credentials": ""}
    return made | changes


def environment_of(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_text()


def credential_file(bench: Bench, handle: str) -> Path:
    return bench.folder / "data" / "launches" / handle / "bus.json"


def copied(path: Path, name: str = "copy.json") -> str:
    """What somebody has who read the file in time."""
    copy = path.parents[3] / name
    copy.write_bytes(path.read_bytes())
    return str(copy)


async def test_each_launch_has_a_private_credential_of_its_own_that_ends_with_it(
    bus_bench: Bench, embedded_server: EmbeddedServer
) -> None:
    bench = bus_bench
    await bench.provider()
    await bench.submit()
    await bench.place("p1a1")
    async with running(bench.launcher(**on(embedded_server))):
        first = credential_file(bench, await bench.handle())
        await bench.place("p2a1")
        second = credential_file(bench, (await bench.until(ev.LaunchStarted, 2))[1].handle)
        assert stat.S_IMODE(first.stat().st_mode) == 0o600
        assert read_credentials(first).token != read_credentials(second).token
        assert read_credentials(first).inbox_prefix != read_credentials(second).inbox_prefix
        stolen = BusAddress(embedded_server.url, copied(first))
        thief = await connect(stolen, name="thief")
        neighbour = await connect(BusAddress(embedded_server.url, str(second)), name="neighbour")
        assert (await thief.request("grid.samples.default.j1.0", b"x", timeout=5)).data
        await bench.drop("p1a1", "p1a1-0")
        await bench.until(ev.LaunchStopped)
        await until(lambda: thief.is_closed)
        assert not first.exists()
        assert (await neighbour.request("grid.samples.default.j1.0", b"x", timeout=5)).data
        await disconnect(neighbour)
        with pytest.raises(CredentialRefused):
            await connect(stolen, name="thief", connect_timeout_s=1.0)
        await bench.drop("p2a1", "p2a1-0")
        await bench.until(ev.LaunchStopped, 2)


async def test_a_launcher_that_starts_anew_revokes_what_ended_while_there_was_none(
    bus_bench: Bench, embedded_server: EmbeddedServer
) -> None:
    bench = bus_bench
    await bench.provider()
    await bench.submit()
    await bench.place("p1a1")
    async with running(bench.launcher(**on(embedded_server))):
        handle = await bench.handle()
        stolen = BusAddress(embedded_server.url, copied(credential_file(bench, handle)))
    thief = await connect(stolen, name="thief")
    # As one that was killed between recording the end and revoking.
    await bench.fact(ev.LaunchStopped(attempt="p1a1", reason="test"))
    assert (await thief.request("grid.samples.default.j1.0", b"x", timeout=5)).data
    async with running(bench.launcher(**on(embedded_server))):
        await until(lambda: thief.is_closed)


async def test_a_launcher_that_starts_anew_writes_what_still_goes_on_anew(
    bus_bench: Bench, embedded_server: EmbeddedServer
) -> None:
    bench = bus_bench
    await bench.provider()
    await bench.submit()
    await bench.place("p1a1")
    async with running(bench.launcher(**on(embedded_server))):
        path = credential_file(bench, await bench.handle())
    path.write_text('{"token": "made.from.another", "inbox_prefix": "_INBOX_x"}')
    async with running(bench.launcher(**on(embedded_server))):
        await until(lambda: read_credentials(path).token != "made.from.another")
        client = await connect(BusAddress(embedded_server.url, str(path)), name="again")
        await disconnect(client)
        await bench.drop("p1a1", "p1a1-0")
        await bench.until(ev.LaunchStopped)


async def test_an_agent_renews_its_credential_and_outlives_the_first_one(
    bus_bench: Bench, embedded_server: EmbeddedServer
) -> None:
    bench = bus_bench
    await bench.provider()
    await bench.submit()
    assert bench.client is not None
    settings = on(embedded_server, agent_command=(), credential_life_s=12)
    async with event_reader(bench.client), running(bench.launcher(**settings)):
        await bench.place()
        path = credential_file(bench, await bench.handle())
        first = read_credentials(path)
        await bench.until(ev.NodeJoined)
        await until(lambda: read_credentials(path).issued_s > first.issued_s, 60)
        await until(lambda: time.time() > first.expires_s, 60)
        await bench.decide(ev.DrainDecided(round=0, reason="cancelled", leaving=("p1a1-0",)))
        await bench.until(ev.NodeLeft)
        await bench.until(ev.LaunchStopped)
    assert "node_lost" not in await bench.kinds()


async def test_without_the_buss_secret_all_nodes_get_the_operators_file_with_their_tenants_secret(
    bus_bench: Bench,
) -> None:
    bench = bus_bench
    await bench.provider()
    await bench.submit()
    await bench.place("p1a1")
    async with running(bench.launcher()):
        handle = await bench.handle()
        found = read_credentials(credential_file(bench, handle))
        assert (found.user, found.password) == ("node", "hunter2")
        assert len(found.rendezvous_secret) == 64
        key = bench.folder / "data" / "rendezvous.key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        written = [path for path in (bench.folder / "data" / "launches").rglob("*") if path.is_file()]
        holding = [path.name for path in written if found.rendezvous_secret.encode() in path.read_bytes()]
        assert holding == ["bus.json"]
        environments = [environment_of(process.pid) for process in bench.processes()]
        assert environments
        assert not any(found.rendezvous_secret in text for text in environments)
        await bench.drop("p1a1", "p1a1-0")
        await bench.until(ev.LaunchStopped)


async def test_a_secret_that_others_can_read_keeps_a_launcher_from_starting(
    bus_bench: Bench, embedded_server: EmbeddedServer
) -> None:
    os.chmod(embedded_server.authority_file, 0o644)
    try:
        with pytest.raises(Exception, match="chmod 600"):
            bus_bench.launcher(**on(embedded_server))
    finally:
        os.chmod(embedded_server.authority_file, 0o600)
    await asyncio.sleep(0)


# ---------------------------------------------------------------------------------------------------------------------
# Pure parts
# ---------------------------------------------------------------------------------------------------------------------

LIFE_MS = 1_000
ENDS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.integers(0, 3_000)), max_size=60)


@given(ENDS, st.integers(0, 5_000))
def test_exactly_what_ended_within_a_credentials_life_is_revoked(ends: list[tuple[str, int, int]], now_ms: int) -> None:
    fold = LaunchEnds(LIFE_MS)
    first: dict[tuple[str, str], int] = {}
    for tenant, number, ended_ms in ends:
        assert fold.end(tenant, "j", f"l{number}", ended_ms) == ((tenant, f"l{number}") not in first)
        first.setdefault((tenant, f"l{number}"), ended_ms)
    for tenant in "ab":
        expected = {launch for (who, launch), at in first.items() if who == tenant and at + LIFE_MS >= now_ms}
        assert {end.launch for end in fold.recent(tenant, now_ms)} == expected


def test_of_very_many_the_latest_ends_are_revoked() -> None:
    fold = LaunchEnds(LIFE_MS)
    for number in range(MAX_REVOKED + 10):
        fold.end("a", "j", f"l{number}", number)
    recent = fold.recent("a", 0)
    assert [end.ended_ms for end in recent] == list(range(10, MAX_REVOKED + 10))


def test_a_full_list_of_revoked_launches_fits_into_a_message_of_the_bus() -> None:
    authority = Authority(b"x" * 32)
    revoked = {authority.launch_user(LaunchKey("a", "j", f"l{n}")): 2_000_000_000 for n in range(MAX_REVOKED)}
    assert len(authority.tenant_account_token("a", 1, revoked)) < 200_000


def test_keys_are_the_same_for_the_same_secret_and_others_for_another() -> None:
    key = LaunchKey("a", "j", "l")
    one, again, other = Authority(b"x" * 32), Authority(b"x" * 32), Authority(b"y" * 32)
    assert one.launch(key, 1, expires_s=9) == again.launch(key, 1, expires_s=9)
    assert one.launch(key, 1, expires_s=9).token != other.launch(key, 1, expires_s=9).token
    assert one.rendezvous_secret("a") == again.rendezvous_secret("a") != one.rendezvous_secret("b")
    assert one.rendezvous_secret("a") != other.rendezvous_secret("a")


def test_a_credential_says_when_it_ends_and_is_renewed_at_half_of_its_time() -> None:
    made = Authority(b"x" * 32).launch(LaunchKey("a", "j", "l"), 1_000, expires_s=2_000)
    assert (made.issued_s, made.expires_s) == (1_000, 2_000)
    assert renew_in_s(made, 1_000) == 500
    assert renew_in_s(made, 1_900) == 0
    assert renew_in_s(Credentials(user="u", password="p"), 0) is None


def test_nothing_secret_of_a_credential_is_in_what_is_printed_of_it() -> None:
    made = Authority(b"x" * 32).launch(LaunchKey("a", "j", "l"), 1_000, expires_s=2_000)
    assert made.token not in repr(made)
    assert made.rendezvous_secret not in f"{made}"
