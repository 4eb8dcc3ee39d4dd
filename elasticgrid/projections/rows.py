"""From the grid's fold to rows. The fold is the core's: what an event means is decided there and only written here."""

from __future__ import annotations

import hashlib
from typing import Any, Final, TypeAlias

import msgspec

from elasticgrid.core import events as ev
from elasticgrid.core.grid import GridFold, JobKey
from elasticgrid.core.job import GONE, JobState, LaunchState, NodeState, initial
from elasticgrid.core.spec import JobSpec
from elasticgrid.log.archive_secrets import shown, shown_text, without_credentials
from elasticgrid.log.codec import encode
from elasticgrid.projections.log_counts import LogCounts
from elasticgrid.projections.results import EventView, JobFacts
from elasticgrid.projections.standing import shown_phase, waiting
from elasticgrid.projections.text import event_text, placement_text

Row: TypeAlias = tuple[int | str | None, ...]

_MAX_INTEGER: Final = 2**63 - 1
_DECISIONS: Final = (
    ev.ScaleDecided,
    ev.PlacementDecided,
    ev.DrainDecided,
    ev.WorldDecided,
    ev.OutcomeDecided,
    ev.GapDecided,
)


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """What to write, by table: rows to insert or to replace."""

    jobs: tuple[Row, ...]
    nodes: tuple[Row, ...]
    launches: tuple[Row, ...]
    decisions: tuple[Row, ...]
    events: tuple[Row, ...]
    views: tuple[EventView, ...]


class ViewFold:
    """Folds events and tells which rows changed. The fold is of events as they are; rows have no credentials.

    Attributes:
        grid: the core's fold.
        counts: totals over all events so far.
        chain: a hash over all events so far, each with its sequence: two logs with the same chain are the same.
    """

    def __init__(self) -> None:
        self.grid = GridFold(memory=0)
        self.counts = LogCounts()
        self.chain = b""
        self._views: list[EventView] = []
        self._decisions: list[Row] = []
        self._changed: dict[JobKey, None] = {}
        self._written: dict[JobKey, JobState] = {}
        #: Jobs as they were submitted, without credentials.
        self._shown: dict[JobKey, JobSpec] = {}
        self._gone_ms: dict[tuple[str, str, str], int] = {}

    @property
    def sequence(self) -> int:
        """The last event folded."""
        return self.grid.sequence

    def apply(self, recorded: ev.Recorded) -> None:
        """Fold one event. A second time changes nothing."""
        if recorded.sequence <= self.grid.sequence:
            return
        raw = recorded.raw or (encode(recorded.event) if isinstance(recorded.event, ev.Event) else recorded.event.raw)
        self.chain = hashlib.sha256(self.chain + recorded.sequence.to_bytes(8, "big") + raw).digest()
        event = recorded.event
        key = (event.tenant, event.job)
        before = self.grid.job(key)
        concerned = self.grid.apply(recorded)
        after = self.grid.job(key)
        self.counts.apply(recorded, before, after)
        took_effect = isinstance(event, ev.Event)
        if concerned is not None and after is not None:
            self._changed[key] = None
            self._note_gone(before, after, recorded.recorded_ms)
            took_effect = took_effect and after.illegal == (before.illegal if before is not None else 0)
        self._views.append(_view(recorded, raw, took_effect))
        if isinstance(event, ev.Event) and isinstance(event.data, _DECISIONS):
            self._decisions.append(_decision_row(recorded.sequence, event, event.data))

    def take(self) -> Rows:
        """The rows that changed since the last call."""
        jobs: list[Row] = []
        nodes: list[Row] = []
        launches: list[Row] = []
        for key in self._changed:
            state = self.grid.job(key)
            if state is None or state.spec is None:
                continue
            before = self._written.get(key) or initial(*key)
            self._written[key] = state
            if key not in self._shown:
                self._shown[key] = shown(state.spec)
            jobs.append(_job_row(state, self._shown[key]))
            nodes.extend(
                _node_row(state, node, self._gone_ms.get((state.tenant, state.id, node.id), 0))
                for node in state.nodes.values()
                if before.nodes.get(node.id) is not node
            )
            launches.extend(
                _launch_row(state, launch)
                for launch in state.launches.values()
                if before.launches.get(launch.id) is not launch
            )
        views, decisions = self._views, self._decisions
        self._views, self._decisions, self._changed = [], [], {}
        return Rows(
            jobs=tuple(jobs),
            nodes=tuple(nodes),
            launches=tuple(launches),
            decisions=tuple(decisions),
            events=tuple(_event_row(view) for view in views),
            views=tuple(views),
        )

    def _note_gone(self, before: JobState | None, after: JobState, at_ms: int) -> None:
        """Remember until when a node costs; the job's state only keeps the sum."""
        if before is None or before.nodes is after.nodes:
            return
        for node in after.nodes.values():
            old = before.nodes.get(node.id)
            if old is not None and old is not node and node.status in GONE and old.status not in GONE:
                self._gone_ms[(after.tenant, after.id, node.id)] = at_ms


