"""What a person watching the demonstration sees, kept from events and samples as they come."""

from __future__ import annotations

import math
from typing import Final

from elasticgrid.core import events as ev
from elasticgrid.core.evidence import EvidenceFold
from elasticgrid.core.grid import GridFold, JobKey
from elasticgrid.core.job import GONE, JobState, cost_microdollars
from elasticgrid.core.samples import decode_batch

#: How much each step moves the loss that is shown.
_SMOOTHING: Final = 0.1


class View:
    """The job as it is now, in the few numbers that matter to a watcher.

    Attributes:
        loss: the training loss, smoothed over some ten steps; NaN before the first.
        step: the last step that was reported.
        last_decision, last_change: what was decided about the size last, and the last decision that changed it.
    """

    def __init__(self, key: JobKey) -> None:
        self.key = key
        self.grid = GridFold()
        self._evidence = EvidenceFold()
        self.loss = math.nan
        self.step = 0
        self.last_decision = "none yet"
        self.last_change = ""

    @property
    def job(self) -> JobState | None:
        """The job's fold, None before it was submitted."""
        return self.grid.job(self.key)

    def see_event(self, recorded: ev.Recorded) -> None:
        """Take in one event."""
        self.grid.apply(recorded)
        state = self.job
        if state is not None:
            self._evidence.open(state)
        event = recorded.event
        if isinstance(event, ev.UnknownEvent) or (event.tenant, event.job) != self.key:
            return
        if isinstance(event.data, ev.ScaleDecided):
            scale = event.data
            if scale.action == "hold":
                self.last_decision = f"hold [{scale.rule}] {scale.reason}"
            else:
                # Most reasons end with the sizes; said once is enough.
                reason = scale.reason.removesuffix(f"; {scale.current_nodes} -> {scale.target_nodes}")
                what = "grow" if scale.action == "up" else "shrink"
                self.last_change = f"{what} {scale.current_nodes} -> {scale.target_nodes} [{scale.rule}] {reason}"
                self.last_decision = self.last_change

    def see_samples(self, sequence: int, server_ms: int, data: bytes) -> None:
        """Take in one message of the job's samples."""
        self._evidence.apply(self.key, sequence, server_ms, data)
        batch = decode_batch(data)
        if isinstance(batch, str) or not batch.samples:
            return
        last = batch.samples[-1]
        self.step = max(self.step, last.step)
        for sample in batch.samples:
            if batch.rank == 0 and math.isfinite(sample.loss):
                known = sample.loss if math.isnan(self.loss) else self.loss
                self.loss = known + _SMOOTHING * (sample.loss - known)

    @property
    def signals(self) -> ev.Signals:
        """The window's signals."""
        return self._evidence.signals(self.key)

    def places(self) -> dict[str, int]:
        """Where the world's nodes are: how many on each provider."""
        counted: dict[str, int] = {}
        state = self.job
        if state is not None:
            for node in state.member_nodes:
                provider = state.nodes[node].provider
                counted[provider] = counted.get(provider, 0) + 1
        return counted

    @property
    def price_microdollars_per_hour(self) -> int:
        """What all nodes that are charged now cost in an hour."""
        state = self.job
        if state is None:
            return 0
        charged = [node for node in state.nodes.values() if node.charged_from_ms and node.status not in GONE]
        return sum(state.launches[node.assignment].price_microdollars_per_hour for node in charged)

    def cost_microdollars(self, now_ms: int) -> int:
        """What the job has cost so far."""
        return cost_microdollars(self.job, now_ms) if self.job is not None else 0
