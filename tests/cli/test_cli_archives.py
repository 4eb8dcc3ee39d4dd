"""`events export` and `events import` through a gateway: what comes out, and a grid in which it is looked at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import msgspec
import pytest
from cli_grid import GridThread, Run

from elasticgrid.bus.follower import BusMessage
from elasticgrid.core import events as ev
from elasticgrid.core.spec import JobSpec
from elasticgrid.decider.service import Decider
from elasticgrid.log.archive import ArchivedEvents, ArchiveWriter
from elasticgrid.log.importing import record_tenant
from elasticgrid.log.mirror import Mirror
from elasticgrid.log.mirror_record import LogRecord, record_of
from elasticgrid.log.restore import restore
from elasticgrid.runtime.control_plane import MIRROR_FILE
from elasticgrid.testing.history import SimulatedGrid


@pytest.fixture
def study(data_dir: Path) -> Iterator[GridThread]:
    """A grid on a bus of its own, with nothing in it but its providers."""
    with GridThread(data_dir, on_bus=True) as running:
        yield running


# ---------------------------------------------------------------------------------------------------------------------
# Export
# ---------------------------------------------------------------------------------------------------------------------


def test_an_export_holds_the_log_event_by_event(run: Run, past: GridThread, history: SimulatedGrid) -> None:
    ended = run("events", "export", "log.egz", "--json")
    assert ended.code == 0
    assert ended.json()["footer"]["events"] == len(history.recorded)
    assert list(ArchivedEvents("log.egz")) == history.recorded
    assert run("replay", "verify", "log.egz").code == 0
    assert Path("log.egz").stat().st_mode & 0o777 == 0o600


def test_a_part_of_the_log_is_exported_by_job_and_time(run: Run, past: GridThread, history: SimulatedGrid) -> None:
    middle = history.recorded[len(history.recorded) // 2].recorded_ms
    assert run("events", "export", "job.egz", "--job", "train").code == 0
    assert {recorded.event.job for recorded in ArchivedEvents("job.egz")} == {"train", "fleet"}
    assert run("replay", "verify", "job.egz").code == 0
    assert run("events", "export", "named.egz", "--job", "default/train").code == 0
    assert list(ArchivedEvents("named.egz")) == list(ArchivedEvents("job.egz"))
    when = datetime.fromtimestamp(middle / 1000, UTC).isoformat()
    assert run("events", "export", "early.egz", "--until", when).code == 0
    early = list(ArchivedEvents("early.egz"))
    assert early == [recorded for recorded in history.recorded if recorded.recorded_ms < middle]


def test_a_part_from_some_time_on_can_be_verified_and_looked_at(
    run: Run, past: GridThread, history: SimulatedGrid
) -> None:
    middle = history.recorded[len(history.recorded) // 2].recorded_ms
    when = datetime.fromtimestamp(middle / 1000, UTC).isoformat()
    exported = run("events", "export", "late.egz", "--since", when)
    assert "to fold it from" in exported.out
    # What the job was until then is what all of it is folded from.
    assert list(ArchivedEvents("late.egz")) == history.recorded
    verified = run("replay", "verify", "late.egz", "--json")
    assert verified.code == 0
    assert verified.json()["verified"] == verified.json()["decisions"] > 10
    assert run("replay", "report", "late.egz", "-o", "late.md").code == 0
    assert "train" in Path("late.md").read_text()
    told = run("replay", "timeline", "late.egz", "-o", "jsonl")
    later = [recorded.sequence for recorded in history.recorded if recorded.recorded_ms >= middle]
    assert [msgspec.json.decode(line)["sequence"] for line in told.out.splitlines()] == later
    assert "--since shows what is in it of before" in told.err
    everything = run("replay", "timeline", "late.egz", "-o", "jsonl", "--since", "2000-01-01")
    assert len(everything.out.splitlines()) == len(history.recorded)


def test_the_live_log_is_reported_on_where_no_archive_is_named(run: Run, past: GridThread) -> None:
    ended = run("replay", "whatif", "--set", "scaling.cooldown_down_s=600")
    assert ended.code == 2
    assert "keeps no step samples" in ended.err


def test_where_a_file_cannot_be_written_nothing_is_asked_for(run: Run, past: GridThread) -> None:
    ended = run("events", "export", "nowhere/log.egz")
    assert ended.code == 2
    assert ended.err.startswith("error: nowhere: there is no such folder (")


@pytest.mark.parametrize("name", ["none", "default/none", "none/train", "a/b/c", "*", ">", "a.b"])
def test_a_job_that_is_not_there_is_not_exported(name: str, run: Run, past: GridThread) -> None:
    ended = run("events", "export", "none.egz", "--job", name)
    assert (ended.code, ended.out) == (3, "")
    assert ended.err.startswith("error: ")
    assert not Path("none.egz").exists()


def test_a_span_with_nothing_in_it_is_not_exported(run: Run, past: GridThread) -> None:
    for since, until in (("2026-02-01", "2026-01-01"), ("2026-02-01", "2026-02-01")):
        ended = run("events", "export", "none.egz", "--since", since, "--until", until)
        assert ended.code == 2
        assert "--since is to be before --until" in ended.err
    assert not Path("none.egz").exists()


def test_a_file_that_is_there_is_not_replaced_unasked(run: Run, past: GridThread, folder: Path) -> None:
    (folder / "log.egz").write_text("mine")
    assert run("events", "export", "log.egz").code == 2
    assert (folder / "log.egz").read_text() == "mine"
    assert run("events", "export", "log.egz", "--force").code == 0


def test_samples_that_nobody_keeps_are_refused(run: Run, past: GridThread, folder: Path) -> None:
    ended = run("events", "export", "log.egz", "--with-samples")
    assert ended.code == 2
    assert "keeps no step samples" in ended.err
    assert [path.name for path in folder.iterdir()] == [".elasticgrid"]


def test_credentials_stay_in_the_grid(run: Run, grid: GridThread, job_file: Path) -> None:
    job_file.write_text(job_file.read_text() + "env: {MY_TOKEN: opensesame}\n")
    assert run("submit", job_file).code == 0
    ended = run("events", "export", "log.egz")
    assert "credentials in 1 events" in ended.out
    assert not any(b"opensesame" in recorded.raw for recorded in ArchivedEvents("log.egz"))


def wait_until_nothing_is_left(grid: GridThread) -> None:
    """The gateway tidies up once the last byte is on its way."""

    async def emptied() -> None:
        async with asyncio.timeout(10):
            while list((grid.data_dir / "spool").iterdir()):  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.01)

    grid.call(emptied())


def test_nothing_stays_in_the_gateways_folder(run: Run, past: GridThread) -> None:
    assert run("events", "export", "log.egz").code == 0
    wait_until_nothing_is_left(past)


def test_a_reader_that_goes_away_leaves_nothing_behind(past: GridThread) -> None:
    key = past.service.key_file.read_text().strip()
    with (
        httpx.Client(base_url=past.url, headers={"X-API-Key": key}) as client,
        client.stream("GET", "/v1/events/export") as answer,
    ):
        assert answer.status_code == 200
    wait_until_nothing_is_left(past)


# ---------------------------------------------------------------------------------------------------------------------
# Import
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.server
def test_an_imported_job_is_looked_at_as_it_was(
    run: Run, study: GridThread, archive: Path, history: SimulatedGrid
) -> None:
    imported = run("events", "import", archive, "--tenant", "incident", "--json").json()
    of_jobs = [recorded for recorded in history.recorded if recorded.event.tenant != "_grid"]
    assert imported["tenant"] == "_incident"
    assert (imported["jobs"], imported["events"]) == (1, len(of_jobs))
    assert imported["left_out_grid_events"] == len(history.recorded) - len(of_jobs)
    assert imported["left_out_samples"] == len(history.samples)

    async def log() -> list[ev.Recorded]:
        return [recorded async for recorded in study.log.read(after=imported["first_sequence"] - 1)]

    there = study.call(log())
    assert [recorded.recorded_ms for recorded in there] == [recorded.recorded_ms for recorded in of_jobs]
    assert [recorded.event.id for recorded in there] == [recorded.event.id for recorded in of_jobs]
    assert {recorded.event.tenant for recorded in there} == {"_incident"}

    job = run("jobs", "list", "--tenant", "_incident", "--json").json()[0]
    then = history.job(("default", "train"))
    assert (job["id"], job["phase"], job["round"]) == ("train", "completed", then.round)
    assert job["cost_microdollars"] == then.spent_microdollars
    assert "rules:" in run("decisions", "why", "train", "--tenant", "_incident").out
    assert "decision.outcome" in run("jobs", "watch", "train", "--tenant", "_incident").out


@pytest.mark.server
def test_what_was_imported_is_proved_by_its_archive_and_breaks_no_law_here(
    run: Run, study: GridThread, archive: Path, history: SimulatedGrid
) -> None:
    imported = run("events", "import", archive, "--tenant", "incident")
    assert f"elasticgrid replay verify {archive}" in imported.err
    ended = run("replay", "verify")
    assert ended.code == 0
    assert "decisions were taken in another grid" in ended.err
    report = run("replay", "verify", "--json").json()
    decisions = run("replay", "verify", archive, "--json").json()["decisions"]
    assert (report["decisions"], report["unverifiable"], report["imported"]) == (decisions, decisions, decisions)
    assert (report["diverged"], report["law_breaches"]) == (0, 0)

    async def log() -> dict[str, ev.Recorded]:
        return {recorded.event.id: recorded async for recorded in study.log.read()}

    there, placed = study.call(log()), 0
    for recorded in history.recorded:
        event = recorded.event
        if isinstance(event, ev.Event) and event.basis is not None:
            before = [each for each in history.recorded if each.sequence <= event.basis.events_through]
            last = next(each for each in reversed(before) if each.event.tenant != "_grid")
            now = there[event.id].event
            assert isinstance(now, ev.Event)
            assert now.basis is not None
            # It says of this log how far it had read.
            assert now.basis.events_through == there[last.event.id].sequence
            placed += 1
    assert placed > 10


@pytest.mark.server
def test_nobody_decides_about_what_was_imported(
    run: Run, study: GridThread, tmp_path: Path, history: SimulatedGrid
) -> None:
    begun = [recorded for recorded in history.recorded if recorded.event.tenant != "_grid"][:1]
    path = tmp_path / "begun.egz"
    with ArchiveWriter(path, created_ms=0) as writer:
        writer.add_event(begun[0])
    assert run("events", "import", path, "--tenant", "x").code == 0
    real = JobSpec(name="real", command=("true",), workdir="/")
    study.call(study.service.jobs.submit(real, actor="key:test"))

    async def decisions() -> set[str]:
        """The tenants of whom something was decided, once the job that is real was decided about."""
        decider = asyncio.create_task(Decider(study.log, _no_samples, _NoTime()).run())
        tenants = set()
        async with asyncio.timeout(20):
            async for recorded in study.log.follow():
                if isinstance(recorded.event, ev.Event) and recorded.event.basis is not None:
                    tenants.add(recorded.event.tenant)
                    if isinstance(recorded.event.data, ev.PlacementDecided):
                        break
        decider.cancel()
        await asyncio.gather(decider, return_exceptions=True)
        return tenants

    assert study.call(decisions()) == {"default"}
    for verb in ("cancel", "pause", "resume"):
        assert run("jobs", verb, "train", "--tenant", "_x").code == 2


@pytest.mark.server
def test_only_an_empty_grid_takes_an_archive(run: Run, study: GridThread, archive: Path, job_file: Path) -> None:
    assert run("submit", job_file).code == 0
    before = study.call(study.log.last_sequence())
    ended = run("events", "import", archive, "--tenant", "incident")
    assert ended.code == 1
    assert "the grid is not empty" in ended.err
    assert study.call(study.log.last_sequence()) == before


@pytest.mark.server
def test_a_damaged_archive_appends_nothing(run: Run, study: GridThread, archive: Path) -> None:
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 1
    archive.write_bytes(data)
    before = study.call(study.log.last_sequence())
    ended = run("events", "import", archive, "--tenant", "incident")
    assert ended.code == 1
    # The file is named that was given, and not the copy that the gateway made of it.
    assert ended.err.startswith(f"error: {archive}: record ")
    assert "spool" not in ended.err
    assert "--salvage` says what of it is good" in ended.err
    assert study.call(study.log.last_sequence()) == before
    archive.write_bytes(b"junk")
    ended = run("events", "import", archive, "--tenant", "incident")
    assert ended.code == 1
    assert str(archive) in ended.err
    assert "not an elasticgrid archive" in ended.err
    assert list((study.data_dir / "spool").iterdir()) == []


@pytest.mark.server
def test_an_export_has_the_samples_that_are_on_the_bus(run: Run, study: GridThread, history: SimulatedGrid) -> None:
    async def publish() -> None:
        assert study.service.bus is not None
        for message in history.samples[:20]:
            await study.service.bus.jetstream().publish(message.subject, message.data)

    study.call(publish())
    ended = run("events", "export", "log.egz", "--with-samples", "--json")
    assert ended.json()["footer"]["samples"] == 20
    assert run("replay", "verify", "--with-samples").code == 0


@pytest.mark.server
def test_without_an_archive_the_live_log_is_run_again_and_reported_on(
    run: Run, data_dir: Path, history: SimulatedGrid
) -> None:
    async def source() -> AsyncGenerator[LogRecord]:
        for recorded in history.recorded:
            yield record_of(recorded)

    async def fill(grid: GridThread) -> None:
        assert grid.service.bus is not None
        await restore(grid.service.bus, source)
        await grid.service.caught_up()

    with GridThread(data_dir, None, on_bus=True) as grid:
        grid.call(fill(grid))
        read = f"the live log was read through event {history.recorded[-1].sequence}"
        answer = run("replay", "whatif", "--set", "scaling.cooldown_down_s=600", "--json")
        assert answer.code == 0
        assert read in answer.err
        assert answer.json()["untold"], "no sample is left on this bus"
        assert answer.json()["jobs"][0]["settings"] == [
            {"setting": "scaling.cooldown_down_s", "recorded": "60", "what_if": "600"}
        ]
        told = run("replay", "report", "--out", "live.md")
        assert told.code == 0
        assert read in told.err
        assert "the live log" in Path("live.md").read_text()


def test_a_grid_on_no_bus_takes_no_archive(run: Run, grid: GridThread, archive: Path) -> None:
    assert run("events", "import", archive, "--tenant", "incident").code == 2
    assert run("events", "import", "none.egz", "--tenant", "incident").code == 3


def test_two_jobs_of_one_id_are_not_mixed_up(run: Run, data_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "two.egz"
    spec = JobSpec(name="same", command=("x",))
    with ArchiveWriter(path, created_ms=0) as writer:
        for sequence, tenant in enumerate(("a", "b"), 1):
            event = ev.Event(
                id=tenant, time_ms=0, tenant=tenant, job="same", actor="key:x", data=ev.JobSubmitted(spec=spec)
            )
            writer.add_event(ev.Recorded(sequence, 0, event))
    with GridThread(data_dir, on_bus=True):
        ended = run("events", "import", path, "--tenant", "incident")
    assert ended.code == 2
    assert "both have a job same" in ended.err


@pytest.mark.parametrize("name", ["", "_grid", "grid", "Up", "a.b", "x" * 63])
def test_a_tenant_that_cannot_be_is_refused(name: str, run: Run, grid: GridThread, archive: Path) -> None:
    assert run("events", "import", archive, "--tenant", name).code == 2


def test_records_are_told_from_tenants_that_run_jobs() -> None:
    assert record_tenant("study") == record_tenant("_study") == "_study"


# ---------------------------------------------------------------------------------------------------------------------
# Restore
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.server
def test_a_grid_that_is_well_is_replaced_by_another_ones_log_only_when_forced(
    run: Run, data_dir: Path, archive: Path, history: SimulatedGrid
) -> None:
    async def mirrored() -> None:
        async with await Mirror.open(data_dir / MIRROR_FILE) as mirror:
            await mirror.append([record_of(recorded) for recorded in history.recorded])

    data_dir.mkdir()
    asyncio.run(mirrored())
    older = data_dir.with_name("older.egz")
    with ArchiveWriter(older, created_ms=0) as writer:
        for recorded in history.recorded[:-3]:
            writer.add_event(recorded)
    before = (data_dir / MIRROR_FILE).read_bytes()
    refused = run("events", "restore", "--from", older)
    assert refused.code == 2
    assert "3 events that the grid has would be gone" in refused.err
    assert f"event {history.recorded[-3].sequence}" in refused.err
    assert (data_dir / MIRROR_FILE).read_bytes() == before
    assert not (data_dir / "bus").exists()
    assert run("events", "restore", "--from", archive).code == 0
    forced = run("events", "restore", "--from", older, "--force")
    assert forced.code == 0
    assert f"through sequence {history.recorded[-4].sequence}" in forced.err


class _NoTime:
    """A clock that stands still."""

    def now_ms(self) -> int:
        return 1_800_000_000_000

    async def sleep(self, duration_s: float) -> None:
        await asyncio.Event().wait()


class _NoSamples:
    """A stream of samples in which nothing comes."""

    async def next_batch(self) -> list[BusMessage]:
        await asyncio.Event().wait()
        return []

    async def aclose(self) -> None:
        return


def _no_samples(*, after: int) -> _NoSamples:
    return _NoSamples()
