"""What every kind of user on the bus is refused, tried on a real server."""

from __future__ import annotations

import asyncio

import pytest
from bus_users import ATTACKER, JOB, VICTIM, Trying, Users, ends, refusal, settled, until_closed
from nats.aio.client import Client

from elasticgrid.bus import api
from elasticgrid.bus.accounts import ROLES, Role
from elasticgrid.bus.credentials import Credentials, read_credentials
from elasticgrid.bus.subjects import EVENTS_STREAM, SAMPLES_STREAM, event_filter, live_filter, read_subject
from elasticgrid.core.errors import BusUnavailable, NotAllowed
from elasticgrid.core.events import Event, JobPauseRequested, LaunchStopped, Writer
from elasticgrid.log.asked import AskedLog
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.port import Scope
from elasticgrid.testing.bus import connection, until
from elasticgrid.testing.log_contract import a_decision, an_event, take

pytestmark = [pytest.mark.server, pytest.mark.security]

WRITERS: tuple[Writer, ...] = ("job", "decision", "launch", "node")
#: Every kind of subject there is of a job.
SUBJECTS = [
    *(f"grid.events.{{tenant}}.{{job}}.{writer}.what" for writer in WRITERS),
    "grid.samples.{tenant}.{job}.0",
    "grid.heartbeats.{tenant}.{job}.n1",
    "grid.rounds.{tenant}.{job}.n1",
    *(f"grid.live.{{tenant}}.{{job}}.{writer}.what" for writer in WRITERS),
    *(f"grid.read.{{tenant}}.{{job}}.{writer}" for writer in WRITERS),
    "grid.read.{tenant}.ALL.ALL",
    "grid.renewals.{tenant}.{job}.l1",
    "grid.watchers.{tenant}",
]
API = [
    *(f"$JS.API.STREAM.{verb}.{EVENTS_STREAM}" for verb in ("INFO", "UPDATE", "PURGE", "DELETE", "MSG.GET")),
    f"$JS.API.DIRECT.GET.{EVENTS_STREAM}",
    f"$JS.API.CONSUMER.CREATE.{EVENTS_STREAM}.x.grid.events.>",
    f"$JS.API.CONSUMER.CREATE.{SAMPLES_STREAM}.x.grid.samples.>",
    f"$JS.API.CONSUMER.MSG.NEXT.{EVENTS_STREAM}.x",
    "$JS.API.STREAM.NAMES",
    "$JS.API.INFO",
    "$SYS.REQ.CLAIMS.UPDATE",
    "$SYS.REQ.SERVER.PING",
]


async def test_a_launch_may_publish_on_no_subject_of_another_tenant(users: Users, bus_client: Client) -> None:
    async with Trying(users.launch()) as tried:
        for subject in SUBJECTS:
            assert await tried.publish(subject.format(tenant=VICTIM, job=JOB)), subject
        assert await settled(bus_client) == (0, 0)


async def test_a_launch_may_write_nothing_but_samples_and_node_facts_of_its_own_job(
    users: Users, bus_client: Client
) -> None:
    allowed = {
        f"grid.events.{ATTACKER}.{JOB}.node.what",
        f"grid.samples.{ATTACKER}.{JOB}.0",
        f"grid.heartbeats.{ATTACKER}.{JOB}.n1",
        f"grid.rounds.{ATTACKER}.{JOB}.n1",
        *(f"grid.read.{ATTACKER}.{JOB}.{writer}" for writer in ("decision", "launch", "job")),
        f"grid.renewals.{ATTACKER}.{JOB}.l1",
    }
    async with Trying(users.launch()) as tried:
        for job in (JOB, "j2"):
            for template in SUBJECTS:
                subject = template.format(tenant=ATTACKER, job=job)
                assert await tried.publish(subject) == (subject not in allowed), subject
        assert await tried.publish(f"grid.renewals.{ATTACKER}.{JOB}.l2")
        assert await settled(bus_client) == (1, 1)


async def test_a_launch_has_no_jetstream_and_no_system_of_its_own(users: Users) -> None:
    async with Trying(users.launch()) as tried:
        for subject in API:
            assert await tried.publish(subject, b"{}"), subject


async def test_a_launch_hears_nothing_of_others(users: Users) -> None:
    inboxes = [f"_INBOX_{role}.>" for role in ROLES]
    async with Trying(users.launch()) as tried, connection(users.launch(launch="l2")) as neighbour:
        own = tried.client.new_inbox().rpartition(".")[0]
        theirs = neighbour.new_inbox().rpartition(".")[0]
        assert own != theirs
        for subject in (
            ">",
            "_INBOX.>",
            f"{theirs}.>",
            *inboxes,
            "$JS.>",
            "$SYS.>",
            "grid.>",
            live_filter(VICTIM),
            live_filter(ATTACKER),
            live_filter(ATTACKER, "j2", "decision"),
            live_filter(ATTACKER, JOB, "node"),
            event_filter(ATTACKER, JOB),
            f"grid.samples.{ATTACKER}.{JOB}.*",
            f"grid.heartbeats.{ATTACKER}.{JOB}.*",
            f"grid.rounds.{ATTACKER}.j2.*",
        ):
            assert await tried.subscribe(subject), subject
        assert not await tried.subscribe(f"{own}.>")
        assert not await tried.subscribe(live_filter(ATTACKER, JOB, "decision"))


