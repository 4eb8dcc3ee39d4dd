"""Histories of runs, event by event, with no process and no clock."""

from __future__ import annotations

from msgspec.structs import replace

from elasticgrid.core import events as ev
from elasticgrid.core.run_plan import Decision, decide, decision_events
from elasticgrid.core.run_state import RUN_TENANT, RunSettings, RunState, evolve, initial


class History:
    """A run's log, written by hand, and what is decided from it."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self.state: RunState = initial("run")
        self.now_ms = 1_000_000
        self.decided: list[Decision] = []
        self.events: list[ev.Event] = []

    def record(self, data: ev.EventData, basis: ev.Basis | None = None, event_id: str = "") -> None:
        """Append an event."""
        number = len(self.events) + 1
        event = ev.Event(
            id=event_id or f"e{number}",
            time_ms=self.now_ms,
            tenant=RUN_TENANT,
            job="run",
            actor="test",
            basis=basis,
            data=data,
        )
        self.events.append(event)
        self.state = evolve(self.state, ev.Recorded(number, self.now_ms, event))

    def join(self, *nodes: str) -> None:
        """Nodes join, in this order."""
        for node in nodes:
            self.record(
                ev.NodeJoined(node=node, attempt=node, provider="run", host=f"{node}.test", free_port=29_500, pid=1)
            )

    def wait(self, duration_ms: int) -> None:
        """Time passes."""
        self.now_ms += duration_ms

    def ask(self) -> Decision:
        """What is decided now; it is appended."""
        decision = decide(self.state, self.settings, self.now_ms)
        if decision:
            self.decided.append(decision)
            for event in decision_events(self.state, self.settings, decision, self.now_ms):
                self.record(event.data, event.basis, event.id)
        return decision

    def settle(self) -> list[Decision]:
        """Ask until nothing more is decided."""
        found = []
        while decision := self.ask():
            found.append(decision)
            assert len(found) < 10, found
        return found

    def drain(self, *nodes: str) -> None:
        """The nodes' workers have stopped."""
        for node in nodes:
            self.record(ev.NodeDrained(node=node, round=self.state.round, last_step=7, clean=True, free_port=30_000))

    def fail(self, node: str, *, time_ms: int = 0, message: str = "boom", code: int = 1) -> None:
        """A worker of a node fails."""
        exits = (ev.WorkerExit(rank=0, code=code, message=message, time_ms=time_ms or self.now_ms),)
        self.record(
            ev.NodeFailed(
                node=node, round=self.state.round, last_step=7, exits=exits, failure="app_failed", free_port=30_000
            )
        )

    def stick(self, node: str, detail: str = "rank 0 has taken no step for 9 s") -> None:
        """A node's workers live but do not get on."""
        self.record(
            ev.NodeStuck(
                node=node,
                round=self.state.round,
                what="no_step",
                last_step=7,
                since_ms=self.now_ms - 9_000,
                detail=detail,
                stacks="in wait",
            )
        )

    def finish(self, *nodes: str) -> None:
        """The nodes' workers are done."""
        for node in nodes:
            self.record(ev.NodeFinished(node=node, round=self.state.round, last_step=9, free_port=30_000))

    def lose(self, node: str) -> None:
        """A node is not heard of any more."""
        self.record(ev.NodeLost(node=node, attempt=node, evidence="silent"))

    def leave(self, node: str) -> None:
        """A node says that it goes."""
        self.record(ev.NodeLeft(node=node, reason="terminated"))

    def other_settings(self, **fields: int | str) -> RunSettings:
        """The settings with some of them changed."""
        return replace(self.settings, **fields)
