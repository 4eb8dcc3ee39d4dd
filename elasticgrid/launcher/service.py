"""The launcher: a thin shell that does what the core wants launched and stopped, and says what became of it.

It folds the event log and, once it has caught up, asks the core about every job that an event concerned and, as time
goes on, about every job that has a launch. Each launch is dealt with on its own, so that a slow provider or a broken
job holds up nothing else. When the launcher ends, what it launched goes on; the next one takes it over.
"""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client

from elasticgrid.bus.authority import LaunchKey
from elasticgrid.clock import Clock
from elasticgrid.core.grid import JobKey
from elasticgrid.core.launching import launch_actions
from elasticgrid.core.names import is_record
from elasticgrid.launcher.attempt import Attempt, Means
from elasticgrid.launcher.bundle_store import BundleStore
from elasticgrid.launcher.config import LauncherConfig
from elasticgrid.launcher.credential_desk import CredentialDesk
from elasticgrid.launcher.engines import register_engines
from elasticgrid.launcher.fact_writer import FactWriter
from elasticgrid.launcher.folder_lock import FolderLock
from elasticgrid.launcher.followed_grid import FollowedGrid
from elasticgrid.launcher.heartbeats import Heartbeats
from elasticgrid.launcher.launch_spec import CLOUD_ENGINES, engine_family, launch_name
from elasticgrid.launcher.orphans import stop_orphans
from elasticgrid.launcher.provider_threads import ProviderThreads
from elasticgrid.log.port import EventLog, Scope

_log = structlog.get_logger("launcher")

#: How long a launcher that is told to stop waits for what is under way, so that its outcome is recorded.
STOP_PATIENCE_S: Final = 10.0
#: How long catching up may take until it is looked at whether there is anything left to fold.
CATCH_UP_S: Final = 5.0


class LauncherStats(msgspec.Struct, frozen=True):
    """What the launcher has read and done since it started.

    Attributes:
        events: how many were folded.
        facts: how many of each it recorded, such as `started` or `node_lost`.
        strange_heartbeats: from nodes that the log does not know.
    """

    events: int
    facts: dict[str, int]
    strange_heartbeats: int


