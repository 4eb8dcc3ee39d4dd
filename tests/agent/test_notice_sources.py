"""Sources of notices against real HTTP servers that speak the documented protocols, and against servers that do not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from metadata_server import Aws, Azure, Gcp, MetadataServer, Rude

from elasticgrid import environment
from elasticgrid.agent.notices.aws import AwsSource
from elasticgrid.agent.notices.azure import AzureSource
from elasticgrid.agent.notices.file import FileSource
from elasticgrid.agent.notices.gcp import GcpSource
from elasticgrid.agent.notices.http import request
from elasticgrid.agent.notices.notice import Notice, SourceTrouble
from elasticgrid.agent.notices.watch import NoticeSettings, NoticeWatch
from elasticgrid.clock import SystemClock
from elasticgrid.core.errors import InvalidInput
from elasticgrid.testing.processes import until

ACTION = json.dumps({"action": "terminate", "time": "2025-10-09T08:55:48Z"})
ACTION_MS = round(datetime(2025, 10, 9, 8, 55, 48, tzinfo=UTC).timestamp() * 1000)
REBALANCE = json.dumps({"noticeTime": "2025-10-09T08:40:00Z"})


@contextlib.contextmanager
def serving(handler: type, **values: object) -> Iterator[MetadataServer]:
    server = MetadataServer(handler)
    server.set(**values)
    with server.running():
        yield server


# AWS ----------------------------------------------------------------------------------------------------------------


async def test_aws_says_nothing_while_both_documents_are_absent() -> None:
    with serving(Aws, token="one") as server:
        source = AwsSource(server.url)
        assert await source.look() is None
        assert await source.look() is None
        assert [method for method, _ in server.asked].count("PUT") == 1


async def test_the_spot_action_of_aws_is_a_notice_with_a_time() -> None:
    with serving(Aws, token="one", action=ACTION, rebalance=REBALANCE) as server:
        notice = await AwsSource(server.url).look()
        assert notice == Notice(source="aws", deadline_ms=ACTION_MS, text=ACTION)


async def test_the_rebalance_recommendation_of_aws_is_a_notice_without_a_time() -> None:
    with serving(Aws, token="one", rebalance=REBALANCE) as server:
        notice = await AwsSource(server.url).look()
        assert notice is not None
        assert (notice.source, notice.deadline_ms) == ("aws", 0)
        assert "rebalance" in notice.text


async def test_a_token_that_aws_takes_no_more_is_renewed() -> None:
    with serving(Aws, token="one") as server:
        source = AwsSource(server.url)
        await source.look()
        server.set(token="two", action=ACTION)
        notice = await source.look()
        assert notice is not None
        assert [method for method, _ in server.asked].count("PUT") == 2


async def test_a_token_is_renewed_before_its_life_is_over() -> None:
    now = [0.0]
    with serving(Aws, token="one") as server:
        source = AwsSource(server.url, clock=lambda: now[0])
        await source.look()
        now[0] += 20_000.0
        await source.look()
        assert [method for method, _ in server.asked].count("PUT") == 2


# Google Cloud -------------------------------------------------------------------------------------------------------


async def test_a_preemption_at_google_is_heard_as_soon_as_it_is_said() -> None:
    with serving(Gcp, preempted="FALSE", maintenance_event="NONE") as server:
        source = GcpSource(server.url)
        assert await source.look() is None
        looking = asyncio.create_task(source.look())
        await until(lambda: len(server.asked) >= 4)
        assert not looking.done()
        server.set(preempted="TRUE")
        before_ms = time.time_ns() // 1_000_000
        notice = await asyncio.wait_for(looking, 10)
        assert notice is not None
        assert (notice.source, notice.text) == ("gcp", "preempted: TRUE")
        assert 0 <= notice.deadline_ms - before_ms - 30_000 < 10_000


async def test_a_question_that_google_answers_with_the_same_value_is_asked_again() -> None:
    with serving(Gcp, preempted="FALSE", maintenance_event="NONE") as server:
        source = GcpSource(server.url, wait_s=0)
        assert await source.look() is None
        assert await source.look() is None
        assert "last_etag=0" in server.asked[0][1]
        assert "last_etag=0" not in server.asked[-1][1]


@pytest.mark.parametrize(
    ("event", "leaves"), [("MIGRATE_ON_HOST_MAINTENANCE", False), ("TERMINATE_ON_HOST_MAINTENANCE", True)]
)
async def test_only_a_maintenance_that_ends_the_machine_is_a_notice(event: str, leaves: bool) -> None:
    with serving(Gcp, preempted="FALSE", maintenance_event=event) as server:
        notice = await GcpSource(server.url).look()
        assert (notice is not None) is leaves


async def test_an_answer_that_is_not_googles_is_trouble() -> None:
    with (
        serving(Azure, name="vm", events=[]) as server,
        pytest.raises(SourceTrouble, match="metadata server of Google"),
    ):
        await GcpSource(server.url).look()


# Azure --------------------------------------------------------------------------------------------------------------


def scheduled(
    kind: str, *machines: str, event_id: str = "e-1", not_before: str = "Thu, 09 Oct 2025 08:55:48 GMT"
) -> object:
    return {
        "EventId": event_id,
        "EventStatus": "Scheduled",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": list(machines),
        "NotBefore": not_before,
        "Description": "Virtual machine is being evicted",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }


async def test_the_scheduled_event_of_azure_that_comes_first_is_the_notice() -> None:
    later = scheduled("Redeploy", "vm-1", event_id="e-2", not_before="Thu, 09 Oct 2025 10:00:00 GMT")
    with serving(Azure, name="vm-1", events=[later, scheduled("Preempt", "vm-0", "vm-1")]) as server:
        notice = await AzureSource(server.url).look()
        assert notice is not None
        assert (notice.source, notice.deadline_ms) == ("azure", ACTION_MS)
        assert notice.text.startswith("Preempt e-1")


async def test_events_of_other_machines_and_freezes_are_no_notice() -> None:
    with serving(Azure, name="vm-1", events=[scheduled("Preempt", "vm-2"), scheduled("Freeze", "vm-1")]) as server:
        source = AzureSource(server.url)
        assert await source.look() is None
        await source.node_left()
        assert "started" not in server.values


async def test_azure_is_told_that_it_need_not_wait_when_the_node_was_left_and_not_before() -> None:
    with serving(Azure, name="vm-1", events=[scheduled("Terminate", "vm-1")]) as server:
        source = AzureSource(server.url)
        await source.look()
        assert "started" not in server.values
        await source.node_left()
        assert server.values["started"] == ["e-1"]


async def test_an_event_of_azure_that_has_begun_is_due_now() -> None:
    with serving(Azure, name="vm-1", events=[scheduled("Preempt", "vm-1", not_before="")]) as server:
        notice = await AzureSource(server.url).look()
        assert notice is not None
        assert abs(notice.deadline_ms - time.time_ns() // 1_000_000) < 10_000


# Servers that are something else ------------------------------------------------------------------------------------

SOURCES: dict[str, Callable[[str], AwsSource | GcpSource | AzureSource]] = {
    "aws": AwsSource,
    "gcp": GcpSource,
    "azure": AzureSource,
}
NONSENSE = {
    "nothing": b"",
    "no HTTP": b"hello\r\n\r\n",
    "a status that is none": b"HTTP/1.1 abc\r\n\r\n",
    "an error": b"HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n",
    "a redirect": b"HTTP/1.1 302 go\r\nLocation: http://example.com/\r\nContent-Length: 0\r\n\r\n",
    "a body that is cut off": b"HTTP/1.1 200 ok\r\nContent-Length: 100\r\n\r\n{",
    "no end of headers": b"HTTP/1.1 200 ok\r\n" + b"X: y\r\n" * 500,
    "too much": b"HTTP/1.1 200 ok\r\n\r\n" + b"x" * 2_000_000,
    "another document": b"HTTP/1.1 200 ok\r\nMetadata-Flavor: Google\r\nContent-Length: 7\r\n\r\n[1,2,3]",
}


@pytest.mark.parametrize("cloud", SOURCES)
@pytest.mark.parametrize("say", NONSENSE.values(), ids=NONSENSE.keys())
async def test_nonsense_is_trouble_or_no_notice_and_never_anything_else(cloud: str, say: bytes) -> None:
    with serving(Rude, say=say) as server, contextlib.suppress(SourceTrouble):
        assert await SOURCES[cloud](server.url).look() is None


async def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    with serving(Rude, silent=True) as server, pytest.raises(SourceTrouble, match="no answer in"):
        await request("GET", server.url, timeout_s=0.1)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "https://127.0.0.1", "ftp://x", "http://"])
async def test_a_server_that_is_not_there_is_trouble(url: str) -> None:
    with pytest.raises(SourceTrouble):
        await request("GET", url, timeout_s=2)


# Files --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "deadline_ms", "text"),
    [
        (b"", 0, None),
        (b"spot is over\n", 0, "spot is over"),
        (b'{"deadline_ms": 1760000148000, "text": "bye"}', 1_760_000_148_000, "bye"),
        (b'{"deadline_ms": "soon"}', 0, '{"deadline_ms": "soon"}'),
        (b"\xff\xfe", 0, "\ufffd\ufffd"),
    ],
)
async def test_a_file_that_appears_is_a_notice_whatever_is_in_it(
    tmp_path: Path, content: bytes, deadline_ms: int, text: str | None
) -> None:
    path = tmp_path / "notice"
    source = FileSource(path)
    assert await source.look() is None
    path.write_bytes(content)
    assert await source.look() == Notice(source="file", deadline_ms=deadline_ms, text=text or str(path))


async def test_a_file_may_say_in_how_many_seconds(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    path.write_text('{"in_s": 90}')
    notice = await FileSource(path).look()
    assert notice is not None
    assert notice.deadline_ms == path.stat().st_mtime_ns // 1_000_000 + 90_000


async def test_a_folder_in_the_files_place_is_trouble(tmp_path: Path) -> None:
    with pytest.raises(SourceTrouble):
        await FileSource(tmp_path).look()


# Which are asked, and how -------------------------------------------------------------------------------------------


def test_without_a_word_nobody_is_asked() -> None:
    settings = NoticeSettings.from_environment({})
    assert (settings.names, settings.by_signal, settings.sources()) == ((), False, [])


def test_the_list_names_the_sources(tmp_path: Path) -> None:
    names = f"aws, gcp,azure,file:{tmp_path}/notice,signal,aws"
    settings = NoticeSettings.from_environment({environment.NOTICES: names, environment.SIGNAL_NOTICE_S: "15"})
    assert settings.names == ("aws", "gcp", "azure", f"file:{tmp_path}/notice")
    assert (settings.by_signal, settings.signal_notice_s) == (True, 15.0)
    assert [type(source) for source in settings.sources()] == [AwsSource, GcpSource, AzureSource, FileSource]


@pytest.mark.parametrize(
    ("vendor", "names"),
    [("Amazon EC2\n", ("aws",)), ("Google", ("gcp",)), ("Microsoft Corporation", ("azure",)), ("QEMU", ()), (None, ())],
)
def test_auto_asks_the_cloud_that_the_machine_says_it_is_of(
    tmp_path: Path, vendor: str | None, names: tuple[str, ...]
) -> None:
    file = tmp_path / "sys_vendor"
    if vendor is not None:
        file.write_text(vendor)
    settings = NoticeSettings.from_environment({environment.NOTICES: "auto"}, vendor_file=file)
    assert settings.names == names


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        (environment.NOTICES, "awz"),
        (environment.NOTICES, "file:"),
        (environment.SIGNAL_NOTICE_S, "soon"),
        (environment.SIGNAL_NOTICE_S, "0"),
        (environment.SIGNAL_NOTICE_S, "nan"),
    ],
)
def test_a_source_that_is_none_is_refused(variable: str, text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        NoticeSettings.from_environment({variable: text})
    assert refused.value.where == variable


async def test_a_watch_hands_on_each_notice_once_and_outlives_trouble() -> None:
    heard: asyncio.Queue[Notice] = asyncio.Queue()
    with serving(Aws, token="one") as server:
        watch = NoticeWatch([AwsSource(server.url, pause_s=0.01)], heard.put_nowait, SystemClock())
        watching = asyncio.create_task(watch.run())
        server.set(rebalance=REBALANCE)
        assert (await asyncio.wait_for(heard.get(), 10)).deadline_ms == 0
        server.set(action="{}")
        await until(lambda: watch.trouble > 0)
        server.set(action=ACTION)
        assert (await asyncio.wait_for(heard.get(), 10)).deadline_ms == ACTION_MS
        asked = len(server.asked)
        await until(lambda: len(server.asked) >= asked + 5)
        assert heard.empty()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
