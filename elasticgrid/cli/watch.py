"""`jobs watch`: a live view of one job on a terminal, and its events as lines everywhere else."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from elasticgrid.cli.asked_for import parse_job
from elasticgrid.cli.failures import INTERRUPTED, OK
from elasticgrid.cli.hints import next_command
from elasticgrid.cli.options import DataDir, JobArgument, Json, KeyFile, Output, Tenant, Url, chosen, flags
from elasticgrid.cli.output import (
    Format,
    clock,
    dollars,
    on_terminal,
    plain_terminal,
    print_line,
    print_text,
    say,
    stdout,
    table_of,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from elasticgrid.cli.client import Gateway
    from elasticgrid.projections.results import EventView, JobDetail, JobSummary
    from elasticgrid.review.series import JobSeries

#: How often the job is asked for besides its events: steps and cost change without any.
REFRESH_S: Final = 1.0
#: How many of these go by until its steps are asked for again: the gateway folds the whole job for that.
_STEPS_EVERY: Final = 5
_MAX_NODES: Final = 8
_LAST_EVENTS: Final = 200
TERMINAL: Final = ("completed", "failed", "cancelled")


def watch(
    job: JobArgument,
    tenant: Tenant = None,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Follow a job from its beginning until it is over or Ctrl-C.

    On a terminal this is a live view; elsewhere it is one line per event.

    Example: elasticgrid jobs watch elastic-numpy-abc123
    """
    from elasticgrid.cli.client import gateway, job_path

    wanted = chosen(output, json)
    where = flags(url, key_file, data)
    tenant, job = parse_job(job, tenant)
    with gateway(where) as grid:
        events = grid.events(job_path(job, "events", "stream"), after=0, tenant=tenant)
        try:
            if wanted is Format.TEXT and not plain_terminal():
                live(grid, job, tenant, events)
            else:
                _lines(events, wanted)
        except KeyboardInterrupt:
            tell_of_going_on(job, tenant, where)
            return INTERRUPTED
    return OK


def tell_of_going_on(
    job: str, tenant: str | None, where: Mapping[str, str | None], *, verb: str = "jobs watch", flag: str = ""
) -> None:
    """To whoever stops looking at a job: that it goes on, and how to look again with `verb`, or to end it."""
    again = next_command(verb, job, *filter(None, [flag]), tenant=tenant, where=where)
    say(f"the job goes on; look again with: {again}")
    say(f"cancel it with: {next_command('jobs cancel', job, tenant=tenant, where=where)}")


def _lines(events: Iterator[EventView], output: Format) -> None:
    for event in events:
        if output is Format.TEXT:
            when = clock(event.recorded_ms, short=on_terminal())
            print_text(f"{when} {event.sequence:6} {event.type:24} {event.text}")
        else:
            print_line(event)
        if event.type == "decision.outcome":
            return


def live(grid: Gateway, job: str, tenant: str | None, events: Iterator[EventView]) -> None:
    """Show a job live on the terminal until it is over."""
    from rich.live import Live

    view = LiveView(grid, job, tenant)
    view.refresh()
    with view.refreshed(), Live(get_renderable=view.render, console=stdout(), refresh_per_second=4):
        for event in events:
            view.see(event)
            if event.type == "decision.outcome":
                view.refresh()
                return


