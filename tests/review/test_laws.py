"""Laws of the log: each is broken by one forged fact, and by nothing that really happens."""

from __future__ import annotations

import msgspec

from elasticgrid.core import events as ev
from elasticgrid.core.events import Event, Recorded
from elasticgrid.log.codec import encode
from elasticgrid.review.report import LawBreach
from elasticgrid.review.verify import verify
from elasticgrid.testing.history import SimulatedGrid


def changed(recorded: Recorded, **changes: object) -> Recorded:
    assert isinstance(recorded.event, Event)
    event = msgspec.structs.replace(recorded.event, data=msgspec.structs.replace(recorded.event.data, **changes))
    return Recorded(recorded.sequence, recorded.recorded_ms, event, encode(event))


def position(records: list[Recorded], kind: type[object], nth: int = 0) -> int:
    found = [i for i, each in enumerate(records) if isinstance(each.event, Event) and isinstance(each.event.data, kind)]
    return found[nth]


def inserted(records: list[Recorded], index: int, data: ev.EventData) -> list[Recorded]:
    """The log with one more fact at a place, everything behind it one further."""
    like = records[index].event
    assert isinstance(like, Event)
    event = msgspec.structs.replace(like, id=f"{like.id[:12]}{index:020d}", basis=None, data=data)
    later = [Recorded(each.sequence + 1, each.recorded_ms, each.event, each.raw) for each in records[index:]]
    return [*records[:index], Recorded(records[index].sequence, records[index].recorded_ms, event), *later]


def broken(records: list[Recorded], law: str) -> LawBreach:
    return next(each for each in verify(records).laws if each.law == law)


def test_two_live_launches_of_one_assignment_break_a_law(one_job: SimulatedGrid) -> None:
    records = one_job.recorded
    first = position(records, ev.LaunchRequested)
    event = records[first].event
    assert isinstance(event, Event)
    second = msgspec.structs.replace(event.data, attempt="other", node_ids=("other-0",))
    breach = broken(inserted(records, first + 1, second), "one_launch")
    assert breach.sequence == records[first].sequence + 1
    assert "other" in breach.says


def test_a_launch_without_an_outcome_breaks_a_law_when_its_job_is_over(one_job: SimulatedGrid) -> None:
    records = one_job.recorded
    stopped = position(records, ev.LaunchStopped, -1)
    breach = broken(records[:stopped] + records[stopped + 1 :], "intents_resolved")
    assert breach.sequence == records[-1].sequence


def test_open_intents_of_a_running_job_are_listed_and_break_nothing(one_job: SimulatedGrid) -> None:
    records = one_job.recorded
    report = verify(records[: position(records, ev.LaunchRequested, 1) + 1])
    assert report.ok
    assert [(each.what, each.sequence) for each in report.open_intents] == [("launch", report.last_sequence)]


def test_a_round_that_does_not_count_up_breaks_a_law(one_job: SimulatedGrid) -> None:
    records = list(one_job.recorded)
    index = position(records, ev.WorldDecided, 1)
    records[index] = changed(records[index], round=1)
    assert broken(records, "rounds_increase").sequence == records[index].sequence
    assert broken(records, "legal_transitions").sequence == records[index].sequence


def test_a_checkpoint_behind_the_last_one_breaks_a_law(one_job: SimulatedGrid) -> None:
    records = list(one_job.recorded)
    index = position(records, ev.NodeCheckpointed, -1)
    records[index] = changed(records[index], checkpoint=ev.CheckpointRef(step=3, uri="file:///x"))
    assert broken(records, "checkpoints_increase").sequence == records[index].sequence


def test_a_price_that_is_not_the_placements_breaks_the_sum(one_job: SimulatedGrid) -> None:
    records = list(one_job.recorded)
    index = position(records, ev.LaunchRequested)
    records[index] = changed(records[index], price_microdollars_per_hour=1)
    assert broken(records, "cost_adds_up").sequence == records[-1].sequence


def test_nodes_on_a_cordoned_provider_break_a_law(one_job: SimulatedGrid) -> None:
    records = one_job.recorded
    cordoned = inserted(records, 2, ev.ProviderCordoned(name="spot", reason="repairs"))
    breach = broken(cordoned, "usable_providers")
    assert "spot" in breach.says
    assert "cordoned (repairs)" in breach.says


def test_a_size_out_of_bounds_breaks_a_law(one_job: SimulatedGrid) -> None:
    records = list(one_job.recorded)
    index = next(
        i
        for i, each in enumerate(records)
        if isinstance(each.event, Event)
        and isinstance(each.event.data, ev.ScaleDecided)
        and each.event.data.action == "up"
    )
    records[index] = changed(records[index], target_nodes=9)
    assert broken(records, "size_in_bounds").sequence == records[index].sequence


def test_an_identifier_that_comes_again_breaks_a_law_however_late(one_job: SimulatedGrid) -> None:
    """Hours later only a second look at the log can tell."""
    last = one_job.recorded[-1]
    for early, hours in ((one_job.recorded[-5], 0), (one_job.recorded[4], 30)):
        again = Recorded(last.sequence + 1, last.recorded_ms + hours * 3_600_000, early.event, early.raw)
        report = verify([*one_job.recorded, again])
        assert ("unique_ids", again.sequence) in [(each.law, each.sequence) for each in report.laws]