class Launcher:
    """Launches, watches and stops the nodes of a grid.

    Args:
        log: where events are followed and appended.
        client: the connection heartbeats are heard on; with None no node is ever called silent.
        clock: for the times of facts and the pace of looking.
        config: where it works and what it starts.
    """

    def __init__(self, log: EventLog, client: Client | None, clock: Clock, config: LauncherConfig) -> None:
        self._clock = clock
        self._config = config
        self._writer = FactWriter(log, clock, secrets.token_hex(8))
        self._grid = FollowedGrid(
            log,
            clock,
            on_change=self._touch,
            on_launch_event=self._writer.observe,
            on_launch_over=self._revoke,
        )
        self._means = Means(
            config=config,
            grid=self._grid,
            writer=self._writer,
            heartbeats=Heartbeats(client, clock, self._knows),
            credentials=CredentialDesk(config, clock, client, self._is_live),
            threads=ProviderThreads(),
        )
        self._lock = FolderLock(config.data_dir)
        self._attempts: dict[JobKey, dict[str, Attempt]] = {}
        self._touched: set[JobKey] = set()
        self._open: set[JobKey] = set()
        #: Names of launches that are not over.
        self._live: set[str] = set()
        self._wake = asyncio.Event()
        self._accepts = True
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()
        self._caught_up = asyncio.Event()

    @property
    def stats(self) -> LauncherStats:
        """What was read and done so far."""
        facts = dict(self._means.counts)
        return LauncherStats(self._grid.events, facts, self._means.heartbeats.strangers)

    @property
    def caught_up(self) -> asyncio.Event:
        """Set once everything that was in the log at the start is folded and the launcher acts."""
        return self._caught_up

    async def run(self) -> None:
        """Work until `stop` is called or the task is cancelled. Once only.

        While another launcher works in the same folder, it waits.

        Raises:
            LogError: the log cannot be trusted.
        """
        register_engines()
        self._ended.clear()
        work = asyncio.create_task(self._work())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            else:
                await self._finish_what_is_under_way()
        finally:
            under_way = self._under_way()
            for task in (work, stopping, *under_way):
                task.cancel()
            await asyncio.gather(work, stopping, *under_way, return_exceptions=True)
            # A call at a provider cannot be taken back: the folder is free for the next launcher when it is over.
            await asyncio.shield(asyncio.to_thread(self._close))
            self._ended.set()

    async def stop(self) -> None:
        """End: nothing new is begun, what is under way gets ten seconds. What was launched goes on."""
        self._stopping.set()
        await self._ended.wait()

    def _close(self) -> None:
        self._means.threads.close()
        self._lock.release()

    async def _work(self) -> None:
        await self._take_folder()
        head = await self._writer.last_sequence()
        await self._means.heartbeats.listen()
        following = asyncio.create_task(self._grid.follow())
        acting = asyncio.create_task(self._act(head))
        ticking = asyncio.create_task(self._tick())
        sweeping = asyncio.create_task(self._sweep())
        issuing = asyncio.create_task(self._means.credentials.run())
        tasks = (following, acting, ticking, sweeping, issuing)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _act(self, head: int) -> None:
        await self._catch_up(head)
        _log.info("the launcher has caught up", sequence=head)
        self._wake.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._touched:
                self._consider(self._touched.pop())
            self._caught_up.set()

    async def _catch_up(self, head: int) -> None:
        while self._grid.sequence < head:
            try:
                async with asyncio.timeout(CATCH_UP_S):
                    await self._grid.folded(head)
            except TimeoutError:
                # The last message may be no event, and then it is never folded.
                if not await self._writer.newest_event(Scope(), after=self._grid.sequence, through=head):
                    return

    async def _take_folder(self) -> None:
        if self._lock.try_take():
            return
        _log.warning("another launcher works in this folder; waiting", folder=str(self._config.data_dir))
        while not self._lock.try_take():
            await self._clock.sleep(self._config.poll_s)

    async def _tick(self) -> None:
        while True:
            self._means.heartbeats.check_connection()
            self._touched |= self._open
            self._wake.set()
            await self._clock.sleep(self._config.poll_s)

    async def _sweep(self) -> None:
        """Stop machines of launches that are over, wherever a call outlived who made it, and delete what is left."""
        await self._caught_up.wait()
        while True:
            await self._prune_bundles()
            for provider in [state.spec for state in self._grid.fleet.providers.values()]:
                if engine_family(provider.engine) not in CLOUD_ENGINES:
                    continue
                sweep = partial(stop_orphans, provider, self._config, lambda name: name not in self._live)
                try:
                    await self._means.threads.run(provider.name, sweep)
                except Exception as error:  # an engine is somebody else's code, and a cloud may be away
                    _log.warning("a cloud does not say what it has", provider=provider.name, error=str(error))
            await self._clock.sleep(self._config.orphans_every_s)

    async def _prune_bundles(self) -> None:
        bundles = BundleStore(self._config.bundles_dir)
        try:
            # In this order: what is bundled meanwhile is of a submission that is not looked at.
            known = await asyncio.to_thread(bundles.submissions)
            going_on = self._grid.submissions()
            await asyncio.to_thread(bundles.prune, [name for name in known if name not in going_on])
        except OSError as error:
            _log.warning("bundles that nobody needs could not be deleted", error=str(error))

    async def _finish_what_is_under_way(self) -> None:
        self._accepts = False
        under_way = self._under_way()
        if under_way:
            await asyncio.wait(under_way, timeout=STOP_PATIENCE_S)

    def _under_way(self) -> list[asyncio.Task[None]]:
        attempts = [attempt for job in self._attempts.values() for attempt in job.values()]
        return [attempt.task for attempt in attempts if attempt.task is not None]

    def _touch(self, key: JobKey) -> None:
        self._touched.add(key)
        self._wake.set()

    def _knows(self, key: JobKey, node: str) -> bool:
        state = self._grid.job(key)
        return state is not None and node in state.nodes

    def _is_live(self, key: LaunchKey) -> bool:
        state = self._grid.job((key.tenant, key.job))
        return state is not None and any(
            launch.status != "planned" and not launch.resolved and launch_name(state, launch.id) == key.launch
            for launch in state.launches.values()
        )

    def _revoke(self, key: JobKey, attempt: str, ended_ms: int) -> None:
        state = self._grid.job(key)
        if state is not None:
            self._means.credentials.ended(LaunchKey(*key, launch_name(state, attempt)), ended_ms)

    def _consider(self, key: JobKey) -> None:
        if not self._accepts:
            return
        try:
            self._act_on(key)
        except Exception as error:  # a job that cannot be acted on must not stop the others
            _log.exception("cannot act on a job", tenant=key[0], job=key[1], error=str(error))

    def _act_on(self, key: JobKey) -> None:
        state = self._grid.job(key)
        if state is None or is_record(state.tenant):
            return
        attempts = self._attempts.setdefault(key, {})
        actions = {action.launch.id: action for action in launch_actions(state, self._grid.now_ms)}
        for launch in state.launches.values():
            attempt = attempts.get(launch.id)
            if launch.resolved:
                if attempt is not None and attempt.task is None:
                    del attempts[launch.id]
                    self._live.discard(attempt.name)
                    for node in launch.nodes:
                        self._means.heartbeats.forget(key, node)
                continue
            if attempt is None:
                name = launch_name(state, launch.id)
                attempt = Attempt(self._means, key, launch, name, partial(self._touch, key))
                attempts[launch.id] = attempt
                self._live.add(name)
                if launch.status != "planned":
                    self._means.credentials.refresh(attempt.credential_key)
            attempt.consider(actions.get(launch.id))
        if attempts:
            self._open.add(key)
        else:
            self._open.discard(key)
            del self._attempts[key]
