"""A job's training, as its record lets one tell it at sizes and times that were not.

How long a step takes is the throughput model's, fitted to the recorded steps. When its work arrives is read off the
recorded waits, in one of three ways:

- `backlog`: work waited longer than a step, so it queues in order of arrival. What was taken at a time and had waited
  so long had arrived by so much earlier; that gives the arrivals as a curve over time.
- `share`: steps waited for a part of their length. A step that waits for a worker for a fifth of its time shows a load
  of 1 / (1 - 1/5) times what it trained.
- `unlimited`: nothing was ever waited for, so there is always work.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Final, Literal

import msgspec

from elasticgrid.core.errors import InvalidInput
from elasticgrid.core.spec import PPM
from elasticgrid.core.throughput import Measurement, ThroughputModel, fit
from elasticgrid.core.window import median
from elasticgrid.review.whatif_record import JobRecord, RecordedStep
from elasticgrid.sim.training import StepTimes

Reading = Literal["backlog", "share", "unlimited"]

#: So many steps that waited longer than they took make a backlog; fewer may be a clock's fault.
_BACKLOG_STEPS: Final = 3
#: A load is read from the median of so many steps, so that one odd step is none.
_SMOOTH_STEPS: Final = 5
#: The largest share of a step that may be waiting, where its load is to be told from that.
_MAX_SHARE_PPM: Final = 980_000
#: Below this share of all time nothing was waited for.
_NOTHING_PPM: Final = 10_000
#: Tokens of a step that differ between sizes by no more than this are the same.
_SAME_PPM: Final = 100_000


class MeasuredSize(msgspec.Struct, frozen=True, kw_only=True):
    """What the record says of one size: how many steps, the median step without waits for data, and its tokens."""

    nodes: int
    steps: int
    busy_us: int
    tokens: int


class RecordedTraining:
    """Trains as the record says.

    Attributes:
        sizes: what was measured.
        model: the throughput model fitted to that.
        reading: how the arrival of work was read.
        shared: whether a step's tokens are shared out among the nodes (else each node brings its own).
        total_tokens: where the job ended by itself with the work that had come in; None when its steps end it.
    """

    def __init__(self, record: JobRecord) -> None:
        """Fit the model.

        Raises:
            InvalidInput: the record has no step to measure.
        """
        line = record.line()
        self.sizes = _measure(line)
        if not self.sizes:
            raise InvalidInput(
                "no step of the job was recorded",
                hint="export the archive with `elasticgrid events export --with-samples`",
            )
        self.model: ThroughputModel = fit(
            Measurement(each.nodes, each.tokens // each.nodes, max(each.busy_us, 1)) for each in self.sizes
        )
        tokens = [each.tokens for each in self.sizes]
        same = (max(tokens) - min(tokens)) * PPM <= _SAME_PPM * max(max(tokens), 1)
        self.shared = len(self.sizes) > 1 and same
        self._tokens = {each.nodes: each.tokens for each in self.sizes}
        self._total_steps = line[-1].step if record.finished else None
        self.checkpoint_steps = record.checkpoint_steps()
        #: Tokens taken through each step, as recorded and as simulated since.
        self._taken = {0: 0}
        total = 0
        for step in line:
            total += step.tokens
            self._taken[step.step] = total
        self.reading: Reading = _reading(line)
        self.total_tokens = total if record.finished and self.reading == "backlog" and not self.shared else None
        #: The step that was asked about last, and the nodes it was asked for.
        self._at: tuple[int, int] | None = None
        self._arrivals = _Arrivals(line) if self.reading == "backlog" else None
        self._load = _Load(line) if self.reading == "share" else None

    @property
    def total_steps(self) -> int | None:
        """After how many steps the job is done, as of now; None when it did not end by itself.

        Where nodes bring tokens of their own and the work that came in ends the job, fewer nodes take more steps.
        """
        if self.total_tokens is None or self._at is None:
            return self._total_steps
        step, nodes = self._at
        left = self.total_tokens - self._taken[step]
        return step + max(-(-left // max(self.step_tokens(nodes), 1)), 0)

    def step_tokens(self, nodes: int) -> int:
        """Tokens of one step: as measured, or else as the measured sizes suggest."""
        known = self._tokens.get(nodes)
        if known is not None:
            return known
        if self.shared:
            return median(list(self._tokens.values()))
        return nodes * median([tokens // size for size, tokens in self._tokens.items()])

    def step_times(self, now_ms: int, nodes: int, step: int) -> StepTimes:
        """The times of a step that begins now.

        Raises:
            InvalidInput: the model does not reach that far.
        """
        tokens = self.step_tokens(nodes)
        busy_ms = max(round(self.model.predict(nodes, tokens // nodes).step_us / 1_000), 1)
        if self._arrivals is not None:
            return self._from_backlog(now_ms, nodes, step, busy_ms)
        if self._load is not None:
            return self._from_load(now_ms, tokens, busy_ms)
        return StepTimes(duration_ms=busy_ms)

    def _from_backlog(self, now_ms: int, nodes: int, step: int, busy_ms: int) -> StepTimes:
        assert self._arrivals is not None
        tokens = self.step_tokens(nodes)
        taken = self._taken.get(step - 1)
        if taken is None:
            taken = self._taken[max(known for known in self._taken if known < step)]
        self._taken[step] = taken + tokens
        self._at = (step, nodes)
        wait_ms = max(self._arrivals.ready_ms(taken + tokens) - now_ms, 0)
        waited_ms = max(now_ms - self._arrivals.ready_ms(taken + tokens // 2), 0)
        # What came while the step before was under way had nobody to wait for.
        queue_ms = waited_ms if not wait_ms and waited_ms > busy_ms else 0
        return StepTimes(duration_ms=busy_ms + wait_ms, queue_ms=queue_ms, data_wait_ms=wait_ms)

    def _from_load(self, now_ms: int, tokens: int, busy_ms: int) -> StepTimes:
        assert self._load is not None
        load = self._load.tokens_per_s(now_ms)
        wanted_ms = round(tokens * 1_000 / load) if load > 0 else busy_ms
        if wanted_ms <= busy_ms:
            return StepTimes(duration_ms=busy_ms, queue_ms=busy_ms - wanted_ms)
        return StepTimes(duration_ms=wanted_ms, data_wait_ms=wanted_ms - busy_ms)

    def loss(self, step: int) -> float:  # noqa: ARG002 - no step's is known
        """Nobody knows."""
        return math.nan


def _measure(line: list[RecordedStep]) -> tuple[MeasuredSize, ...]:
    """Every size's medians; the first step of a round, which does more than train, counts only where it is alone."""
    by_size: dict[int, list[RecordedStep]] = {}
    firsts: dict[int, list[RecordedStep]] = {}
    seen: set[int] = set()
    for step in line:
        if step.duration_us <= 0 or step.tokens <= 0:
            continue
        (by_size if step.round in seen else firsts).setdefault(step.nodes, []).append(step)
        seen.add(step.round)
    found = []
    for nodes in sorted(by_size.keys() | firsts.keys()):
        steps = by_size.get(nodes) or firsts[nodes]
        found.append(
            MeasuredSize(
                nodes=nodes,
                steps=len(steps),
                busy_us=median([each.duration_us - each.data_wait_us for each in steps]),
                tokens=median([each.tokens for each in steps]),
            )
        )
    return tuple(found)