FORGED = [
    *(f"grid.events.{tenant}.{JOB}.{writer}.scale" for tenant in (VICTIM, ATTACKER) for writer in WRITERS),
    f"grid.events.{ATTACKER}.j2.node.joined",
    f"grid.samples.{VICTIM}.{JOB}.0",
    f"grid.samples.{ATTACKER}.{JOB}.1",
    f"$JS.API.STREAM.PURGE.{EVENTS_STREAM}",
    f"$JS.API.STREAM.DELETE.{SAMPLES_STREAM}",
    "$SYS.REQ.CLAIMS.UPDATE",
]


@pytest.mark.parametrize("permissions", ["of a launch", "none at all"])
async def test_an_answer_that_is_asked_for_on_a_forged_subject_lands_nowhere(
    users: Users, bus_client: Client, permissions: str
) -> None:
    attacker = users.launch() if permissions == "of a launch" else users.unrestricted()
    own_sample = f"grid.samples.{ATTACKER}.{JOB}.0"
    own_fact = f"grid.events.{ATTACKER}.{JOB}.node.joined"
    heard = await bus_client.subscribe("grid.>")
    await bus_client.flush()
    async with connection(attacker) as mallory:
        for forged in FORGED:
            await mallory.publish(own_sample, b"x", reply=forged)
            await mallory.publish(own_fact, b"x", reply=forged)
            await mallory.publish(read_subject(ATTACKER, JOB, "decision"), b"{}", reply=forged)
        await mallory.flush()
        # What an answer could still do, it has done when a later question is answered.
        assert (await mallory.request(own_sample, b"x", timeout=5)).data
    assert await settled(bus_client) == (len(FORGED), len(FORGED) + 1)
    arrived = set()
    while heard.pending_msgs:
        arrived.add((await heard.next_msg(timeout=1)).subject)
    assert {subject for subject in arrived if not subject.startswith(("grid.live.", "grid.read."))} == {
        own_sample,
        own_fact,
        f"grid.samples.{VICTIM}.j9.9",
        f"grid.events.{VICTIM}.j9.node.last",
    }


async def test_the_account_alone_keeps_a_tenant_out_of_what_is_not_its_own(users: Users, bus_client: Client) -> None:
    """Nothing is refused to this user by permission, and yet nothing arrives: its account knows no such subject."""
    heard = await bus_client.subscribe("grid.>")
    await bus_client.flush()
    await JetStreamLog(bus_client).append([a_decision(1)])
    async with connection(users.unrestricted()) as mallory:
        listening = [await mallory.subscribe(subject) for subject in (">", "grid.>", live_filter(VICTIM))]
        for template in SUBJECTS:
            await mallory.publish(template.format(tenant=VICTIM, job=JOB), b"x")
        for subject in API:
            try:
                answer = (await api.request(mallory, subject, b"{}", timeout_s=0.5)).data
            except BusUnavailable:
                continue
            assert b"JetStream not enabled for account" in answer, subject
        for writer in ("decision", "launch", "job"):
            await mallory.publish(f"grid.events.{ATTACKER}.{JOB}.{writer}.what", b"x")
        await mallory.flush()
        assert await settled(bus_client) == (1, 0)
        await JetStreamLog(bus_client).append([a_decision(2)])
        await mallory.flush()
        arrived = {(await heard.next_msg(timeout=1)).subject for _ in range(heard.pending_msgs)}
        assert not [subject for subject in arrived if ATTACKER in subject or f".{VICTIM}.{JOB}.0" in subject]
        # It hears itself, in its own account, and nothing that a service has said.
        told = [await each.next_msg(timeout=1) for each in listening for _ in range(each.pending_msgs)]
        assert not [message for message in told if message.data != b"x" and message.subject.startswith("grid.")]


# ---------------------------------------------------------------------------------------------------------------------
# An end at once
# ---------------------------------------------------------------------------------------------------------------------


async def test_an_expired_credential_is_cut_off_and_others_stay(users: Users) -> None:
    async with (
        connection(users.launch(launch="short", lasts_s=2)) as short,
        connection(users.launch(launch="long")) as long,
    ):
        assert (await short.request(f"grid.samples.{ATTACKER}.{JOB}.0", b"x", timeout=5)).data
        await until_closed(short)
        assert (await long.request(f"grid.samples.{ATTACKER}.{JOB}.0", b"x", timeout=5)).data
        assert long.stats["reconnects"] == 0
    expired = users.launch(launch="late", lasts_s=-1)
    assert "expired" in await refusal(expired)


