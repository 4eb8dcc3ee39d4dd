"""What directly caused a fact of a launcher or an agent, told from the attempts, nodes and rounds that events name."""

from __future__ import annotations

from elasticgrid.core import events as ev
from elasticgrid.core.grid import JobKey

#: Where an event stands among those of its job, and its id.
_Told = tuple[int, str]


class _JobCauses:
    """What later events of a job may be caused by."""

    def __init__(self) -> None:
        self.events = 0
        #: What an agent acts on. It read it itself, so its own word for it is the better one.
        self.orders: set[str] = set()
        self.ends: dict[str, str] = {}
        #: By attempt.
        self.placed: dict[str, str] = {}
        self.requested: dict[str, str] = {}
        self.started: dict[str, str] = {}
        self.stop_requested: dict[str, str] = {}
        self.nodes: dict[str, tuple[str, ...]] = {}
        #: By node: the first decision that it is to go, and the last word that it is gone.
        self.leaving: dict[str, _Told] = {}
        self.gone: dict[str, _Told] = {}
        #: By round.
        self.worlds: dict[int, str] = {}
        self.drains: dict[int, str] = {}

    def take(self, event: ev.Event) -> None:
        self.events += 1
        told = (self.events, event.id)
        data = event.data
        if isinstance(data, ev.WorldDecided | ev.DrainDecided | ev.OutcomeDecided):
            self.orders.add(event.id)
        elif isinstance(data, ev.LaunchStopRequested | ev.LaunchStopped | ev.LaunchFailed):
            self.ends[event.id] = data.attempt
        match data:
            case ev.PlacementDecided():
                for line in data.assignments:
                    if line.action == "add" and line.id not in self.placed:
                        self.placed[line.id] = event.id
                        self.nodes[line.id] = tuple(f"{line.id}-{index}" for index in range(line.nodes))
                    for node in line.leaving:
                        self.leaving.setdefault(node, told)
            case ev.DrainDecided():
                self.drains.setdefault(data.round, event.id)
                for node in data.leaving:
                    self.leaving.setdefault(node, told)
            case ev.WorldDecided():
                self.worlds.setdefault(data.round, event.id)
            case ev.LaunchRequested():
                # A second intent of the same attempt is one that nobody followed.
                if self.requested.setdefault(data.attempt, event.id) == event.id:
                    self.nodes[data.attempt] = data.node_ids
            case ev.LaunchStarted():
                self.started.setdefault(data.attempt, event.id)
            case ev.LaunchStopRequested():
                self.stop_requested.setdefault(data.attempt, event.id)
            case ev.NodeLeft() | ev.NodeLost():
                self.gone[data.node] = told
            case _:
                pass

    def of(self, data: ev.EventData) -> str:
        match data:
            case ev.LaunchRequested():
                return self.placed.get(data.assignment, "")
            case ev.LaunchStarted() | ev.NodeJoined():
                return self.requested.get(data.attempt, "")
            case ev.LaunchStopRequested():
                return self._release(data.attempt)
            case ev.LaunchStopped():
                return self.stop_requested.get(data.attempt) or self._release(data.attempt)
            case ev.LaunchFailed():
                return self.stop_requested.get(data.attempt) or self.requested.get(data.attempt, "")
            case ev.NodeLost():
                return self.started.get(data.attempt) or self.requested.get(data.attempt, "")
            case ev.NodeDrained():
                return self.drains.get(data.round) or self.worlds.get(data.round, "")
            case ev.NodeLeft():
                return self.leaving.get(data.node, (0, ""))[1]
            case (
                ev.NodeStarted()
                | ev.NodeCheckpointed()
                | ev.NodeFinished()
                | ev.NodeFailed()
                | ev.NodeStuck()
                | ev.NodeReclassified()
            ):
                return self.worlds.get(data.round, "")
            case _:
                return ""

    def agrees(self, data: ev.EventData, said: str) -> bool:
        """Whether what an agent's fact names can be its cause."""
        match data:
            case ev.NodeJoined():
                return said == self.requested.get(data.attempt, "")
            case ev.NodeLeft():
                return said in self.orders or data.node in self.nodes.get(self.ends.get(said, ""), ())
            case ev.NodeCheckpointed() | ev.NodeDrained():
                return said in self.orders
            case _:
                return said in self.worlds.values()

    def _release(self, attempt: str) -> str:
        """Why nothing of a launch is wanted any more: the last of its nodes went, or was told to."""
        nodes = self.nodes.get(attempt, ())
        gone = [self.gone[node] for node in nodes if node in self.gone]
        leaving = [self.leaving[node] for node in nodes if node in self.leaving]
        return max(gone if gone and len(gone) == len(nodes) else leaving, default=(0, ""))[1]


class DirectCauses:
    """Told every event of a log in order, it says of a fact what caused it."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, _JobCauses] = {}

    def take(self, event: ev.Event) -> None:
        """One more event."""
        self._jobs.setdefault((event.tenant, event.job), _JobCauses()).take(event)

    def forget(self, key: JobKey) -> None:
        """Nothing more is caused by what a job did."""
        self._jobs.pop(key, None)

    def of(self, key: JobKey, data: ev.EventData) -> str:
        """The id of the event that causes this fact, if it is recorded next; empty when the log has none."""
        job = self._jobs.get(key)
        return job.of(data) if job is not None else ""

    def told(self, event: ev.Event) -> str:
        """The id of the event that caused this one, which is not taken yet; empty for what came from outside.

        It is what the event itself says, but where older launchers and agents could not say it: they named no cause
        of a node that joined, and whatever happened to come last as the one of a launch.
        """
        said = event.causation_id
        job = self._jobs.get((event.tenant, event.job))
        if job is None:
            return said
        if ev.writer_of(ev.type_of(event.data)) == "node":
            came_unbidden = not said and not isinstance(event.data, ev.NodeJoined)
            if came_unbidden or job.agrees(event.data, said):
                return said
        return job.of(event.data) or said
