"""What a job cost, computed from the raw facts alone: the check on what the fold of the job says."""

from __future__ import annotations

from elasticgrid.core import events as ev

_HOUR_MS = 3_600_000


class CostLedger:
    """The nodes of one job: each costs from its launch until it is gone, at the price it was launched for."""

    def __init__(self) -> None:
        self._attempts: dict[str, ev.LaunchRequested] = {}
        self._attempt_of: dict[str, str] = {}
        self._since_ms: dict[str, int] = {}
        self._gone: set[str] = set()
        self._settled = 0

    def observe(self, data: ev.EventData, recorded_ms: int) -> None:
        """Take in a fact of the launcher or an agent."""
        if isinstance(data, ev.NodeJoined):
            self._begin(data.node, recorded_ms)
        elif isinstance(data, ev.NodeLeft | ev.NodeLost):
            self._end(data.node, recorded_ms)
        elif isinstance(data, ev.LaunchRequested):
            self._attempts.setdefault(data.attempt, data)
            for node in data.node_ids:
                self._attempt_of.setdefault(node, data.attempt)
        elif isinstance(data, ev.LaunchStarted):
            for node in self._nodes_of(data.attempt):
                self._begin(node, recorded_ms)
        elif isinstance(data, ev.LaunchFailed | ev.LaunchStopped):
            for node in self._nodes_of(data.attempt):
                self._end(node, recorded_ms)

    def total_microdollars(self, as_of_ms: int) -> int:
        """Everything until `as_of_ms`."""
        return self._settled + sum(self._charge(node, since_ms, as_of_ms) for node, since_ms in self._since_ms.items())

    def _nodes_of(self, attempt: str) -> tuple[str, ...]:
        requested = self._attempts.get(attempt)
        return requested.node_ids if requested is not None else ()

    def _begin(self, node: str, at_ms: int) -> None:
        if node in self._attempt_of and node not in self._gone:
            self._since_ms.setdefault(node, at_ms)

    def _end(self, node: str, at_ms: int) -> None:
        if node not in self._attempt_of:
            return
        self._gone.add(node)
        since_ms = self._since_ms.pop(node, None)
        if since_ms is not None:
            self._settled += self._charge(node, since_ms, at_ms)

    def _charge(self, node: str, since_ms: int, until_ms: int) -> int:
        price = self._attempts[self._attempt_of[node]].price_microdollars_per_hour
        return max(until_ms - since_ms, 0) * price // _HOUR_MS
