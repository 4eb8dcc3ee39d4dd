"""The hook's background thread: one event loop that talks to the agent and to the bus.

Started at the first use of a hook that has somebody to talk to. The training thread never waits for it, except in
`flush` and `close`, and there not longer than it says.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import weakref
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING

from elasticgrid.publish.agent_link import AgentLink
from elasticgrid.publish.buffer import SampleBuffer
from elasticgrid.publish.hook_loop import HookLoop
from elasticgrid.publish.settings import HookSettings
from elasticgrid.publish.state import TrainerState

if TYPE_CHECKING:
    from elasticgrid.publish.bus_link import BusLink

#: How long a process that forgot to close its hook may spend at its exit.
EXIT_TIMEOUT_S = 1.5
#: Of a close, the part that samples may take; the rest is for the last words to the agent.
SAMPLES_SHARE = 0.7
FLUSH_POLL_S = 0.01


class Sender:
    """Owns the thread, the loop and both connections. Knows nothing of the object the trainer holds."""

    def __init__(self, settings: HookSettings, state: TrainerState, samples: SampleBuffer) -> None:
        self._settings = settings
        self._state = state
        self._samples = samples
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._agent: AgentLink | None = None
        self._bus: BusLink | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._close_by = 0.0
        self._closing = False
        self._bus_link: type[BusLink] | None = None
        if settings.has_bus:  # the bus client is loaded where it is needed, and not on the background thread
            from elasticgrid.publish.bus_link import BusLink

            self._bus_link = BusLink

    @property
    def has_bus(self) -> bool:
        """Whether samples have somewhere to go."""
        return self._settings.has_bus

    def start(self) -> None:
        """Start the thread if it was not yet. Returns at once."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is not None or self._closing:
                return
            thread = threading.Thread(target=self._run, name="elasticgrid-hook", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no threads left, or the interpreter is ending
                self._state.problem = f"the hook's thread could not start: {error}"
                self._closing = True
                return
            _open_senders.add(self)
            self._thread = thread

    def wake(self) -> None:
        """Have the agent told now."""
        loop, agent = self._loop, self._agent
        if loop is not None and agent is not None:
            with suppress(RuntimeError):  # the loop ended just now
                loop.call_soon_threadsafe(agent.wake)

    def flush(self, timeout_s: float) -> bool:
        """Wait until every sample was acknowledged and the agent was told everything; False when time was up."""
        if self._thread is None:
            return self._samples.unsent == 0
        deadline = time.monotonic() + timeout_s
        if not self._ready.wait(timeout_s):
            return False
        loop = self._loop
        if loop is None or self._ended.is_set():
            return self._samples.unsent == 0
        waiting: Coroutine[None, None, bool] = self._everything_said(deadline)
        try:
            future = asyncio.run_coroutine_threadsafe(waiting, loop)
        except RuntimeError:  # the loop ended just now
            waiting.close()
            return self._samples.unsent == 0
        try:
            return future.result(max(0.0, deadline - time.monotonic()) + 0.1)
        except (TimeoutError, CancelledError):
            future.cancel()
            return False

    def close(self, timeout_s: float, *, wait: bool = True) -> None:
        """Send what can be sent within `timeout_s`, say goodbye to the agent, and end the thread.

        Args:
            timeout_s: bound of the whole.
            wait: False leaves the thread to do that by itself.
        """
        if self._pid != os.getpid():
            return
        with self._lock:
            first = not self._closing
            if first:
                self._close_by = time.monotonic() + timeout_s
                self._closing = True
        if self._thread is None:
            return
        if wait:
            self._ready.wait(timeout_s)
        loop, stop = self._loop, self._stop
        if first and loop is not None and stop is not None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(stop.set)
        if wait:
            self._ended.wait(max(0.0, self._close_by - time.monotonic()) + 0.1)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=HookLoop) as runner:
                runner.run(self._main())
        except Exception as error:  # nothing may reach the trainer; it goes on without samples
            self._state.problem = f"the hook's thread ended: {error!r}"
        finally:
            self._samples.discard()
            self._ready.set()
            self._ended.set()
            _open_senders.discard(self)

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        tasks = []
        if self._settings.has_agent:
            self._agent = AgentLink(self._settings, self._state, self._samples, pid=self._pid)
            tasks.append(asyncio.create_task(self._agent.run()))
        if self._bus_link is not None:
            self._bus = self._bus_link(self._settings, self._state, self._samples)
            tasks.append(asyncio.create_task(self._bus.run()))
        for task in tasks:
            task.add_done_callback(self._note_end)
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        if self._closing:
            self._stop.set()
        await self._stop.wait()
        if self._bus is not None:
            await self._bus.close(timeout_s=self._left_s() * SAMPLES_SHARE)
        if self._agent is not None:
            await self._agent.close(timeout_s=max(0.05, self._left_s()))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _left_s(self) -> float:
        return max(0.0, self._close_by - time.monotonic())

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """One link ended by an error of its own; the other goes on."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._state.problem = f"the hook's thread met {error!r}"

    async def _everything_said(self, deadline: float) -> bool:
        while True:
            samples_sent = self._bus is None or self._bus.unsent == 0
            if samples_sent and (self._agent is None or self._agent.up_to_date):
                return True
            if time.monotonic() >= deadline:
                return False
            if self._agent is not None:
                self._agent.wake()
            if self._bus is not None:
                self._bus.wake()
            await asyncio.sleep(FLUSH_POLL_S)


_open_senders: weakref.WeakSet[Sender] = weakref.WeakSet()
#: In a forked child: the parent's senders, kept so that nothing in them is finalized over descriptors that are shared.
_parents_senders: list[Sender] = []


def _close_forgotten() -> None:
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    for sender in list(_open_senders):
        sender.close(max(0.0, deadline - time.monotonic()))


def _abandon_in_child() -> None:
    _parents_senders.extend(_open_senders)
    _open_senders.clear()


atexit.register(_close_forgotten)
os.register_at_fork(after_in_child=_abandon_in_child)
