"""Verification: true logs verify, and every forged field of a decision is found and named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from simulated_jobs import job, providers

from elasticgrid.core.errors import InvalidInput
from elasticgrid.core.events import Event, Recorded
from elasticgrid.core.spec import ProviderSpec
from elasticgrid.log.archive import ArchivedEvents, SampleRange
from elasticgrid.log.codec import decode
from elasticgrid.review.verify import verify, verify_archive
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload
from elasticgrid.testing.tamper import forged, tamper

Archived = Callable[..., Path]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from leaves(part, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from leaves(part, f"{path}[{index}]")
    else:
        yield path, value


def other(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return f"{value}x" if isinstance(value, str) else 1


def with_forged(records: list[Recorded], index: int, field: str, value: Any) -> list[Recorded]:
    return [*records[:index], forged(records[index], field, value), *records[index + 1 :]]


def decisions(records: list[Recorded]) -> list[int]:
    return [i for i, each in enumerate(records) if isinstance(each.event, Event) and each.event.basis is not None]


# --------------------------------------------------------------------------------------------------------------------
# True logs
# --------------------------------------------------------------------------------------------------------------------


def test_a_simulated_run_verifies_from_the_values_its_decisions_carry(one_job: SimulatedGrid) -> None:
    report = verify(one_job.recorded)

    assert report.ok
    assert report.decisions == report.verified == one_job.job(("demo", "train")).decisions
    assert (report.diverged, report.unverifiable, report.from_samples) == (0, 0, 0)
    assert report.from_values > 10


def test_with_raw_samples_every_window_is_rebuilt(one_job: SimulatedGrid) -> None:
    values, samples = verify(one_job.recorded), verify(one_job.recorded, one_job.samples)

    assert samples.ok
    assert (samples.from_samples, samples.from_values) == (values.from_values, 0)


def test_failures_losses_and_cancelled_jobs_verify_side_by_side(many_jobs: SimulatedGrid) -> None:
    report = verify(many_jobs.recorded, many_jobs.samples)

    assert report.ok, report
    assert report.jobs == 4
    assert report.verified == report.decisions > 60


def test_an_archive_verifies_without_a_server(one_job: SimulatedGrid, archived: Archived) -> None:
    assert verify_archive(archived(one_job)) == verify(one_job.recorded, one_job.samples)


def test_without_samples_an_archive_verifies_from_values(one_job: SimulatedGrid, archived: Archived) -> None:
    assert verify_archive(archived(one_job, samples=False)) == verify(one_job.recorded)


def test_an_archive_out_of_which_credentials_were_taken_verifies(archived: Archived) -> None:
    grid = SimulatedGrid(providers())
    spec = msgspec.structs.replace(job(), env={"PGPASSWORD": "sesame"}, command=("sh", "-c", "TOKEN=sesame train"))
    grid.submit(spec, Workload(total_steps=200, demand=((200_000, 4), (1, 1))))
    grid.run()
    path = archived(grid)
    assert not any(b"sesame" in recorded.raw for recorded in ArchivedEvents(path))
    report = verify_archive(path)
    assert report.ok
    assert report.decisions == report.verified > 5


def test_where_old_samples_have_aged_out_both_kinds_are_counted_apart(one_job: SimulatedGrid) -> None:
    cut = len(one_job.samples) // 2
    rest = one_job.samples[cut:]
    report = verify(one_job.recorded, rest, samples_held=SampleRange(cut, one_job.evidence.sequence))

    assert report.ok
    assert report.from_samples > 0
    assert report.from_values > 0


def test_decisions_of_far_back_are_verified_in_a_second_pass(one_job: SimulatedGrid) -> None:
    """A decision that was taken, and then reached the log only after ten thousand other events."""
    grid = SimulatedGrid([ProviderSpec(name="wide", max_nodes=1_000)])
    submitted = len(grid.recorded)
    key = grid.submit(_spec("slow"))
    grid.advance(5)
    for index in range(10_000):
        grid.declare(ProviderSpec(name=f"p{index % 7}", max_nodes=index % 5))
    grid.run()
    assert grid.job(key).phase == "completed"
    assert decisions(grid.recorded)[0] > submitted + 10_000

    report = verify(grid.recorded)
    once = verify(iter(grid.recorded))

    assert report.ok
    assert (report.verified, report.unverifiable) == (report.decisions, 0)
    assert (once.verified, once.unverifiable) == (report.decisions - 1, 1)


def _spec(name: str) -> Any:
    from elasticgrid.core.spec import JobSpec

    return JobSpec(name=name, command=("true",))


def test_in_a_part_of_a_log_only_what_it_proves_is_verified(many_jobs: SimulatedGrid) -> None:
    part = [each for each in many_jobs.recorded if each.event.job == "job0"]
    report = verify(part, complete=False)

    assert report.ok
    assert report.missing_sequences > 0
    assert report.unverifiable > 0
    assert report.verified > report.unverifiable


def test_an_event_of_an_unknown_type_stops_only_its_own_job(many_jobs: SimulatedGrid) -> None:
    at = next(i for i, each in enumerate(many_jobs.recorded) if each.sequence > 40 and each.event.job == "job3")
    strange = msgspec.json.decode(many_jobs.recorded[at].raw)
    strange["data"] = {"type": "node.dreamt", "of": "sheep"}
    raw = msgspec.json.encode(strange)
    records = list(many_jobs.recorded)
    records[at] = Recorded(records[at].sequence, records[at].recorded_ms, decode(raw), raw)

    report = verify(records)

    assert [(each.job, each.event_type, each.sequence) for each in report.stopped] == [
        ("job3", "node.dreamt", records[at].sequence)
    ]
    assert report.unverifiable > 0
    assert report.diverged == 0
    assert report.verified + report.unverifiable == report.decisions


# --------------------------------------------------------------------------------------------------------------------
# Forged logs
# --------------------------------------------------------------------------------------------------------------------

#: What a decision says it had read, when it had read more or less but nothing that mattered, changes nothing else.
UNPROVABLE = frozenset(("basis.events_through", "basis.samples_through"))
#: A decision moved to another job, or without its policy, is missed at its old place.
MOVED = frozenset(("tenant", "job"))


def test_every_forged_field_of_every_decision_is_found_and_named(one_job: SimulatedGrid) -> None:
    records = one_job.recorded
    tried = 0
    for index in decisions(records):
        for field, value in leaves(msgspec.json.decode(records[index].raw)):
            if field in UNPROVABLE or field in MOVED or field == "data.type":
                continue
            try:
                forgery = with_forged(records, index, field, other(value))
            except InvalidInput:  # with a value that no event can have there
                continue
            report = verify(forgery, one_job.samples)
            tried += 1
            told = [(each.sequence, each.field) for each in report.divergences]
            assert told == [(records[index].sequence, field)], (field, value, told)
            assert report.divergences[0].story
    assert tried > 900


@pytest.mark.parametrize("field", sorted(MOVED))
def test_a_decision_moved_to_another_job_is_named_as_such(many_jobs: SimulatedGrid, field: str) -> None:
    records = many_jobs.recorded
    moved_to = {"tenant": "other", "job": "job3"}[field]
    for index in decisions(records)[::7]:
        if getattr(records[index].event, field) == moved_to:
            continue
        report = verify(with_forged(records, index, field, moved_to))
        assert field in {each.field for each in report.divergences if each.sequence == records[index].sequence}


def test_how_far_a_decision_had_read_is_named_when_it_cannot_be_true(many_jobs: SimulatedGrid) -> None:
    records = many_jobs.recorded
    named = unprovable = 0
    for index in decisions(records):
        first = records[index].event
        assert isinstance(first, Event)
        assert first.basis is not None
        for through in (0, first.basis.events_through - 1, records[index].sequence + 5):
            report = verify(with_forged(records, index, "basis.events_through", through))
            if report.ok:
                unprovable += 1
                continue
            named += [each.field for each in report.divergences] == ["basis.events_through"]
    assert unprovable < named / 4


def test_a_forged_signal_is_named_even_where_the_samples_are_gone(one_job: SimulatedGrid) -> None:
    index = next(i for i in decisions(one_job.recorded) if b'"queue_bound","spoke":true' in one_job.recorded[i].raw)
    for name in ("queue_us", "step_us", "round_steps", "evidence_ms", "last_sample_ms"):
        value = getattr(one_job.recorded[index].event.data.signals, name)  # type: ignore[union-attr]
        report = verify(with_forged(one_job.recorded, index, f"data.signals.{name}", value + 1))
        (told,) = report.divergences
        assert f"data.signals.{name}" in f"{told.field} {told.note}".split()


def test_a_forged_archive_with_a_good_chain_is_found(
    one_job: SimulatedGrid, archived: Archived, tmp_path: Path
) -> None:
    index = next(i for i in decisions(one_job.recorded) if b'"rule":"queue_bound"' in one_job.recorded[i].raw)
    sequence = one_job.recorded[index].sequence
    source, target = archived(one_job), tmp_path / "forged.egz"
    tamper(source, target, sequence, "data.target_nodes", 3)

    report = verify_archive(target)

    assert not report.ok
    (divergence,) = report.divergences
    assert (divergence.sequence, divergence.field, divergence.got) == (sequence, "data.target_nodes", "3")
    assert divergence.expected == "2"


def test_one_jobs_forgery_leaves_the_others_verified(many_jobs: SimulatedGrid) -> None:
    index = next(i for i in decisions(many_jobs.recorded) if many_jobs.recorded[i].event.job == "job2")
    report = verify(with_forged(many_jobs.recorded, index, "data.reason", "because"))

    assert [each.job for each in report.divergences] == ["job2"]
    assert (report.diverged, report.verified) == (1, report.decisions - 1)


def test_a_decision_that_was_left_out_is_missed(one_job: SimulatedGrid) -> None:
    records = one_job.recorded
    for index in decisions(records)[:-1]:
        report = verify([*records[:index], *records[index + 1 :]])
        assert not report.ok
        assert report.missing_sequences == 1


def test_a_decision_that_comes_twice_breaks_the_laws(one_job: SimulatedGrid) -> None:
    records = one_job.recorded
    index = decisions(records)[5]
    again = records[index]
    extra = Recorded(records[-1].sequence + 1, records[-1].recorded_ms, again.event, again.raw)
    report = verify([*records, extra])

    assert {(each.law, each.sequence) for each in report.laws} == {
        ("legal_transitions", extra.sequence),
        ("unique_ids", extra.sequence),
    }