async def test_a_revoked_credential_is_cut_off_at_once_and_stays_out_and_others_stay_in(users: Users) -> None:
    gone, stays, other = users.launch(launch="gone"), users.launch(launch="stays"), users.launch(VICTIM, "gone")
    async with connection(gone) as cut, connection(stays) as neighbour, connection(other) as victim:
        await users.revoke(ATTACKER, "gone")
        await until(lambda: cut.is_closed, 2)
        for client, tenant in ((neighbour, ATTACKER), (victim, VICTIM)):
            assert (await client.request(f"grid.samples.{tenant}.{JOB}.0", b"x", timeout=5)).data
            assert client.stats["reconnects"] == 0
    assert "refused the credential" in await refusal(gone)
    # Also one that is issued anew, to the same launch.
    assert "refused the credential" in await refusal(users.launch(launch="gone"))


async def test_what_was_revoked_stays_so_when_the_server_is_killed(users: Users) -> None:
    gone = users.launch(launch="gone")
    await users.revoke(ATTACKER, "gone")
    await users.server.kill()
    await users.server.wait_running()
    assert "refused the credential" in await refusal(gone)
    async with connection(users.launch(launch="stays")) as client:
        assert client.is_connected


async def test_a_credential_of_another_authority_is_refused(users: Users) -> None:
    token = users.launch().credentials
    users.server.authority_file.unlink()
    await users.server.stop()
    async with users.server:
        assert users.server.authority.grid_account != users.authority.grid_account
        assert "refused the credential" in await refusal(users.address(_read(token)))


def _read(path: str) -> Credentials:

    return read_credentials(path)


# ---------------------------------------------------------------------------------------------------------------------
# Services
# ---------------------------------------------------------------------------------------------------------------------

EVENTS: dict[Writer, Event] = {
    "job": an_event(1, JobPauseRequested()),
    "decision": a_decision(1),
    "launch": an_event(1, LaunchStopped(attempt="a", reason="r")),
    "node": an_event(1),
}


@pytest.mark.parametrize(
    ("role", "part"), [("decider", "decision"), ("launcher", "launch"), ("gateway", "job"), ("reader", "")]
)
async def test_a_service_writes_its_own_part_and_reads_everything(
    users: Users, bus_client: Client, role: Role, part: str
) -> None:
    everything = JetStreamLog(bus_client)
    async with connection(users.role(role)) as service:
        log = JetStreamLog(service)
        for writer, event in EVENTS.items():
            if writer == part:
                await log.append([event])
            else:
                with pytest.raises(NotAllowed):
                    await log.append([event])
        await everything.append([an_event(2)])
        read = [record.sequence async for record in log.read()]
        assert read == list(range(1, 3 if part else 2))
    async with Trying(users.role(role)) as tried:
        for subject in (*API[1:4], "$SYS.REQ.CLAIMS.UPDATE", "grid.samples.alice.j1.0", "$JS.API.STREAM.CREATE.MINE"):
            if not (role == "launcher" and ".UPDATE." in subject):
                assert await tried.publish(subject, b"{}"), subject
        assert await tried.subscribe("_INBOX_service.>")


@pytest.mark.parametrize("role", ["decider", "gateway"])
async def test_a_service_that_forges_where_an_answer_goes_writes_nothing_that_is_an_event(
    users: Users, bus_client: Client, role: Role
) -> None:
    """Services share an account, so such an answer lands; what lands is an acknowledgement, which everybody skips."""
    part: Writer = "decision" if role == "decider" else "job"
    async with connection(users.role(role)) as service:
        await service.publish(f"grid.events.acme.j1.{part}.what", b"x", reply="grid.events.acme.j1.launch.stopped")
        await service.flush()
    assert await settled(bus_client) == (2, 0)
    log = JetStreamLog(bus_client)
    assert [record async for record in log.read()] == []
    assert log.undecodable == 3


# ---------------------------------------------------------------------------------------------------------------------
# Dashboards
# ---------------------------------------------------------------------------------------------------------------------


async def test_a_dashboard_reads_its_tenants_events_and_writes_nothing(users: Users, bus_client: Client) -> None:
    log = JetStreamLog(bus_client)
    mine, theirs = (an_event(number, tenant=tenant) for number, tenant in ((1, ATTACKER), (2, VICTIM)))
    await log.append([mine])
    await log.append([theirs])
    async with Trying(users.watcher()) as tried:
        for template in SUBJECTS:
            for tenant in (ATTACKER, VICTIM):
                subject = template.format(tenant=tenant, job=JOB)
                assert await tried.publish(subject) != subject.startswith(f"grid.read.{ATTACKER}."), subject
        seen = AskedLog(tried.client)
        scope = Scope(tenant=ATTACKER)
        records = seen.follow(scope=scope)
        assert [record.sequence for record in await take(records, 1)] == [1]
        following = asyncio.create_task(anext(records))
        await log.append([an_event(3, tenant=ATTACKER)])
        assert (await asyncio.wait_for(following, 3)).sequence == 3
        await records.aclose()
        with pytest.raises(NotAllowed):
            await seen.last_sequence(Scope(tenant=VICTIM))
        assert await ends(bus_client) == (3, 0)