def _row(*values: int | str | None) -> Row:
    """A row that SQLite can hold, whatever a writer of events made up."""
    return tuple(max(-_MAX_INTEGER, min(value, _MAX_INTEGER)) if isinstance(value, int) else value for value in values)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _job_row(state: JobState, spec: JobSpec) -> Row:
    scale, placement, phase = state.last_scale, state.last_placement, shown_phase(state)
    facts = JobFacts(
        spec=spec,
        scale=scale,
        placement=placement,
        members=state.members,
        checkpoint=state.checkpoint,
        drain_reason=state.drain_reason,
        app_failures=state.app_failures,
        infra_failures=state.infra_failures,
        failure_text=shown_text(state.failure_text),
        samples_published=state.samples_published,
        samples_dropped=state.samples_dropped,
        illegal=state.illegal,
        last_illegal=state.last_illegal,
        strays=state.strays,
        unknown_type=state.unknown_type,
    )
    return _row(
        state.tenant,
        state.id,
        spec.name,
        phase,
        state.band,
        state.min_nodes,
        state.max_nodes,
        0 if state.terminal else state.target_nodes,
        sum(1 for node in state.nodes.values() if node.status in ("joined", "leaving")),
        len(state.members) if phase in ("running", "draining") else 0,
        state.round,
        state.decisions,
        scale.action if scale is not None else "",
        scale.rule if scale is not None else "",
        scale.reason if scale is not None else "",
        waiting(state),
        state.paused,
        int(state.cancel_requested is not None),
        state.ending_reason if state.terminal else "",
        state.checkpoint.step if state.checkpoint is not None else 0,
        state.submitted_ms,
        state.finished_ms,
        state.sequence,
        state.idempotency_key,
        _json(facts),
    )


def _node_row(state: JobState, node: NodeState, gone_ms: int) -> Row:
    launch = state.launches[node.assignment]
    return _row(
        state.tenant,
        state.id,
        node.id,
        node.assignment,
        node.provider,
        launch.market,
        node.status,
        node.host,
        node.started_round,
        node.last_step,
        launch.price_microdollars_per_hour,
        node.charged_from_ms,
        gone_ms,
    )


def _launch_row(state: JobState, launch: LaunchState) -> Row:
    return _row(
        state.tenant,
        state.id,
        launch.id,
        launch.provider,
        launch.market,
        launch.status,
        len(launch.nodes),
        launch.price_microdollars_per_hour,
        launch.placed_ms,
        launch.released_ms,
        launch.handle,
        launch.failure,
    )


def _decision_row(sequence: int, event: ev.Event, data: ev.DecisionData) -> Row:
    number = event.basis.number if event.basis is not None else 0
    rule, action, reason = "", "", event_text(event)
    from_nodes: int | None = None
    to_nodes: int | None = None
    match data:
        case ev.ScaleDecided():
            rule, action, reason = data.rule, data.action, data.reason
            from_nodes, to_nodes = data.current_nodes, data.target_nodes
        case ev.PlacementDecided():
            rule, reason = "placement", placement_text(data)
            from_nodes, to_nodes = data.demand_nodes, data.placed_nodes
        case ev.DrainDecided():
            rule = data.reason
        case ev.WorldDecided():
            rule, to_nodes = "world", len(data.members)
        case ev.OutcomeDecided():
            rule = data.outcome
        case ev.GapDecided():
            rule = data.cause
    kind = ev.type_of(data)
    return _row(sequence, event.tenant, event.job, number, kind, rule, action, shown_text(reason), from_nodes, to_nodes)


def _view(recorded: ev.Recorded, raw: bytes, took_effect: bool) -> EventView:
    event = recorded.event
    known = isinstance(event, ev.Event)
    return EventView(
        sequence=recorded.sequence,
        recorded_ms=recorded.recorded_ms,
        tenant=event.tenant,
        job=event.job,
        type=ev.type_of(event.data) if isinstance(event, ev.Event) else event.type,
        actor=event.actor if isinstance(event, ev.Event) else "",
        known=known,
        took_effect=took_effect,
        text=shown_text(event_text(event)),
        event=_readable(without_credentials(raw)),
    )


def _readable(raw: bytes) -> msgspec.Raw:
    """The event's own JSON on one line, or a JSON text of it where fields nobody reads are no JSON."""
    try:
        msgspec.json.decode(raw)
        return msgspec.Raw(msgspec.json.format(raw, indent=-1) if b"\n" in raw or b"\r" in raw else raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return msgspec.Raw(msgspec.json.encode(raw.decode("utf-8", "replace")))


def _event_row(view: EventView) -> Row:
    return _row(
        view.sequence,
        view.recorded_ms,
        view.tenant,
        view.job,
        view.type,
        view.actor,
        int(view.known),
        int(view.took_effect),
        view.text,
        bytes(view.event).decode(),
    )
