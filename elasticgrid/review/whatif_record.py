"""What an archive tells about its jobs and machines beyond its decisions: steps, sizes, delays, failures.

It is what a simulation goes on from: how long steps took at each size, when work arrived, how long launches took and
which of them failed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from elasticgrid.bus.subjects import parse_sample_subject
from elasticgrid.core import events as ev
from elasticgrid.core.grid import JobKey
from elasticgrid.core.samples import US_PER_S, admit, decode_batch
from elasticgrid.core.window import median
from elasticgrid.log.archive_format import SampleCoverage, SampleMessage
from elasticgrid.sim.machines import LaunchEnd, Timings

#: What a launch takes where none was recorded, milliseconds.
_DEFAULT_BOOT_MS: Final = 20_000
_DEFAULT_JOIN_MS: Final = 2_000


class RecordedStep(msgspec.Struct):
    """A step that ranks reported: the slowest one's length, and sums over the ranks of the rest."""

    step: int
    round: int
    nodes: int
    reports: int
    end_ms: int
    duration_us: int
    queue_us: int
    data_wait_us: int
    tokens: int


class Attempt(msgspec.Struct, frozen=True):
    """A launch: when it was asked for, and what it came to."""

    asked_ms: int
    end: LaunchEnd


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A node that was lost, or a worker that failed (`failure` is set then)."""

    time_ms: int
    key: JobKey
    provider: str
    evidence: Literal["process_gone", "silent"] = "process_gone"
    failure: ev.FailureClass | None = None
    code: int = 0


class UntoldSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A round of a job whose samples are not all there: when it was, Unix milliseconds."""

    round: int
    from_ms: int
    until_ms: int


class _Begun(msgspec.Struct, frozen=True):
    """A round: when it was decided, and how far the samples had been read then."""

    round: int
    time_ms: int
    samples_after: int


class JobRecord:
    """One job's steps and checkpoints.

    Attributes:
        steps: by number; of a step that was redone, the last time.
        checkpoints: (round, step) of each that was committed.
        worlds: nodes and workers of each round.
        finished: whether the job ended by having done its steps.
        over: whether it ended at all; `ended_ms` when, 0 when it did not.
    """

    def __init__(self) -> None:
        self.steps: dict[int, RecordedStep] = {}
        self.checkpoints: list[tuple[int, int]] = []
        self.worlds: dict[int, tuple[int, int]] = {}
        self.finished = False
        self.over = False
        self.ended_ms = 0
        self.read_through = 0
        self._rounds: list[_Begun] = []
        self.clock_ms: int | None = None

    def begun(self, round_number: int, at_ms: int, samples_after: int) -> None:
        """A round begins."""
        self._rounds.append(_Begun(round_number, at_ms, samples_after))

    def untold(self, coverage: SampleCoverage, last_ms: int) -> tuple[UntoldSpan, ...]:
        """The rounds whose samples are not all there; `last_ms` is when the log ends."""
        found = []
        for index, each in enumerate(self._rounds):
            later = self._rounds[index + 1] if index + 1 < len(self._rounds) else None
            if later is not None:
                through, until_ms = later.samples_after, later.time_ms
            else:
                # What a job that still runs will have read may go on to the end of what is there.
                through = self.read_through if self.over else max(self.read_through, coverage.held.through)
                until_ms = self.ended_ms or last_ms
            if not coverage.covers(each.samples_after, max(through, each.samples_after)):
                found.append(UntoldSpan(round=each.round, from_ms=each.time_ms, until_ms=until_ms))
        return tuple(found)

    def take(self, message: SampleMessage) -> None:
        """A message of samples."""
        batch = decode_batch(message.data)
        if isinstance(batch, str) or not batch.samples:
            return
        # Workers' clocks are not the log's. The quickest message tells the difference best.
        ahead_ms = message.time_ms - batch.samples[-1].time_ms
        self.clock_ms = ahead_ms if self.clock_ms is None else min(self.clock_ms, ahead_ms)
        for sample in batch.samples:
            admitted = admit(batch, sample)
            if isinstance(admitted, str):
                continue
            queue_us = round(sample.queue_s * US_PER_S)
            before = self.steps.get(sample.step)
            if before is None or before.round < batch.round:
                self.steps[sample.step] = RecordedStep(
                    sample.step,
                    batch.round,
                    sample.nodes,
                    1,
                    sample.time_ms,
                    admitted.duration_us,
                    queue_us,
                    admitted.data_wait_us,
                    sample.tokens,
                )
            elif before.round == batch.round:
                before.reports += 1
                before.end_ms = max(before.end_ms, sample.time_ms)
                before.duration_us = max(before.duration_us, admitted.duration_us)
                before.queue_us += queue_us
                before.data_wait_us += admitted.data_wait_us
                before.tokens += sample.tokens

    def line(self) -> list[RecordedStep]:
        """The steps in order: waits as means over ranks, tokens of all ranks, ends by the log's clock."""
        found = []
        for _, step in sorted(self.steps.items()):
            workers = self.worlds.get(step.round, (step.nodes, step.reports))[1]
            found.append(
                msgspec.structs.replace(
                    step,
                    end_ms=step.end_ms + (self.clock_ms or 0),
                    queue_us=step.queue_us // step.reports,
                    data_wait_us=step.data_wait_us // step.reports,
                    tokens=step.tokens * workers // step.reports,
                )
            )
        return found

    def checkpoint_steps(self) -> int | None:
        """The most frequent distance between two checkpoints of a round; None when no round has two."""
        gaps: dict[int, int] = {}
        for (round_before, before), (round_after, after) in zip(self.checkpoints, self.checkpoints[1:], strict=False):
            if round_before == round_after and after > before:
                gaps[after - before] = gaps.get(after - before, 0) + 1
        return max(gaps, key=lambda gap: (gaps[gap], gap)) if gaps else None


