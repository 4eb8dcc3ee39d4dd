"""What decides for a run on each of its nodes, when it is this node's turn.

All nodes ask the same pure functions of the same log; whose append comes first has decided. A node that is first in
line does what is due at once, each further one a little later, so that not all of them try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

import msgspec
import nats.errors
import structlog

from elasticgrid.core import events as ev
from elasticgrid.core.errors import BusError, Conflict
from elasticgrid.core.names import derived_id
from elasticgrid.core.run_plan import Verdict, decide, decision_events, turn_of, verdict
from elasticgrid.core.run_state import RUN_TENANT
from elasticgrid.elastic.config import LaunchConfig
from elasticgrid.elastic.presence import Presence
from elasticgrid.elastic.run_view import RETRY_S, RunView
from elasticgrid.log.port import EventLog, Expectation, Scope

#: How much later the next node tries what is due, so that not all of them do at once; and the most that is waited.
TURN_S: Final = 0.3
TURNS_MOST: Final = 20

_log = structlog.get_logger("elasticgrid.elastic")


class RunDecider:
    """One node's part in the decisions of a run.

    Args:
        config: the run's.
        node: this node.
        view: the run as this node reads it, followed by somebody else.
        presence: whom this node has heard of.

    Attributes:
        verdict: why this node must end before the run does; None while nothing says so.
    """

    def __init__(self, config: LaunchConfig, node: str, view: RunView, presence: Presence) -> None:
        self.verdict: Verdict | None = None
        self._config = config
        self._settings = config.settings
        self._node = node
        self._view = view
        self._presence = presence
        self._due_since: dict[str, float] = {}
        self._appended = 0

    async def run(self, log: EventLog, *, end: Callable[[str, int], None], bus_is_there: Callable[[], bool]) -> None:
        """Append what is due, for ever.

        Args:
            log: where.
            end: told a reason and an exit code when this node must end.
            bus_is_there: whether other nodes could be heard.
        """
        told = False
        while True:
            await self._view.news(self._config.monitor_interval_s)
            as_of_ms = self._view.now_ms()
            if self.verdict is None:
                self.verdict = verdict(self._view.state, self._settings, self._node, as_of_ms)
                if self.verdict is not None and self._view.state.outcome is None:
                    end(self.verdict.kind, 1)
            try:
                await self._report_lost(log, bus_is_there=bus_is_there())
                await self._append_due(log, as_of_ms)
            except (BusError, nats.errors.Error, OSError) as error:
                if not told:
                    _log.warning("the run's log cannot be written; trying on", error=str(error))
                told = True
                await asyncio.sleep(RETRY_S)
            else:
                told = False

    async def _append_due(self, log: EventLog, as_of_ms: int) -> None:
        state = self._view.state
        if self._node not in state.nodes or state.sequence < self._appended:
            return
        due = f"decision {state.decisions + 1}"
        decision = decide(state, self._settings, as_of_ms)
        if not decision:
            self._due_since.pop(due, None)
            return
        if not self._is_turn(due):
            return
        events = decision_events(state, self._settings, decision, as_of_ms)
        decisions = Scope(tenant=RUN_TENANT, job=self._config.run_id, writer="decision")
        try:
            _, self._appended = await log.append(events, expect=Expectation(decisions, state.decision_sequence))
        except Conflict:
            _log.debug("another node decided first", run=self._config.run_id, decision=state.decisions + 1)
            self._appended = max(self._appended, await log.last_sequence(decisions))
        else:
            _log.info("decided", run=self._config.run_id, what=[ev.type_of(data) for data in decision])

    async def _report_lost(self, log: EventLog, *, bus_is_there: bool) -> None:
        state = self._view.state
        nodes = [node.id for node in state.nodes.values() if node.status == "joined" and node.id != self._node]
        silent = self._presence.silent(nodes, monotonic(), bus_is_there=bus_is_there)
        for name, silent_s in silent.items():
            if not self._is_turn(f"loss of {name}", tuple(silent)):
                continue
            node = self._view.state.nodes[name]
            # The same node's loss has the same id, whoever says it.
            event = ev.Event(
                id=derived_id(node.joined_ms, RUN_TENANT, self._config.run_id, name, "lost"),
                time_ms=self._view.now_ms(),
                tenant=RUN_TENANT,
                job=self._config.run_id,
                causation_id=self._view.state.last_event_id,
                actor=f"run:{self._node}",
                data=ev.NodeLost(
                    node=name, attempt=node.attempt, evidence="silent", text=f"no sign of life for {silent_s:.1f} s"
                ),
            )
            _, last = await log.append([event])
            self._appended = max(self._appended, last)
            del self._due_since[f"loss of {name}"]

    def _is_turn(self, what: str, without: tuple[str, ...] = ()) -> bool:
        """Whether what is due is this node's to do: at once for the first node, a little later for each further one."""
        since_s = self._due_since.setdefault(what, monotonic())
        state = self._view.state
        nodes = {name: node for name, node in state.nodes.items() if name not in without}
        turn = turn_of(msgspec.structs.replace(state, nodes=nodes), self._node)
        return monotonic() - since_s >= min(turn, TURNS_MOST) * TURN_S
