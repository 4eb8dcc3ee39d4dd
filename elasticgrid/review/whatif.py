"""What if: the jobs of an archive under another policy, or on another grid.

Up to the first different decision the recorded facts are the inputs. From there on the jobs are simulated by the same
core in virtual time, with the throughput model fitted to the archive's own samples, its demand, and the delays and
failures it recorded; every figure that rests on that is marked as extrapolated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from elasticgrid import utc
from elasticgrid.core import events as ev
from elasticgrid.core.errors import InvalidInput, NotFound
from elasticgrid.core.grid import GridFold, JobKey
from elasticgrid.core.job import JobState
from elasticgrid.core.scaling import RULES
from elasticgrid.core.spec import PPM
from elasticgrid.core.throughput import HeldOut
from elasticgrid.log.archive_format import SampleCoverage, SampleMessage
from elasticgrid.review.whatif_change import READ_BY, Change, ChangedSetting
from elasticgrid.review.whatif_figures import Comparison, Figures, SizeChange, compare, figures
from elasticgrid.review.whatif_record import RunRecord, UntoldSpan
from elasticgrid.review.whatif_simulation import Simulation, simulate
from elasticgrid.review.whatif_training import MeasuredSize, Reading, RecordedTraining
from elasticgrid.review.whatif_walk import Different, Walk

_RULES: Final = tuple(name for name, _ in RULES)
#: Tokens of two runs that differ by no more than this are the same work.
_SAME_WORK_PPM: Final = 20_000


class FirstDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Where both runs part.

    Attributes:
        time_ms: when, Unix milliseconds; `after_sequence` the last recorded event that both share.
        recorded, what_if: what was decided and what would have been, in words.
        rule, reason: of the other decision, where a rule took it.
    """

    time_ms: int
    after_sequence: int
    tenant: str
    job: str
    recorded: str
    what_if: str
    rule: str = ""
    reason: str = ""


class Untold(msgspec.Struct, frozen=True, kw_only=True):
    """When what another policy would have decided about a job cannot be told, since its samples are not all there."""

    tenant: str
    job: str
    from_ms: int
    until_ms: int


class ModelReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the extrapolation of a job rests on.

    Attributes:
        sizes: what was measured.
        largest_nodes: the largest size it may tell about.
        held_out: the model's error on each size when it is fitted to the others; empty with one size only.
        error_ppm: their median; None when there are none.
        demand: how the arrival of work was read off the record.
        assumes: what is taken for granted, in sentences.
    """

    sizes: tuple[MeasuredSize, ...]
    largest_nodes: int
    held_out: tuple[HeldOut, ...]
    error_ppm: int | None
    demand: Reading
    assumes: tuple[str, ...]


class WhatIfJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job of the answer.

    Attributes:
        settings: what is different about its policy.
        extrapolated_from_ms: since when its figures are simulated; None when all of them are recorded.
        table: the record against what would have been.
        recorded_changes, what_if_changes: changes of size, in order.
        model: None when nothing had to be extrapolated.
    """

    tenant: str
    job: str
    settings: tuple[ChangedSetting, ...]
    extrapolated_from_ms: int | None
    table: tuple[Comparison, ...]
    recorded_changes: tuple[SizeChange, ...]
    what_if_changes: tuple[SizeChange, ...]
    model: ModelReport | None = None


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The answer.

    Attributes:
        differences: how many decisions came out differently before anything had to be extrapolated: 0, or 1, since
            behind the first one the inputs are no longer the recorded ones.
        rederived: recorded decisions that were taken again under the other policy; `asked` how often besides.
        first_difference: where the runs part.
        why_none: when they do not, why.
        other_holds: at how many moments a size was held for another reason, as `recorded rule -> other rule`.
        untold: when nobody can tell what would have been decided. Decisions of that time were taken again from the
            values that they carry; what might have been decided in between is not known.
        stopped: why the simulation could not go on to the end; empty when it did.
    """

    differences: int
    rederived: int
    asked: int
    first_difference: FirstDifference | None
    why_none: str
    other_holds: dict[str, int]
    jobs: tuple[WhatIfJob, ...]
    untold: tuple[Untold, ...] = ()
    stopped: str = ""


def what_if(
    records: Iterable[ev.Recorded],
    samples: Iterable[SampleMessage],
    change: Change,
    *,
    coverage: SampleCoverage = SampleCoverage(),  # noqa: B008 - frozen
) -> WhatIf:
    """Run the jobs of a log again.

    Args:
        records, samples: the log in order; both are read several times.
        coverage: which part of the samples stream that is; all of it by default.

    Raises:
        NotFound: the log has no job, or not the one whose policy is to change.
        InvalidInput: what comes after the first different decision cannot be told, since no step was recorded.
    """
    record = RunRecord()
    record.events(records)
    if change.job is not None and change.job not in record.jobs:
        raise NotFound(f"there is no job {'/'.join(change.job)} in this log")
    if not record.jobs:
        raise NotFound(
            "no job was submitted in this log", hint="where it is a part of one, export it from an earlier time"
        )
    record.samples(samples)
    spans = {key: job.untold(coverage, record.last_ms) for key, job in record.jobs.items()}
    walk = Walk(records, samples, change, {key: {each.round for each in found} for key, found in spans.items()})
    different = walk.run()
    untold = _untold(spans)
    done = None
    if different is not None and all(each.until_ms <= different.time_ms for each in untold):
        try:
            done = simulate(records, change, record, walk, different)
        except InvalidInput as error:
            first = _told(different)
            story = (
                f"the first different decision is after event {different.after_sequence}",
                f"recorded: {first.recorded}",
                f"what if: {first.what_if}",
            )
            raise InvalidInput(error.what, hint=error.hint, story=story) from error
    return _answer(records, samples, change, record, walk, different, done, untold)


def _untold(spans: Mapping[JobKey, tuple[UntoldSpan, ...]]) -> tuple[Untold, ...]:
    """Rounds whose samples are not all there, those that follow one another as one span."""
    found: list[Untold] = []
    for (tenant, job), rounds in spans.items():
        for each in rounds:
            if found and (found[-1].tenant, found[-1].job, found[-1].until_ms) == (tenant, job, each.from_ms):
                found[-1] = msgspec.structs.replace(found[-1], until_ms=each.until_ms)
            else:
                found.append(Untold(tenant=tenant, job=job, from_ms=each.from_ms, until_ms=each.until_ms))
    return tuple(found)


def untold_words(untold: Iterable[Untold]) -> str:
    """Which samples are missing, as a part of a sentence."""
    spans = [
        f"of {each.tenant}/{each.job} from {utc.moment(each.from_ms)} to {utc.moment(each.until_ms)} UTC"
        for each in untold
    ]
    return f"the samples {' and '.join(spans)} are not all there"


def none_words(answer: WhatIf) -> str:
    """That nothing would have been decided otherwise, as far as that can be told, and why."""
    found = "0 differences" if not answer.untold else "No difference among what can be told"
    return f"{found}: {answer.why_none}."


def doubt_words(answer: WhatIf) -> str:
    """That a difference before the first one found cannot be ruled out, and why; empty when it can."""
    first = answer.first_difference
    earlier = [each for each in answer.untold if first is not None and each.from_ms < first.time_ms]
    return f"An earlier one cannot be ruled out: {untold_words(earlier)}." if earlier else ""


class _Log:
    """What both runs share of a stream, and what was simulated behind it."""

    def __init__(self, shared: Iterable[ev.Recorded], through: int, change: Change, made: list[ev.Recorded]) -> None:
        self._shared, self._through, self._change, self._made = shared, through, change, made

    def __iter__(self) -> Iterator[ev.Recorded]:
        for recorded in self._shared:
            if recorded.sequence > self._through:
                break
            event = recorded.event
            other = self._change.event(event) if isinstance(event, ev.Event) else event
            if other is not None:
                yield msgspec.structs.replace(recorded, event=other)
        yield from self._made


class _Samples:
    """The same of samples."""

    def __init__(self, shared: Iterable[SampleMessage], through: int, made: list[SampleMessage]) -> None:
        self._shared, self._through, self._made = shared, through, made

    def __iter__(self) -> Iterator[SampleMessage]:
        for message in self._shared:
            if message.sequence > self._through:
                break
            yield message
        yield from self._made


def _answer(
    records: Iterable[ev.Recorded],
    samples: Iterable[SampleMessage],
    change: Change,
    record: RunRecord,
    walk: Walk,
    different: Different | None,
    done: Simulation | None,
    untold: tuple[Untold, ...],
) -> WhatIf:
    keys = list(record.jobs)
    partly = {(each.tenant, each.job) for each in untold}
    before = figures(records, samples, keys, end_ms=record.last_ms, untold=partly)
    after: dict[JobKey, Figures] = {}
    if different is None:
        after = {key: told for key, told in before.items() if key not in partly}
    if different is not None and done is not None:
        log = _Log(records, different.after_sequence, change, done.recorded)
        taken = _Samples(samples, different.samples_through, done.samples)
        after = before | figures(
            log, taken, [key for key in keys if key in done.jobs], end_ms=done.end_ms, untold=partly
        )
    fold = GridFold(memory=1)
    for recorded in records:
        fold.apply(recorded)
    jobs = []
    for key in keys:
        state = fold.job(key)
        if state is None or state.spec is None or (change.job is not None and key != change.job):
            continue
        training = done.training.get(key) if done is not None else None
        jobs.append(
            _job(state, change, different if training is not None else None, before[key], after.get(key), training)
        )
    settings = {each.setting for job in jobs for each in job.settings}
    return WhatIf(
        differences=0 if different is None else 1,
        rederived=walk.rederived,
        asked=walk.asked,
        first_difference=_told(different) if different is not None else None,
        why_none=_why_none(walk, settings, change, untold) if different is None else "",
        other_holds={f"{one} -> {other}": count for (one, other), count in sorted(walk.other_holds.items())},
        jobs=tuple(jobs),
        untold=untold,
        stopped=_stopped(different, done, untold),
    )


def _stopped(different: Different | None, done: Simulation | None, untold: tuple[Untold, ...]) -> str:
    if done is not None:
        return done.stopped
    if different is None:
        return ""
    later = [each for each in untold if each.until_ms > different.time_ms]
    return f"{untold_words(later)}, and what comes after the first different decision rests on them"


def _job(
    state: JobState,
    change: Change,
    different: Different | None,
    before: Figures,
    other: Figures | None,
    training: RecordedTraining | None,
) -> WhatIfJob:
    assert state.spec is not None
    extrapolated = different is not None
    return WhatIfJob(
        tenant=state.tenant,
        job=state.id,
        settings=change.settings(state.tenant, state.id, state.spec),
        extrapolated_from_ms=max(different.time_ms, state.submitted_ms) if different is not None else None,
        table=compare(before, other, state.submitted_ms, extrapolated=extrapolated),
        recorded_changes=before.history,
        what_if_changes=other.history if other is not None else (),
        model=_model(training, before, other) if training is not None else None,
    )


def _model(training: RecordedTraining, before: Figures, other: Figures | None) -> ModelReport:
    sizes = [str(each.nodes) for each in training.sizes]
    if training.total_tokens is not None:
        ends = f"the job trains the {training.total_tokens:,} tokens that it trained"
    elif training.total_steps is not None:
        ends = f"the job trains the {training.total_steps:,} steps that it trained"
    else:
        ends = "the job goes on for as long as it did"
    assumes = [
        ends,
        "a step's tokens are the same at every size" if training.shared else "every node brings tokens of its own",
        {
            "backlog": "work arrives when it did and waits in that order; later work arrives as the last did",
            "share": "the load over time is what the recorded waits show",
            "unlimited": "there is always work, since nothing was waited for",
        }[training.reading],
        "launches take and fail as the last one there did, and nodes are lost when they were",
    ]
    tokens = (before.tokens, other.tokens if other is not None else None)
    if tokens[0] and tokens[1] is not None and abs(tokens[1] - tokens[0]) * PPM > _SAME_WORK_PPM * tokens[0]:
        assumes.append(
            f"the runs train {tokens[0]:,} and {tokens[1]:,} tokens, which is not the same work: compare them per token"
        )
    if len(sizes) == 1:
        assumes.append(f"only {sizes[0]} nodes were measured, so how steps scale is a guess")
    return ModelReport(
        sizes=training.sizes,
        largest_nodes=training.model.largest_nodes,
        held_out=training.model.held_out,
        error_ppm=training.model.error_ppm,
        demand=training.reading,
        assumes=tuple(assumes),
    )


def _told(different: Different) -> FirstDifference:
    scale = next((data for data in different.what_if if isinstance(data, ev.ScaleDecided)), None)
    return FirstDifference(
        time_ms=different.time_ms,
        after_sequence=different.after_sequence,
        tenant=different.key[0],
        job=different.key[1],
        recorded=_words(different.recorded),
        what_if=_words(different.what_if),
        rule=scale.rule if scale is not None else "",
        reason=scale.reason if scale is not None else "",
    )


def _words(decision: tuple[ev.DecisionData, ...]) -> str:
    said = []
    for data in decision:
        if isinstance(data, ev.ScaleDecided):
            size = f"{data.current_nodes} -> {data.target_nodes} nodes"
            said.append(f"hold {data.current_nodes} nodes ({data.rule})" if data.action == "hold" else size)
        elif isinstance(data, ev.PlacementDecided):
            lines = [f"{each.action} {each.nodes} on {each.provider}" for each in data.assignments]
            said.append(", ".join(lines) or f"{data.placed_nodes} of {data.demand_nodes} nodes placed")
        elif isinstance(data, ev.DrainDecided):
            said.append(f"drain round {data.round}")
        elif isinstance(data, ev.WorldDecided):
            said.append(f"round {data.round} with {len(data.members)} nodes")
        elif isinstance(data, ev.GapDecided):
            said.append(f"a gap in the samples ({data.cause})")
        else:
            said.append(data.outcome)
    return "; ".join(said) or "nothing"


def _why_none(walk: Walk, settings: set[str], change: Change, untold: tuple[Untold, ...]) -> str:
    """Why nothing came out differently, from what the record shows."""
    taken = f"{walk.rederived} recorded decisions and {walk.asked} moments in between came out the same"
    if not settings and change.providers is None:
        return f"the policy is the recorded one; {taken}"
    if untold:
        return (
            f"{taken}, but {untold_words(untold)}: decisions of that time were taken again from the values that they"
            " carry, and whether others would have been taken in between cannot be told"
        )
    readers = {rule for setting in settings for rule in READ_BY.get(setting.partition(".")[2], ())}
    spoke = {rule: 0 for rule in _RULES if rule in readers}
    for (one, _), count in walk.other_holds.items():
        if one in spoke:
            spoke[one] += count
    for rule, count in walk.held_by.items():
        if rule in spoke:
            spoke[rule] += count
    silent = [rule for rule, count in spoke.items() if not count]
    if spoke and len(silent) == len(spoke):
        names = " and ".join(f"`{rule}`" for rule in silent)
        return f"the changed settings are read by {names} only, which held nothing back in this record; {taken}"
    changed = ", ".join(sorted(settings)) or "the grid"
    return f"no decision depended on {changed}; {taken}"
