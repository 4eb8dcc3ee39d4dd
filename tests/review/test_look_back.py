"""State dumps, decision cards and summaries of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from elasticgrid.core import events as ev
from elasticgrid.core.errors import InvalidInput, NotFound
from elasticgrid.core.events import Event
from elasticgrid.core.scaling import POLICY_VERSION, RULES
from elasticgrid.log.archive import ArchivedEvents, ArchivedSamples
from elasticgrid.review.card import card_lines, decision_card
from elasticgrid.review.state import dump, state_at, state_changes
from elasticgrid.review.summary import summarise
from elasticgrid.testing.history import SimulatedGrid

Archived = Callable[..., Path]


# --------------------------------------------------------------------------------------------------------------------
# State
# --------------------------------------------------------------------------------------------------------------------


def test_the_state_at_a_place_is_the_same_bytes_whatever_came_after(many_jobs: SimulatedGrid) -> None:
    for sequence in (0, 1, 7, 60, len(many_jobs.recorded)):
        whole = dump(state_at(many_jobs.recorded, sequence=sequence))
        assert whole == dump(state_at(many_jobs.recorded[:sequence]))
        assert msgspec.json.decode(whole)["sequence"] == sequence


def test_an_archive_gives_the_state_of_the_log(many_jobs: SimulatedGrid, archived: Archived) -> None:
    assert dump(state_at(ArchivedEvents(archived(many_jobs)))) == dump(state_at(many_jobs.recorded))


def test_the_state_at_a_time_is_that_after_the_last_event_by_then(one_job: SimulatedGrid) -> None:
    at = one_job.recorded[30]
    assert state_at(one_job.recorded, time_ms=at.recorded_ms).sequence >= at.sequence
    assert state_at(one_job.recorded, time_ms=at.recorded_ms - 1).sequence < at.sequence


def test_two_states_differ_in_what_happened_in_between(one_job: SimulatedGrid) -> None:
    index = next(i for i, each in enumerate(one_job.recorded) if b'"node.joined"' in each.raw)
    sequence = one_job.recorded[index].sequence
    before, after = (state_at(one_job.recorded, sequence=each) for each in (sequence - 1, sequence))

    told = {each.field: (each.before, each.after) for each in state_changes(before, after)}

    assert told["jobs.demo/train.nodes.p1a1-0.status"] == ('"planned"', '"joined"')
    assert state_changes(before, before) == ()


def test_one_job_can_be_looked_at_alone(many_jobs: SimulatedGrid) -> None:
    assert list(state_at(many_jobs.recorded, job="demo/job2").jobs) == ["demo/job2"]


# --------------------------------------------------------------------------------------------------------------------
# Cards
# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.survive("P")
def test_a_card_tells_the_rules_the_numbers_and_the_providers(one_job: SimulatedGrid) -> None:
    up = next(
        each
        for each in one_job.recorded
        if isinstance(each.event, Event)
        and isinstance(each.event.data, ev.ScaleDecided)
        and each.event.data.rule == "queue_bound"
    )
    card = decision_card(one_job.recorded, "demo", "train", sequence=up.sequence + 1)

    assert (card.sequence, card.rule, card.current_nodes, card.target_nodes) == (up.sequence, "queue_bound", 1, 2)
    assert [line.rule for line in card.rules] == [name for name, _ in RULES]
    assert [line.verdict for line in card.rules][-3:] == ["decided", "not asked", "not asked"]
    assert card.rules[6].numbers["queue_us"] == card.signals.queue_us > 0
    assert card.sample_age_ms is not None
    assert card.placement_sequence == up.sequence + 1
    assert {each.provider for each in card.candidates} == {"spot", "dear"}
    text = "\n".join(card_lines(card))
    for part in ("1 -> 2 nodes", "queue_bound", "not asked idle", "spot: took 1 of"):
        assert part in text
    assert f"policy elasticgrid version {POLICY_VERSION}" in text


@pytest.mark.survive("P")
def test_a_card_at_any_time_names_when_time_alone_may_change_it(one_job: SimulatedGrid) -> None:
    held = next(
        each
        for each in one_job.recorded
        if isinstance(each.event, Event)
        and isinstance(each.event.data, ev.ScaleDecided)
        and each.event.data.rule == "cooldown"
    )
    card = decision_card(one_job.recorded, "demo", "train", time_ms=held.recorded_ms + 5_000)
    assert card.sequence == held.sequence
    assert card.asked_ms - card.time_ms == 5_000
    assert card.next_change_ms is not None
    assert card.next_change_ms > card.time_ms
    assert "time alone may change this at" in "\n".join(card_lines(card))


def scales(grid: SimulatedGrid, *actions: str) -> list[ev.Recorded]:
    return [
        each
        for each in grid.recorded
        if isinstance(each.event, Event)
        and isinstance(each.event.data, ev.ScaleDecided)
        and each.event.data.action in actions
    ]


def batch_of(grid: SimulatedGrid, decision: ev.Recorded) -> list[ev.Recorded]:
    assert isinstance(decision.event, Event)
    return [
        each
        for each in grid.recorded
        if isinstance(each.event, Event)
        and each.event.job == decision.event.job
        and each.event.basis is not None
        and decision.event.basis is not None
        and each.event.basis.number == decision.event.basis.number
    ]


@pytest.mark.parametrize("name", ["one_job", "many_jobs"])
def test_every_change_of_size_is_shown_with_its_own_placement_whichever_of_its_events_is_named(
    name: str, request: pytest.FixtureRequest
) -> None:
    grid: SimulatedGrid = request.getfixturevalue(name)
    changes = scales(grid, "up", "down")
    assert changes
    for change in changes:
        batch = batch_of(grid, change)
        placed = next(each.sequence for each in batch if type(each.event.data) is ev.PlacementDecided)  # type: ignore[union-attr] # decisions are events
        cards = [
            decision_card(grid.recorded, change.event.tenant, change.event.job, sequence=each.sequence)
            for each in batch
        ]
        for card in cards:
            assert (card.sequence, card.placement_sequence) == (change.sequence, placed)
            assert card.through_sequence == batch[-1].sequence
            assert card.later == ()
            text = "\n".join(card_lines(card))
            assert f"  placement (event {placed})" in text
            assert "before" not in text.splitlines()[1]


def test_a_placement_of_before_is_called_earlier(one_job: SimulatedGrid) -> None:
    held = scales(one_job, "hold")[-1]
    card = decision_card(one_job.recorded, "demo", "train", sequence=held.sequence)
    assert 0 < card.placement_sequence < held.sequence
    assert f"earlier placement (event {card.placement_sequence})" in "\n".join(card_lines(card))


@pytest.mark.parametrize(("job", "ended"), [("job0", "completed"), ("job1", "failed"), ("job2", "was cancelled")])
def test_of_a_job_that_is_over_the_card_says_what_was_decided_since_and_that_nothing_changes(
    many_jobs: SimulatedGrid, job: str, ended: str
) -> None:
    card = decision_card(many_jobs.recorded, "demo", job)
    decided = [
        each.sequence
        for each in many_jobs.recorded
        if isinstance(each.event, Event)
        and each.event.job == job
        and each.event.basis is not None
        and each.sequence > card.through_sequence
    ]
    assert [line.sequence for line in card.later] == decided[-len(card.later) :]
    assert card.later_left_out == len(decided) - len(card.later)
    assert card.next_change_ms is None
    text = card_lines(card)
    assert "  decided since:" in text
    assert text[-1].startswith(f"  the job {ended} at 20")
    assert text[-1].endswith("; nothing changes any more")
    assert "nothing else was decided" not in "\n".join(text)

    final = decision_card(many_jobs.recorded, "demo", job, sequence=card.through_sequence)
    assert (final.later, final.outcome) == ((), "")


def test_before_a_job_began_the_card_says_when_it_did(one_job: SimulatedGrid) -> None:
    with pytest.raises(NotFound, match="no job demo/train yet: it begins with event 3 at 20"):
        decision_card(one_job.recorded, "demo", "train", sequence=1)
    with pytest.raises(NotFound, match="no job demo/train yet"):
        decision_card(one_job.recorded, "demo", "train", time_ms=1)


def test_a_card_of_nothing_is_not_found(one_job: SimulatedGrid) -> None:
    with pytest.raises(NotFound, match="no job demo/other"):
        decision_card(one_job.recorded, "demo", "other")
    with pytest.raises(NotFound, match="no decision"):
        decision_card(one_job.recorded, "demo", "train", sequence=3)


# --------------------------------------------------------------------------------------------------------------------
# Summaries
# --------------------------------------------------------------------------------------------------------------------


def test_a_run_is_summed_up_from_its_archive(one_job: SimulatedGrid, archived: Archived) -> None:
    path = archived(one_job)
    summary = summarise(ArchivedEvents(path), ArchivedSamples(path))

    assert (summary.phase, summary.steps) == ("completed", 400)
    assert summary.worlds[:3] == (1, 2, 4)
    assert min(summary.worlds[3:]) < 4
    assert (summary.duplicate_steps, summary.unreported_steps) == (0, 0)
    assert summary.lost_steps is not None
    assert 0 < summary.lost_steps < 50
    assert summary.loss_first is not None
    assert summary.loss_last is not None
    assert summary.loss_first > summary.loss_last > 0
    assert summary.nodes_lost == 1
    assert sum(summary.nodes_by_provider.values()) == len(one_job.job(("demo", "train")).nodes)
    assert summary.cost_usd == one_job.job(("demo", "train")).spent_microdollars / 1e6
    assert summary.decisions == one_job.job(("demo", "train")).decisions


def test_without_samples_steps_come_from_events_and_the_rest_is_not_known(one_job: SimulatedGrid) -> None:
    summary = summarise(one_job.recorded)
    assert summary.steps == 400
    assert (summary.duplicate_steps, summary.lost_steps, summary.loss_last) == (None, None, None)


def test_a_step_of_the_committed_line_that_is_reported_twice_is_counted(one_job: SimulatedGrid) -> None:
    again = next(each for each in one_job.samples if each.subject.endswith(".0"))
    assert summarise(one_job.recorded, [*one_job.samples, again]).duplicate_steps == 1


def test_of_a_running_job_the_line_is_as_long_as_what_was_reported(one_job: SimulatedGrid) -> None:
    cut = next(i for i, each in enumerate(one_job.recorded) if b'"step":100' in each.raw)
    until_ms = one_job.recorded[cut].recorded_ms + 20_000
    records = [each for each in one_job.recorded if each.recorded_ms <= until_ms]
    samples = [each for each in one_job.samples if each.time_ms <= until_ms]

    summary = summarise(records, samples)

    assert summary.steps > 100
    assert (summary.duplicate_steps, summary.unreported_steps) == (0, 0)


def test_of_several_jobs_one_must_be_named(many_jobs: SimulatedGrid) -> None:
    with pytest.raises(InvalidInput):
        summarise(many_jobs.recorded)
    assert summarise(many_jobs.recorded, job=("demo", "job1")).phase == "failed"
    with pytest.raises(NotFound):
        summarise(many_jobs.recorded, job=("demo", "other"))
