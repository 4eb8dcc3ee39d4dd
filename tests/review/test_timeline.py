"""The timeline and the causal chain."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from elasticgrid.core.errors import NotFound
from elasticgrid.core.events import EVENT_TYPES, Event, Recorded
from elasticgrid.log.codec import decode
from elasticgrid.review.causes import causes, effects, find
from elasticgrid.review.timeline import TimelineFilter, line_of, timeline
from elasticgrid.testing.history import SimulatedGrid


def test_every_event_is_one_line_with_the_time_since_the_one_before(one_job: SimulatedGrid) -> None:
    lines = list(timeline(one_job.recorded))

    assert [each.sequence for each in lines] == [each.sequence for each in one_job.recorded]
    assert sum(each.delta_ms for each in lines) == one_job.recorded[-1].recorded_ms - one_job.recorded[0].recorded_ms
    assert all("\n" not in each.text() for each in lines)
    assert {each.what for each in lines} > {"decision.world", "launch.node_lost", "node.checkpointed"}


def test_a_change_says_from_what_to_what_and_why(one_job: SimulatedGrid) -> None:
    grown = next(each for each in timeline(one_job.recorded) if each.what == "decision.scale" and each.before == "1")
    assert grown.after == "1 nodes" or grown.after == "2 nodes"
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


def test_an_event_that_is_not_there_is_not_found(one_job: SimulatedGrid) -> None:
    for look in (causes, effects, find):
        with pytest.raises(NotFound):
            look(one_job.recorded, 10_000)
    assert isinstance(find(one_job.recorded, 3).event, Event)
