"""Events of a run's life go to their destination and figures to their group, and neither ever gets in the way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Iterator
from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.core.errors import InvalidInput
from elasticgrid.elastic import LaunchConfig, elastic_launch, events, metrics, timer


class Kept:
    """Keeps figures."""

    def __init__(self) -> None:
        self.data: list[metrics.MetricData] = []

    def emit(self, data: metrics.MetricData) -> None:
        self.data.append(data)

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.data]


class Broken:
    """Takes nothing."""

    def emit(self, data: metrics.MetricData) -> None:
        raise OSError("disk full")


@pytest.fixture
def kept() -> Iterator[Kept]:
    """Where the figures of all groups go in this test."""
    handler = Kept()
    metrics.configure(handler)
    yield handler
    metrics.configure(metrics.NullMetricHandler())


def test_an_event_goes_to_its_destination_and_nowhere_else(capsys: pytest.CaptureFixture[str]) -> None:
    found: list[events.AnyEvent] = []
    events.register_handler("team", found.append)
    event = events.Event(name="epoch_done", source=events.EventSource.WORKER, metadata={"epoch": 3, "ok": True})
    events.record(event, destination="team")
    events.record(events.Event(name="elsewhere"))
    assert found == [event]
    assert capsys.readouterr() == ("", "")
    events.record(event, destination="console")
    told = msgspec.json.decode(capsys.readouterr().err)
    assert (told["name"], told["source"], told["metadata"]) == ("epoch_done", "WORKER", {"epoch": 3, "ok": True})
    assert told["timestamp_ms"] == event.timestamp_ms > 1_700_000_000_000


def test_events_may_go_to_the_logs_of_python(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="elasticgrid.elastic.events"):
        events.record_rdzv_event(events.RdzvEvent(name="joined", run_id="r", node="n"), destination="logging")
    assert '"name":"joined"' in caplog.text


def test_a_destination_that_nobody_serves_is_refused_and_one_that_fails_is_not_felt(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ELASTICGRID_NATS_URL", raising=False)
    with pytest.raises(InvalidInput, match="'nowhere' is no destination"):
        events.record(events.Event(name="x"), destination="nowhere")

    def fail(event: events.AnyEvent) -> None:
        raise OSError("disk full")

    events.register_handler("fails", fail)
    events.record(events.Event(name="x"), destination="fails")
    assert "disk full" in caplog.text


def test_a_figure_goes_to_its_groups_handler_or_else_to_the_default_one(kept: Kept) -> None:
    of_group = Kept()
    metrics.configure(of_group, group="io")
    metrics.put_metric("read", 3, "io")
    metrics.put_metric("steps", 4)
    assert (of_group.names, kept.names) == (["read"], ["steps"])
    assert (kept.data[0].value, kept.data[0].group) == (4, metrics.DEFAULT_GROUP)
    metrics.configure(metrics.MetricsConfig(default=kept, groups={"io": metrics.NullMetricHandler()}))
    metrics.put_metric("read", 5, "io")
    assert of_group.names == ["read"]


def test_a_figure_on_the_console_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    metrics.configure(metrics.ConsoleMetricHandler(), group="console")
    metrics.put_metric("loss", 0.25, "console")
    assert capsys.readouterr().err == "[console] loss=0.25\n"


def test_a_handler_that_fails_is_not_felt(caplog: pytest.LogCaptureFixture) -> None:
    metrics.configure(Broken(), group="broken")
    metrics.put_metric("x", 1, "broken")
    assert "disk full" in caplog.text


class Model:
    @metrics.prof(group="training")
    def save(self, path: str) -> str:
        return path

    @metrics.prof
    def load(self) -> None:
        raise ValueError("damaged")


@metrics.prof
def step() -> int:
    return 7


@metrics.prof
async def wait_for_it() -> str:
    await asyncio.sleep(0)
    return "done"


@metrics.prof
def numbers(count: int) -> Generator[int, int, str]:
    total = 0
    for number in range(count):
        total += yield number
    return f"sum {total}"


@metrics.prof
def breaks() -> Iterator[int]:
    yield 1
    raise ValueError("damaged")


def test_a_generator_is_timed_from_its_first_value_to_its_end_and_stays_one(kept: Kept) -> None:
    running = numbers(3)
    assert next(running) == 0
    assert kept.names == []
    assert [running.send(10), running.send(20)] == [1, 2]
    with pytest.raises(StopIteration, match="sum 60"):
        running.send(30)
    assert kept.names == ["test_run_telling.numbers.success", "test_run_telling.numbers.duration.ms"]
    early = numbers(3)
    next(early)
    early.close()
    assert kept.names[2:] == kept.names[:2], "a caller that wants no more is no failure"
    with pytest.raises(ValueError, match="damaged"):
        list(breaks())
    assert kept.names[4] == "test_run_telling.breaks.failure"


@metrics.prof
async def lines(count: int) -> AsyncGenerator[int, int]:
    for number in range(count):
        try:
            await asyncio.sleep((yield number) or 0)
        except KeyError:
            yield -1


async def test_an_asynchronous_generator_is_timed_to_its_end_too(kept: Kept) -> None:
    assert [number async for number in lines(2)] == [0, 1]
    assert kept.names == ["test_run_telling.lines.success", "test_run_telling.lines.duration.ms"]
    async with contextlib.aclosing(lines(2)) as running:
        assert await anext(running) == 0
        assert await running.athrow(KeyError()) == -1
        assert await running.asend(0) == 1
    assert kept.names[2:] == kept.names[:2]
    broken = lines(2)
    await anext(broken)
    with pytest.raises(ZeroDivisionError):
        await broken.athrow(ZeroDivisionError())
    assert kept.names[4] == "test_run_telling.lines.failure"


async def test_calls_are_counted_and_timed_by_their_name(kept: Kept) -> None:
    assert Model().save("here") == "here"
    with pytest.raises(ValueError, match="damaged"):
        Model().load()
    assert step() == 7
    assert await wait_for_it() == "done"
    assert kept.names == [
        *("Model.save.success", "Model.save.duration.ms"),
        *("Model.load.failure", "Model.load.duration.ms"),
        *("test_run_telling.step.success", "test_run_telling.step.duration.ms"),
        *("test_run_telling.wait_for_it.success", "test_run_telling.wait_for_it.duration.ms"),
    ]
    assert [each.group for each in kept.data[:3]] == ["training", "training", metrics.DEFAULT_GROUP]
    assert all(each.value >= 0 for each in kept.data)


@pytest.mark.server
async def test_events_and_figures_reach_whoever_listens_on_the_bus(
    embedded_server: EmbeddedServer, bus_client: Client
) -> None:
    heard: dict[str, bytes] = {}
    both = asyncio.Event()

    async def on_message(message: Msg) -> None:
        heard[message.subject] = message.data
        if len(heard) == 2:
            both.set()

    await bus_client.subscribe("grid.lifecycle.>", cb=on_message)
    await bus_client.subscribe("grid.metrics.>", cb=on_message)
    await bus_client.flush()
    handler = events.BusHandler(embedded_server.address, "trial")
    figures = metrics.BusMetricHandler(embedded_server.address, "trial")
    handler(events.Event(name="epoch done"))
    figures.emit(metrics.MetricData(time_ms=1, group="io", name="read", value=2.5))
    async with asyncio.timeout(20):
        await both.wait()
    await asyncio.to_thread(handler.close)
    await asyncio.to_thread(figures.close)
    assert msgspec.json.decode(heard["grid.lifecycle.trial.epoch_done"])["name"] == "epoch done"
    assert msgspec.json.decode(heard["grid.metrics.trial.io"])["value"] == 2.5


def tells_of_itself() -> None:
    events.record(events.Event(name="from_worker"), destination="bus")
    events.record(events.Event(name="shown"), destination="console")


@pytest.mark.server
@pytest.mark.process
async def test_a_run_and_its_workers_tell_of_themselves_on_its_bus(
    embedded_server: EmbeddedServer, bus_client: Client, tmp_path: Path
) -> None:
    heard: set[str] = set()
    all_of_it = asyncio.Event()
    wanted = {f"grid.lifecycle.trial.{name}" for name in ("joined", "world", "from_worker", "ended")}

    async def on_message(message: Msg) -> None:
        heard.add(message.subject)
        if heard >= wanted:
            all_of_it.set()

    await bus_client.subscribe("grid.lifecycle.>", cb=on_message)
    await bus_client.flush()
    address = embedded_server.address
    config = LaunchConfig(
        run_id="trial",
        bus_url=address.url,
        credentials=address.credentials,
        log_dir=tmp_path,
        event_destination="bus",
    )
    await asyncio.to_thread(elastic_launch(config, tells_of_itself))
    async with asyncio.timeout(20):
        await all_of_it.wait()


@pytest.mark.server
@pytest.mark.process
def test_a_run_tells_of_itself_as_it_was_asked_to(tmp_path: Path, kept: Kept) -> None:
    found: list[events.AnyEvent] = []
    events.register_handler("run", found.append)
    config = LaunchConfig(start_method="fork", log_dir=tmp_path, event_destination="run", run_id="told")
    elastic_launch(config, tells_of_itself)()
    assert [event.name for event in found] == ["joined", "world", "ended", "left"]
    assert {event.run_id for event in found if isinstance(event, events.RdzvEvent)} == {"told"}
    assert "run.nodes" in kept.names
    (log,) = tmp_path.glob("*/round-1/rank-0.log")
    assert '"name":"shown"' in log.read_text()


def test_a_block_that_expires_costs_nothing_where_nobody_listens() -> None:
    with timer.expires(10, "all-reduce"):
        entered = True
    assert entered


@pytest.mark.server
@pytest.mark.process
def test_a_block_that_overruns_is_told_by_the_agent(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(
        "import time\nfrom elasticgrid.elastic import timer\nwith timer.expires(1, 'all-reduce'):\n    time.sleep(4)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "elasticgrid.cli.main", "run", "--log-level", "info", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "node.stuck" in ended.stderr
    assert "all-reduce of rank 0 was to end in 1 s and has not" in ended.stderr


def test_what_the_package_offers_is_loaded_when_it_is_used() -> None:
    looked = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, elasticgrid.elastic\nprint({'nats', 'structlog'} & {*sys.modules})",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert looked.stdout == "set()\n"