class LiveView:
    """What is shown of a job: its size and cost, its nodes, and the last events.

    Args:
        grid: where it is asked for.
        job, tenant: which one.
    """

    def __init__(self, grid: Gateway, job: str, tenant: str | None) -> None:
        self._grid = grid
        self._job = job
        self._tenant = tenant
        self._detail: JobDetail | None = None
        self._series: JobSeries | None = None
        self._refreshed = 0
        self._events: deque[EventView] = deque(maxlen=_LAST_EVENTS)

    def see(self, event: EventView) -> None:
        """Take in an event."""
        self._events.append(event)

    def refresh(self) -> None:
        """Ask for the job as of now, and now and then for its steps."""
        from elasticgrid.cli.client import job_path
        from elasticgrid.core.errors import ElasticGridError
        from elasticgrid.projections.results import JobDetail
        from elasticgrid.review.series import JobSeries

        self._detail = self._grid.get(job_path(self._job), JobDetail, tenant=self._tenant, view="full")
        if self._refreshed % _STEPS_EVERY == 0:
            # An older gateway has none; what decisions say of the steps is shown then.
            with contextlib.suppress(ElasticGridError):
                self._series = self._grid.get(job_path(self._job, "series"), JobSeries, tenant=self._tenant)
        self._refreshed += 1

    @contextlib.contextmanager
    def refreshed(self) -> Iterator[None]:
        """Ask again and again while the block runs."""
        from elasticgrid.core.errors import ElasticGridError

        over = threading.Event()

        def ask() -> None:
            while not over.wait(REFRESH_S):
                # The stream of events says when the gateway is gone.
                with contextlib.suppress(ElasticGridError):
                    self.refresh()

        thread = threading.Thread(target=ask, name="refresh", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def render(self) -> RenderableType:
        """The view as it is now, no higher than the terminal."""
        from rich.console import Group
        from rich.text import Text

        detail = self._detail
        if detail is None:
            return Text("")
        nodes = [node for node in detail.nodes if node.status not in ("left", "lost")][:_MAX_NODES]
        summary = job_rows(detail, self._series)
        parts: list[RenderableType] = [table_of(("what", "~value"), summary), Text("")]
        if nodes:
            rows = [(node.id, node.provider, node.status, str(node.round), str(node.last_step)) for node in nodes]
            parts += [table_of(("!node", "provider", "status", "#round", "#last report"), rows), Text("")]
        left = max(stdout().height - len(summary) - len(nodes) - 7, 3)
        last = [(clock(event.recorded_ms, short=True), event.type, event.text) for event in list(self._events)[-left:]]
        parts.append(table_of(("time", "event", "~what"), last))
        return Group(*parts)


def job_rows(detail: JobDetail, series: JobSeries | None = None) -> list[tuple[str, str]]:
    """The job in a few lines; with `series` its last steps are of now, else as of the last decision on its size."""
    job = detail.job
    over = job.phase in TERMINAL
    train = "nodes train" if job.world_nodes != 1 else "node trains"
    size = f"{job.world_nodes} {train}, {job.target_nodes} wanted, {job.min_nodes}..{job.max_nodes} allowed"
    rows = [("job", f"{job.id} of {job.tenant}"), ("phase", job.phase), ("size", size)]
    if where := _by_provider(detail):
        rows.append(("nodes", where))
    told = f"step {_steps_done(detail)}" + ("" if over else " at least")
    rows.append(("progress", f"round {job.round}, {told}, checkpoint at step {job.checkpoint_step}"))
    if measured := _last_steps(detail, series):
        rows.append(("steps", measured))
    rows += [
        ("outcome", outcome_of(job)) if over else ("decision", _last_decision(job) or "none yet"),
        ("cost", f"{dollars(job.cost_microdollars, places=4)}, now {dollars(job.price_microdollars_per_hour)}/h"),
    ]
    if job.waiting and not over:
        rows.append(("waiting", job.waiting))
    if job.paused and not over:
        rows.append(("paused", job.paused))
    return rows


def outcome_of(job: JobSummary) -> str:
    """How a job ended and why; of one that goes on the last decision about its size, or what it waits for."""
    if job.phase in TERMINAL:
        return job.phase + (f": {job.outcome_reason}" if job.outcome_reason else "")
    return _last_decision(job) or job.waiting


def _last_decision(job: JobSummary) -> str:
    return f"{job.action} [{job.rule}] {job.reason}" if job.rule else ""


def _steps_done(detail: JobDetail) -> int:
    """The furthest that the log tells of: nodes report at the ends of rounds, decisions say what they saw."""
    scale = detail.facts.scale
    seen = scale.signals.last_step if scale is not None and scale.signals.round == detail.job.round else 0
    return max(detail.job.checkpoint_step, seen, *(node.last_step for node in detail.nodes))


def _by_provider(detail: JobDetail) -> str:
    """Nodes that there are, by provider, those that have yet to join apart."""
    there = [node for node in detail.nodes if node.status not in ("left", "lost")]
    parts = []
    for name in dict.fromkeys(node.provider for node in there):
        of_it = [node for node in there if node.provider == name]
        coming = sum(node.status == "planned" for node in of_it)
        leaving = sum(node.status == "leaving" for node in of_it)
        notes = [f"{number} {what}" for number, what in ((coming, "starting"), (leaving, "leaving")) if number]
        parts.append(f"{len(of_it)} on {name}" + (f" ({', '.join(notes)})" if notes else ""))
    return ", ".join(parts)


def _last_steps(detail: JobDetail, series: JobSeries | None) -> str:
    """How long steps take, how much of that they wait, and how much they do."""
    if series is not None and series.steps.time_ms:
        steps = series.steps
        return _steps(steps.step_s[-1], steps.queue_share[-1], steps.tokens_per_s[-1])
    signals = detail.facts.scale.signals if detail.facts.scale is not None else None
    if signals is None or not signals.step_us or not signals.window_us:
        return ""
    throughput = signals.tokens * 1_000_000 / signals.window_us
    return _steps(signals.step_us / 1_000_000, signals.queue_us / signals.step_us, throughput)


def _steps(step_s: float, queue_share: float, tokens_per_s: float) -> str:
    return f"{step_s:.3g} s each, {queue_share:.0%} of it waiting for a worker, {tokens_per_s:,.0f} tokens/s"
