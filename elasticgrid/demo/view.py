"""What a person watching the demonstration sees, kept from events and samples as they come."""

from __future__ import annotations

import math

from elasticgrid.core import events as ev
from elasticgrid.core.evidence import EvidenceFold
from elasticgrid.core.grid import GridFold, JobKey
from elasticgrid.core.job import JobState, cost_microdollars
from elasticgrid.core.samples import decode_batch


class View:
    """The job as it is now, in the few numbers that matter to a watcher."""

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
            arrow = "" if event.data.action == "hold" else f"{event.data.current_nodes} -> {event.data.target_nodes} "
            self.last_decision = f"{event.data.action} {arrow}[{event.data.rule}] {event.data.reason}"
            if event.data.action != "hold":
                self.last_change = self.last_decision

    def see_samples(self, sequence: int, server_ms: int, data: bytes) -> None:
        """Take in one message of the job's samples."""
        self._evidence.apply(self.key, sequence, server_ms, data)
        batch = decode_batch(data)
        if isinstance(batch, str) or not batch.samples:
            return
        last = batch.samples[-1]
        self.step = max(self.step, last.step)
        if batch.rank == 0 and math.isfinite(last.loss):
            self.loss = last.loss

    @property
    def signals(self) -> ev.Signals:
        """The window's signals."""
        return self._evidence.signals(self.key)

    def cost_microdollars(self, now_ms: int) -> int:
        """What the job has cost so far."""
        return cost_microdollars(self.job, now_ms) if self.job is not None else 0