def _reading(line: list[RecordedStep]) -> Reading:
    if sum(1 for step in line if step.queue_us > step.duration_us) >= _BACKLOG_STEPS:
        return "backlog"
    waited_us = sum(step.queue_us + step.data_wait_us for step in line)
    spent_us = sum(step.duration_us for step in line)
    return "share" if waited_us * PPM > spent_us * _NOTHING_PPM else "unlimited"


class _Arrivals:
    """When work was there: tokens in order of arrival, and the time by which so many had come."""

    def __init__(self, line: list[RecordedStep]) -> None:
        self._tokens: list[int] = []
        self._times_ms: list[int] = []
        total, latest_ms = 0, 0
        for step in line:
            total += step.tokens
            taken_ms = step.end_ms - (step.duration_us - step.data_wait_us) // 1_000
            latest_ms = max(latest_ms, taken_ms - step.queue_us // 1_000)
            self._tokens.append(total)
            self._times_ms.append(latest_ms)
        # Behind the record work goes on arriving as it did in its last fifth.
        tail = max(len(line) * 4 // 5 - 1, 0)
        self._tail_ms = self._times_ms[-1] - self._times_ms[tail]
        self._tail_tokens = max(self._tokens[-1] - self._tokens[tail], 1)

    def ready_ms(self, tokens: int) -> int:
        """The time by which so many tokens had arrived, Unix milliseconds."""
        index = bisect_right(self._tokens, tokens - 1)
        if index == 0:
            return self._times_ms[0]
        if index == len(self._tokens):
            return self._times_ms[-1] + (tokens - self._tokens[-1]) * self._tail_ms // self._tail_tokens
        before, after = self._tokens[index - 1], self._tokens[index]
        span_ms = self._times_ms[index] - self._times_ms[index - 1]
        return self._times_ms[index - 1] + span_ms * (tokens - before) // (after - before)


class _Load:
    """How many tokens a second wanted to be trained, over time."""

    def __init__(self, line: list[RecordedStep]) -> None:
        self._times_ms: list[int] = []
        self._rates: list[float] = []
        rates = []
        for step in line:
            share = min(step.queue_us * PPM // max(step.duration_us, 1), _MAX_SHARE_PPM)
            rates.append(step.tokens * 1e6 / max(step.duration_us, 1) * PPM / (PPM - share))
            self._times_ms.append(step.end_ms - step.duration_us // 1_000)
        half = _SMOOTH_STEPS // 2
        for index in range(len(rates)):
            near = sorted(rates[max(index - half, 0) : index + half + 1])
            self._rates.append(near[len(near) // 2])

    def tokens_per_s(self, now_ms: int) -> float:
        """The load at a time: of the last step that had begun by then, or the first."""
        return self._rates[max(bisect_right(self._times_ms, now_ms) - 1, 0)]
