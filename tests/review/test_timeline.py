"""The timeline and the causal chain."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from elasticgrid import utc
from elasticgrid.core import events as ev
from elasticgrid.core.errors import NotFound
from elasticgrid.core.events import EVENT_TYPES, Event, Recorded
from elasticgrid.log.archive import ArchivedEvents
from elasticgrid.log.codec import decode
from elasticgrid.projections.text import event_text
from elasticgrid.review.causes import causes, chain_lines, effects, find
from elasticgrid.review.timeline import TimelineFilter, TimelineLine, line_of, missing_events, text_lines, timeline
from elasticgrid.testing.history import SimulatedGrid

GOLDENS = Path(__file__).parent.parent / "goldens"


def test_every_event_is_one_line_with_the_time_since_the_one_before(one_job: SimulatedGrid) -> None:
    lines = list(timeline(one_job.recorded))

    assert [each.sequence for each in lines] == [each.sequence for each in one_job.recorded]
    assert sum(each.delta_ms for each in lines) == one_job.recorded[-1].recorded_ms - one_job.recorded[0].recorded_ms
    assert all("\n" not in each.text() for each in lines)
    assert {each.what for each in lines} > {"decision.world", "launch.node_lost", "node.checkpointed"}


def test_a_change_says_from_what_to_what_and_why(one_job: SimulatedGrid) -> None:
    grown = next(each for each in timeline(one_job.recorded) if each.what == "decision.scale" and each.before == "1")
    assert grown.after in ("1 node", "2 nodes")
    up = next(each for each in timeline(one_job.recorded) if "queue_bound" in each.reason)
    assert (up.actor, up.before, up.after) == ("decider", "1", "2 nodes")
    assert "1 -> 2 nodes (queue_bound: " in up.text()


def test_a_timeline_shows_what_is_asked_for(many_jobs: SimulatedGrid) -> None:
    records = many_jobs.recorded

    def shown(**only: object) -> list[int]:
        return [each.sequence for each in timeline(records, TimelineFilter(**only))]  # type: ignore[arg-type]

    jobs = [shown(tenant="demo", job=f"job{index}") for index in range(4)]
    assert sorted(sum(jobs, shown(tenant="_grid"))) == [each.sequence for each in records]
    assert shown(types=("launch", "node.left")) == [
        each.sequence for each in timeline(records) if each.what.startswith("launch.") or each.what == "node.left"
    ]
    begin = records[0].recorded_ms
    assert shown(since_ms=begin + 1_000, until_ms=begin + 30_000) == [
        each.sequence for each in records if begin + 1_000 <= each.recorded_ms < begin + 30_000
    ]
    on_spot = list(timeline(records, TimelineFilter(provider="spot")))
    assert {"node.joined", "launch.requested", "launch.failed", "decision.placement"} <= {each.what for each in on_spot}
    assert {each.provider for each in on_spot if each.node} == {"spot"}


def test_every_type_of_event_has_words(schema_samples: dict[str, bytes]) -> None:
    for name in EVENT_TYPES:
        event = decode(schema_samples[name])
        assert line_of(Recorded(1, 1_750_000_000_000, event)).what == name


def test_a_launch_says_which_bundle_its_nodes_were_given() -> None:
    def told(bundle_sha256: str) -> tuple[str, str]:
        data = ev.LaunchStarted(attempt="p1a1", handle="default-j-p1a1", bundle_sha256=bundle_sha256)
        event = Event(id="e", time_ms=0, tenant="default", job="j", actor="launcher", data=data)
        return line_of(Recorded(1, 1_750_000_000_000, event)).text(), event_text(event)

    for text in told("0123456789abcdef" * 4):
        assert "bundle 0123456789ab" in text
        assert "0123456789abc" not in text
    assert not any("bundle" in text for text in told(""))


@pytest.fixture
def schema_samples(one_job: SimulatedGrid) -> dict[str, bytes]:
    """The smallest event of every type."""
    shells: dict[str, dict[str, object]] = {
        "job.submitted": {"spec": {"name": "j", "command": ["true"]}},
        "job.resize_requested": {"min_nodes": 1, "max_nodes": 2},
        "job.interrupt_requested": {"provider": "p", "nodes": ["n"]},
        "provider.declared": {"provider": {"name": "p", "max_nodes": 1}},
    }
    values: dict[str, object] = {
        "round": 1, "members": [], "nproc_per_node": 1, "master_addr": "h", "master_port": 1, "reason": "r",
        "action": "up", "current_nodes": 1, "target_nodes": 2, "rule": "bounds", "demand_nodes": 1,
        "placed_nodes": 1, "outcome": "failed", "attempt": "a", "assignment": "a", "provider": "p", "engine": "local",
        "nodes": 1, "node_ids": ["n"], "price_microdollars_per_hour": 1, "handle": "h", "failure": "stockout",
        "text": "t", "node": "n", "evidence": "silent", "host": "h", "free_port": 1, "pid": 1, "step": 1,
        "checkpoint": {"step": 1, "uri": "u"}, "last_step": 1, "clean": False, "exits": [], "name": "p",
        "source": "aws", "deadline_ms": 2, "what": "no_step", "since_ms": 1,
        "band": "batch", "prefix": "p", "tenant": "t", "scope": "read", "digest": "d", "quota": {"jobs": 1},
        "from_ms": 1, "until_ms": 400_001, "threshold_ms": 300_000, "cause": "late",
    }  # fmt: skip
    samples = {}
    for name, cls in EVENT_TYPES.items():
        required = [field.name for field in msgspec.structs.fields(cls) if field.required]
        data = shells.get(name) or {each: values[each] for each in required}
        event = {"id": "1", "time_ms": 1, "tenant": "t", "job": "j", "actor": "a", "data": {"type": name} | data}
        samples[name] = msgspec.json.encode(event)
    return samples


def test_causes_lead_back_to_the_submission(one_job: SimulatedGrid) -> None:
    world = next(each for each in timeline(one_job.recorded) if each.what == "decision.world" and each.before)
    chain = causes(one_job.recorded, world.sequence)

    assert [step.depth for step in chain] == list(range(len(chain)))
    assert chain[0].line.sequence == world.sequence
    assert chain[-1].line.what == "job.submitted"
    assert all(one.line.sequence > two.line.sequence for one, two in pairwise(chain))


def test_effects_are_what_an_event_led_to_and_the_way_back_of_causes(one_job: SimulatedGrid) -> None:
    lost = next(each.sequence for each in timeline(one_job.recorded) if each.what == "launch.node_lost")
    led_to = effects(one_job.recorded, lost)

    assert led_to[0].line.sequence == lost
    assert {"decision.drain", "decision.placement", "launch.requested"} <= {step.line.what for step in led_to}
    for step in led_to:
        chain = causes(one_job.recorded, step.line.sequence)
        assert chain[step.depth].line.sequence == lost


@pytest.mark.parametrize("name", ["demo", "failures", "cancelled"])
def test_every_node_of_a_recorded_log_leads_from_its_join_over_its_launch_back_to_the_submission(name: str) -> None:
    records = list(ArchivedEvents(GOLDENS / f"{name}.egz"))
    joined = [each for each in records if isinstance(each.event, Event) and type(each.event.data) is ev.NodeJoined]
    assert joined
    for each in joined:
        chain = [step.line.what for step in causes(records, each.sequence)]
        assert chain[:3] == ["node.joined", "launch.requested", "decision.placement"]
        assert chain[-1] == "job.submitted"
        request = causes(records, each.sequence)[1]
        assert each.sequence in {step.line.sequence for step in effects(records, request.line.sequence)}


@pytest.mark.parametrize("name", ["demo", "failures", "cancelled"])
def test_facts_of_a_recorded_log_are_caused_by_what_concerns_them(name: str) -> None:
    records = list(ArchivedEvents(GOLDENS / f"{name}.egz"))
    events = {each.sequence: each.event for each in records if isinstance(each.event, Event)}
    seen = set()
    for sequence, event in events.items():
        cause = events.get(causes(records, sequence)[0].cause)
        data = event.data
        seen.add(type(data))
        if isinstance(data, ev.NodeStarted | ev.NodeFinished | ev.NodeFailed):
            assert cause is not None
            assert isinstance(cause.data, ev.WorldDecided)
            assert cause.data.round == data.round
        elif isinstance(data, ev.NodeCheckpointed | ev.NodeDrained):
            assert cause is not None
            assert isinstance(cause.data, ev.WorldDecided | ev.DrainDecided)
            assert cause.data.round == data.round
        elif isinstance(data, ev.LaunchRequested):
            assert cause is not None
            assert isinstance(cause.data, ev.PlacementDecided)
            assert data.assignment in {line.id for line in cause.data.assignments if line.action == "add"}
        elif isinstance(data, ev.LaunchStarted):
            assert cause is not None
            assert isinstance(cause.data, ev.LaunchRequested)
            assert cause.data.attempt == data.attempt
        elif isinstance(data, ev.LaunchStopRequested):
            assert cause is not None
            assert isinstance(cause.data, ev.NodeLeft | ev.NodeLost | ev.DrainDecided | ev.PlacementDecided)
    assert {ev.NodeStarted, ev.LaunchRequested, ev.LaunchStarted, ev.LaunchStopRequested} <= seen


def test_a_chain_tells_how_long_after_its_cause_each_event_came(one_job: SimulatedGrid) -> None:
    world = next(each for each in timeline(one_job.recorded) if each.what == "decision.world" and each.before)
    recorded = {each.sequence: each.recorded_ms for each in one_job.recorded}
    for step in (*causes(one_job.recorded, world.sequence), *effects(one_job.recorded, 3)):
        assert step.line.delta_ms == (recorded[step.line.sequence] - recorded[step.cause] if step.cause else 0)
    told = list(chain_lines(causes(one_job.recorded, world.sequence)))
    assert len({line.split()[1] for line in told[1:]}) > 3
    assert told[0] == utc.day(recorded[world.sequence])
    assert "+" not in told[-1].split("#")[0]


def test_the_date_stands_before_the_first_line_of_each_day() -> None:
    day_ms = 86_400_000
    lines = [
        TimelineLine(
            sequence=number, time_ms=1_750_000_000_000 + day * day_ms, tenant="t", job="j", actor="a", what="w"
        )
        for number, day in enumerate((0, 0, 1, 3, 3), 1)
    ]
    told = list(text_lines(lines))
    assert [line for line in told if "#" not in line] == ["2025-06-15", "2025-06-16", "2025-06-18"]
    assert len(told) == 8


def test_missing_events_are_told_where_a_whole_log_is_shown_whole(one_job: SimulatedGrid) -> None:
    missing = {1, 16, 30, 31}
    records = [each for each in one_job.recorded if each.sequence not in missing]
    told = [line for line in timeline(records) if line.what == "missing"]
    assert [(line.sequence, line.text()) for line in told] == [
        (1, "--- missing: event 1"),
        (16, "--- missing: event 16"),
        (30, "--- missing: events 30 to 31"),
    ]
    assert [each.text() for each in missing_events(records)] == [line.reason for line in told]
    assert all(line.what != "missing" for line in timeline(records, complete=False))
    assert all(line.what != "missing" for line in timeline(records, TimelineFilter(job="train")))


def test_a_writers_clock_that_is_off_is_told_with_its_line(one_job: SimulatedGrid) -> None:
    for off_ms, said in ((-3_200, "[its clock: -3.2 s]"), (60_000, "[its clock: +60.0 s]"), (1_000, "")):
        recorded = one_job.recorded[4]
        assert isinstance(recorded.event, Event)
        event = msgspec.structs.replace(recorded.event, time_ms=recorded.recorded_ms + off_ms)
        text = line_of(Recorded(recorded.sequence, recorded.recorded_ms, event)).text()
        assert text.endswith(said) if said else "clock" not in text


def test_an_event_that_is_not_there_is_not_found(one_job: SimulatedGrid) -> None:
    for look in (causes, effects, find):
        with pytest.raises(NotFound):
            look(one_job.recorded, 10_000)
    assert isinstance(find(one_job.recorded, 3).event, Event)