class RunRecord:
    """Everything of the kind in an archive.

    Attributes:
        jobs: by (tenant, job).
        attempts: launches at each provider, in order.
        losses: of nodes and workers, in order.
        last_ms: when the last event was recorded.
    """

    def __init__(self) -> None:
        self.jobs: dict[JobKey, JobRecord] = {}
        self.attempts: dict[str, list[Attempt]] = {}
        self.losses: list[Loss] = []
        self.last_ms = 0
        self._spans: dict[str, list[int]] = {}
        self._joins: dict[str, list[int]] = {}
        self._report_gaps: list[int] = []
        self._open: dict[tuple[JobKey, str], tuple[int, str]] = {}
        self._begun: dict[tuple[JobKey, str], int] = {}
        self._homes: dict[tuple[JobKey, str], str] = {}

    def events(self, records: Iterable[ev.Recorded]) -> None:
        """Take in a log."""
        for recorded in records:
            self.last_ms = max(self.last_ms, recorded.recorded_ms)
            event = recorded.event
            if isinstance(event, ev.Event):
                self._event((event.tenant, event.job), event, recorded.recorded_ms)
        for attempts in self.attempts.values():
            attempts.sort(key=lambda each: each.asked_ms)

    def samples(self, messages: Iterable[SampleMessage]) -> None:
        """Take in the samples of the same log."""
        last: dict[tuple[JobKey, str], int] = {}
        for message in messages:
            key = parse_sample_subject(message.subject)
            if key is None or key not in self.jobs:
                continue
            self.jobs[key].take(message)
            rank = (key, message.subject)
            if rank in last:
                self._report_gaps.append(message.time_ms - last[rank])
            last[rank] = message.time_ms

    def _event(self, key: JobKey, event: ev.Event, at_ms: int) -> None:
        data = event.data
        if isinstance(data, ev.JobSubmitted):
            self.jobs.setdefault(key, JobRecord())
        if event.basis is not None:
            self._spans.setdefault("append", []).append(max(at_ms - event.basis.as_of_ms, 0))
        job = self.jobs.get(key)
        if job is None:
            return
        if event.basis is not None:
            job.read_through = max(job.read_through, event.basis.samples_through)
        if isinstance(data, ev.WorldDecided):
            if event.basis is not None:
                job.begun(data.round, at_ms, event.basis.samples_through)
            job.worlds[data.round] = (len(data.members), data.world_size)
            self._begin(key, f"world {data.round}", at_ms)
        elif isinstance(data, ev.DrainDecided):
            self._begin(key, f"drain {data.round}", at_ms)
        elif isinstance(data, ev.OutcomeDecided):
            job.over, job.finished = True, data.outcome == "completed"
            job.ended_ms = at_ms
        elif isinstance(data, ev.PlacementDecided):
            for line in data.assignments:
                if line.action == "add":
                    self._begin(key, f"placed {line.id}", at_ms)
        elif isinstance(data, ev.NodeCheckpointed):
            job.checkpoints.append((data.round, data.checkpoint.step))
        else:
            self._launch(key, data, at_ms)
            self._node(key, data, at_ms)

    def _launch(self, key: JobKey, data: ev.EventData, at_ms: int) -> None:
        if isinstance(data, ev.LaunchRequested):
            self._open[key, data.attempt] = (at_ms, data.provider)
            self._span(key, f"placed {data.assignment}", "launch", at_ms)
            for node in data.node_ids:
                self._homes[key, node] = data.provider
        elif isinstance(data, ev.LaunchStarted | ev.LaunchFailed):
            asked_ms, provider = self._open.pop((key, data.attempt), (0, ""))
            if not provider:
                return
            end = LaunchEnd(after_ms=at_ms - asked_ms)
            if isinstance(data, ev.LaunchFailed):
                end = msgspec.structs.replace(end, failure=data.failure, text=data.text)
            else:
                self._begin(key, f"started {data.attempt}", at_ms)
            self.attempts.setdefault(provider, []).append(Attempt(asked_ms, end))
        elif isinstance(data, ev.LaunchStopRequested):
            self._begin(key, f"stop {data.attempt}", at_ms)
        elif isinstance(data, ev.LaunchStopped):
            self._span(key, f"stop {data.attempt}", "stop", at_ms)

    def _node(self, key: JobKey, data: ev.EventData, at_ms: int) -> None:
        if isinstance(data, ev.NodeJoined):
            started_ms = self._begun.get((key, f"started {data.attempt}"))
            if started_ms is not None:
                self._joins.setdefault(data.provider, []).append(at_ms - started_ms)
        elif isinstance(data, ev.NodeStarted):
            self._span(key, f"world {data.round}", "first_step", at_ms)
        elif isinstance(data, ev.NodeDrained):
            if data.clean:
                self._span(key, f"drain {data.round}", "drain", at_ms)
        elif isinstance(data, ev.NodeLost):
            provider = self._homes.get((key, data.node), "")
            self.losses.append(Loss(time_ms=at_ms, key=key, provider=provider, evidence=data.evidence))
        elif isinstance(data, ev.NodeFailed):
            provider = self._homes.get((key, data.node), "")
            code = data.exits[0].code if data.exits else 1
            self.losses.append(Loss(time_ms=at_ms, key=key, provider=provider, failure=data.failure, code=code))

    def _begin(self, key: JobKey, what: str, at_ms: int) -> None:
        self._begun[key, what] = at_ms

    def _span(self, key: JobKey, begun: str, what: str, at_ms: int) -> None:
        begun_ms = self._begun.get((key, begun))
        if begun_ms is not None:
            self._spans.setdefault(what, []).append(at_ms - begun_ms)

    def timings(self) -> Timings:
        """How long things took, each the median of what was recorded, or the simulation's own where nothing was."""
        usual = Timings()
        steps = [step.duration_us for job in self.jobs.values() for step in job.steps.values()]
        drain_ms = self._median("drain", usual.commit_ms)
        return Timings(
            append_ms=self._median("append", usual.append_ms),
            launch_ms=self._median("launch", usual.launch_ms),
            first_step_ms=self._median("first_step", usual.first_step_ms),
            commit_ms=max(drain_ms - median(steps) // 1_000, 1),
            stop_ms=self._median("stop", usual.stop_ms),
            detect_ms=1,  # a loss is simulated when it was noticed
            tick_ms=1_000,
            report_ms=max(median(self._report_gaps), 1) if self._report_gaps else usual.report_ms,
        )

    def _median(self, what: str, otherwise: int) -> int:
        spans = self._spans.get(what)
        return median(spans) if spans else otherwise

    def launch(self, provider: str, at_ms: int) -> LaunchEnd:
        """What the last launch at the provider by that time came to; its first one when that came later."""
        attempts = self.attempts.get(provider)
        if not attempts:
            others = [each.end.after_ms for every in self.attempts.values() for each in every if not each.end.failure]
            return LaunchEnd(after_ms=median(others) if others else _DEFAULT_BOOT_MS)
        index = bisect_right(attempts, at_ms, key=lambda each: each.asked_ms)
        return attempts[max(index - 1, 0)].end

    def join_ms(self, provider: str) -> int:
        """How long agents there took to join, the median; of all providers where none joined."""
        joins = self._joins.get(provider) or [each for every in self._joins.values() for each in every]
        return median(joins) if joins else _DEFAULT_JOIN_MS
