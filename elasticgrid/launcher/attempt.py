"""One launch from its intent to its end: what the launcher does about it, one thing at a time.

The next thing follows from the fold and from what the core wants. It ends when its facts are folded, so nothing is
ever done twice because the log had not come round yet.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, TypeVar

import structlog

from elasticgrid.bus.authority import LaunchKey
from elasticgrid.core.errors import BusUnavailable, Conflict, ElasticGridError
from elasticgrid.core.events import (
    Event,
    EventData,
    LaunchFailed,
    LaunchRequested,
    LaunchStarted,
    LaunchStopped,
    LaunchStopRequested,
    NodeLost,
    Writer,
    type_of,
)
from elasticgrid.core.grid import JobKey
from elasticgrid.core.job import GONE, JobState, LaunchState
from elasticgrid.core.launching import Start, Stop, launch_actions, never_booted, not_joined_text
from elasticgrid.launcher.config import LauncherConfig
from elasticgrid.launcher.credential_desk import CredentialDesk
from elasticgrid.launcher.fact_writer import FactWriter
from elasticgrid.launcher.followed_grid import FollowedGrid
from elasticgrid.launcher.heartbeats import Heartbeats
from elasticgrid.launcher.launch_spec import REMOTE_ENGINES, engine_family, launch_document
from elasticgrid.launcher.provider_job import ProviderJob, Trouble
from elasticgrid.launcher.provider_threads import ProviderThreads
from elasticgrid.log.port import Scope

_log = structlog.get_logger("launcher")

T = TypeVar("T")

Step = Literal["start", "resolve", "watch", "stop", "none"]

#: What became of a launch that nobody saw fail.
RESTARTED: Final = Trouble("the launcher was restarted before the launch was complete", "transient")
FIRST_PAUSE_MS: Final = 500
LONGEST_PAUSE_MS: Final = 60_000


@dataclass(frozen=True)
class Means:
    """What every attempt of a launcher works with; `counts` says how often each fact was recorded."""

    config: LauncherConfig
    grid: FollowedGrid
    writer: FactWriter
    heartbeats: Heartbeats
    credentials: CredentialDesk
    threads: ProviderThreads
    counts: Counter[str] = field(default_factory=Counter)


def next_step(launch: LaunchState, action: Start | Stop | None) -> Step:
    """What to do about a launch of which nothing is under way in this launcher."""
    match launch.status:
        case "planned":
            return "start" if isinstance(action, Start) else "none"
        case "requested":
            return "resolve"
        case "started":
            return "stop" if isinstance(action, Stop) else "watch"
        case "stop_requested":
            return "stop"
        case _:
            return "none"


class Attempt:
    """One launch in the hands of this launcher.

    Args:
        means: what it works with.
        key: the job it is for.
        launch: as first seen.
        name: of its iroh-tinker job.
        on_idle: called when what was under way has ended.
    """

    def __init__(self, means: Means, key: JobKey, launch: LaunchState, name: str, on_idle: Callable[[], None]) -> None:
        self._means = means
        self._on_idle = on_idle
        self._key = key
        self._id = launch.id
        self._provider = launch.provider
        self._job = ProviderJob(means.config, name)
        self._since_ms = means.grid.now_ms
        self._task: asyncio.Task[None] | None = None
        self._polling: asyncio.Future[dict[int, str]] | None = None
        self._suspects: set[str] = set()
        self._answered_ms: dict[str, int] = {}
        self._failures = 0
        self._not_before_ms = 0
        self._said_foreign = False
        self._said_unknown = False

    @property
    def name(self) -> str:
        """Of its iroh-tinker job."""
        return self._job.name

    @property
    def credential_key(self) -> LaunchKey:
        """For whom its credential is."""
        return LaunchKey(*self._key, self._job.name)

    @property
    def task(self) -> asyncio.Task[None] | None:
        """What is under way, if anything."""
        return self._task if self._task is not None and not self._task.done() else None

    def consider(self, action: Start | Stop | None) -> None:
        """Begin the next thing there is to do, if nothing is under way."""
        now_ms = self._means.grid.now_ms
        if self.task is not None or now_ms < self._not_before_ms:
            return
        step = next_step(self._launch(), action)
        if step != "none":
            self._task = asyncio.create_task(self._do(step, action), name=f"{step} {self._job.name}")
            self._task.add_done_callback(lambda _: self._on_idle())

    async def _do(self, step: Step, action: Start | Stop | None) -> None:
        try:
            if step == "start":
                await self._start()
            elif step == "resolve":
                await self._resolve()
            elif step == "watch":
                await self._watch()
            else:
                await self._stop(action.reason if isinstance(action, Stop) else "the launcher was restarted in a stop")
            self._failures = 0
        except Exception as error:  # trouble with one launch must not reach the others
            self._failures += 1
            pause_ms = min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS << min(self._failures, 10))
            self._not_before_ms = self._means.grid.now_ms + pause_ms
            _log.exception("trouble with a launch", launch=self._job.name, step=step, error=str(error))

    # ----------------------------------------------------------------------------------------------------------------
    # Starting
    # ----------------------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        state, launch = self._state(), self._launch()
        known = self._means.grid.fleet.providers.get(self._provider)
        wanted = [index for index, node in enumerate(launch.nodes) if state.nodes[node].status == "planned"]
        if not wanted:
            await self._record(LaunchStopped(attempt=self._id, reason="its nodes were given up before it was launched"))
            return
        # Nodes are named by their index, so a node that was given up is launched too when a wanted one is behind it.
        nodes = wanted[-1] + 1
        intent = LaunchRequested(
            attempt=launch.id,
            assignment=launch.id,
            provider=launch.provider,
            engine=known.spec.engine if known is not None else "",
            nodes=nodes,
            node_ids=launch.nodes[:nodes],
            price_microdollars_per_hour=launch.price_microdollars_per_hour,
            market=launch.market,
        )
        request = self._event(state, intent, self._id)
        if known is not None:
            document = launch_document(state, launch, known.spec, nodes, self._means.config, request.id)
            await self._threads(partial(self._job.prepare, document))
        try:
            sequence = await self._means.writer.append_if(request, lambda: self._launch().status == "planned")
        except Conflict:
            await self._threads(self._job.discard)
            head = await self._catch_up("launch")
            self._means.writer.observe(self._key, head)
            return
        self._means.counts["requested"] += 1
        await self._means.grid.folded(sequence)
        given_up = self._wanted_action()
        if isinstance(given_up, Stop):
            # It was released while the intent was on its way: nothing was created and nothing needs to be.
            await self._record(LaunchStopped(attempt=self._id, reason=given_up.reason))
        elif known is None:
            text = f"provider {self._provider} is not part of the grid any more"
            await self._record(LaunchFailed(attempt=self._id, failure="transient", text=text))
        else:
            # The intent is in the log, so that a launcher that starts anew knows what to revoke.
            trouble = await self._issue_credential()
            await self._record_start(trouble or await self._threads(self._job.start))

    async def _issue_credential(self) -> Trouble | None:
        pause_s = FIRST_PAUSE_MS / 1000
        while True:
            try:
                await self._means.credentials.issue(self.credential_key)
            except BusUnavailable as error:
                _log.warning("a launch has no credential yet", launch=self._job.name, error=str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_MS / 1000)
            except (ElasticGridError, OSError) as error:
                return Trouble(f"its credential for the bus could not be made: {error}", "transient")
            else:
                return None

    async def _record_start(self, trouble: Trouble | None) -> None:
        if trouble is None:
            digest = await self._threads(self._job.bundle_sha256)
            await self._record(LaunchStarted(attempt=self._id, handle=self._job.name, bundle_sha256=digest))
        else:
            await self._record(LaunchFailed(attempt=self._id, failure=trouble.failure, text=trouble.text))

    async def _resolve(self) -> None:
        """An intent without an outcome: find out how far the launcher before this one came."""
        intent = self._means.grid.intent(self._key, self._id)
        if intent is None or await self._threads(self._job.request_id) != intent.event_id:
            if self._is_abandoned():
                text = f"nothing was heard of this launch for {self._means.config.silent_after_s:g} s"
                await self._record(LaunchFailed(attempt=self._id, failure="transient", text=text))
            return
        if await self._threads(self._job.adopt):
            await self._record_start(None)
            return
        trouble = await self._threads(self._job.failure) or RESTARTED
        await self._record_start(await self._threads(partial(self._job.release, trouble)))

    # ----------------------------------------------------------------------------------------------------------------
    # Watching
    # ----------------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        config = self._means.config
        self._not_before_ms = self._means.grid.now_ms + round(self._poll_s() * 500)
        statuses = await self._statuses()
        stopped = []
        for rank, node in enumerate(self._launch().nodes):
            if self._state().nodes[node].status in GONE:
                self._suspects.discard(node)
            elif statuses is None or statuses.get(rank) == "unknown":
                if self._is_silent(node):
                    text = f"no heartbeat for {config.silent_after_s:g} s, and its engine does not answer"
                    await self._record(NodeLost(node=node, attempt=self._id, evidence="silent", text=text))
            elif statuses.get(rank, "stopped") == "stopped":
                stopped.append((rank, node))
            else:
                self._suspects.discard(node)
                self._answered_ms[node] = self._means.grid.now_ms
        if stopped:
            await self._look_at_stopped(stopped)

    async def _look_at_stopped(self, stopped: list[tuple[int, str]]) -> None:
        """A node that stopped may just have said so: it is lost when that is not in the log by the next look."""
        seen_before = [(rank, node) for rank, node in stopped if node in self._suspects]
        self._suspects |= {node for _, node in stopped}
        if seen_before:
            await self._catch_up(None)
        for rank, node in seen_before:
            if self._state().nodes[node].status not in GONE:
                text = await self._threads(partial(self._job.tail, rank))
                await self._record(NodeLost(node=node, attempt=self._id, evidence="process_gone", text=text))
            self._suspects.discard(node)

    async def _statuses(self) -> dict[int, str] | None:
        """What the engine says of each rank; None when it does not say."""
        if self._polling is None:
            self._polling = self._threads(self._job.statuses)
        await asyncio.wait({self._polling}, timeout=self._means.config.engine_timeout_s)
        why = "no answer in time"
        if self._polling.done():
            polled, self._polling = self._polling, None
            try:
                statuses = polled.result()
            except Exception as error:  # an engine is somebody else's code; not to know is an answer
                why = str(error)
            else:
                self._said_unknown = False
                return statuses
        if not self._said_unknown:
            self._said_unknown = True
            _log.warning("an engine does not say how a launch is", launch=self._job.name, error=why)
        return None

    def _is_abandoned(self) -> bool:
        """Whether a launch of another launcher's folder was not heard of for so long that nobody has it in hand."""
        if not self._said_foreign:
            self._said_foreign = True
            _log.warning("a launch of which this folder knows nothing is left alone", launch=self._job.name)
        self._not_before_ms = self._means.grid.now_ms + round(self._means.config.poll_s * 1000)
        return all(self._is_silent(node) for node in self._launch().nodes)

    def _is_silent(self, node: str) -> bool:
        # That its engine said it runs is a word of the node, too: what counts is how long there was neither.
        since_ms = max(self._since_ms, self._answered_ms.get(node, 0))
        silent_ms = self._means.heartbeats.silent_ms(self._key, node, since_ms)
        return silent_ms is not None and silent_ms >= self._means.config.silent_after_s * 1000

    # ----------------------------------------------------------------------------------------------------------------
    # Stopping
    # ----------------------------------------------------------------------------------------------------------------

    async def _stop(self, reason: str) -> None:
        is_ours = bool(await self._threads(self._job.request_id))
        if not is_ours and not self._is_abandoned():
            return
        if self._launch().status != "stop_requested":
            await self._record(LaunchStopRequested(attempt=self._id, reason=reason))
        if is_ours and not await self._threads(self._job.stop):
            self._not_before_ms = self._means.grid.now_ms + FIRST_PAUSE_MS
            _log.warning("something of a launch still runs after its stop", launch=self._job.name)
            return
        if never_booted(self._state(), self._launch()):
            tails = [await self._threads(partial(self._job.tail, rank)) for rank in range(len(self._launch().nodes))]
            said = "\n".join(text for text in tails if text)
            text = f"{not_joined_text(self._state())}\n{said}".rstrip()
            await self._record(LaunchFailed(attempt=self._id, failure="boot_failed", text=text))
        else:
            await self._record(LaunchStopped(attempt=self._id, reason=reason))

    # ----------------------------------------------------------------------------------------------------------------
    # What all of them use
    # ----------------------------------------------------------------------------------------------------------------

    async def _catch_up(self, writer: Writer | None) -> int:
        """Wait until everything about the job that is in the log now is folded; returns the last sequence of it."""
        scope = Scope(*self._key, writer)
        head = await self._means.writer.last_sequence(scope)
        grid = self._means.grid
        await grid.folded(await self._means.writer.newest_event(scope, after=grid.sequence, through=head))
        return head

    def _state(self) -> JobState:
        state = self._means.grid.job(self._key)
        assert state is not None
        return state

    def _launch(self) -> LaunchState:
        return self._state().launches[self._id]

    def _poll_s(self) -> float:
        config = self._means.config
        provider = self._means.grid.fleet.providers.get(self._provider)
        is_remote = provider is not None and engine_family(provider.spec.engine) in REMOTE_ENGINES
        return config.remote_poll_s if is_remote else config.poll_s

    def _wanted_action(self) -> Start | Stop | None:
        actions = launch_actions(self._state(), self._means.grid.now_ms)
        return next((action for action in actions if action.launch.id == self._id), None)

    def _threads(self, call: Callable[[], T]) -> asyncio.Future[T]:
        return self._means.threads.run(self._provider, call)

    def _event(self, state: JobState, data: EventData, subject: str) -> Event:
        return self._means.writer.event(state, data, subject, cause=self._means.grid.cause_of(self._key, data))

    async def _record(self, data: EventData) -> None:
        """Append a fact of this launch and wait until it is folded."""
        kind = type_of(data).partition(".")[2]
        subject = f"{self._id}/{data.node}" if isinstance(data, NodeLost) else self._id
        sequence = await self._means.writer.append(self._event(self._state(), data, subject))
        self._means.counts[kind] += 1
        _log.info("recorded", what=kind, launch=self._job.name, sequence=sequence)
        await self._means.grid.folded(sequence)
