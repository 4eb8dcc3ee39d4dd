"""A real gateway in a thread of its own for commands to ask, and what comes of a command."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from elasticgrid.core.events import Recorded
from elasticgrid.core.spec import ProviderSpec
from elasticgrid.gateway.server import serve_gateway
from elasticgrid.gateway.service import GatewayService, open_gateway
from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.memory import MemoryLog
from elasticgrid.log.port import EventLog
from elasticgrid.runtime.gateway_file import GATEWAY_FILE, GatewayFile
from elasticgrid.testing import bus
from elasticgrid.testing.clock import VirtualClock

T = TypeVar("T")

PROVIDERS = (
    ProviderSpec(name="small", max_nodes=2, price_microdollars_per_hour=1_000_000),
    ProviderSpec(name="large", max_nodes=6, price_microdollars_per_hour=2_000_000, market="spot"),
)


class Ended(NamedTuple):
    """What came of a command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """What it printed, as a value."""
        return msgspec.json.decode(self.out)


Run = Callable[..., Ended]


class GridThread:
    """A gateway over a log, in an event loop in a thread, so that a command can ask it and wait.

    Attributes:
        data_dir: the folder that commands are told of.
        service: what answers.
        log: its log.
    """

    service: GatewayService
    log: EventLog
    url: str

    def __init__(
        self,
        data_dir: Path,
        providers: Sequence[ProviderSpec] | None = PROVIDERS,
        *,
        recorded: Sequence[Recorded] = (),
        on_bus: bool = False,
    ) -> None:
        self.data_dir = data_dir
        self._providers = providers
        self._recorded = recorded
        self._on_bus = on_bus
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="grid")

    def __enter__(self) -> GridThread:
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What a coroutine returns that runs where the gateway does."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=30)

    def append(self, *records: Recorded) -> None:
        """Append events and wait until answers contain them."""

        async def append() -> None:
            for record in records:
                await self.log.append([record.event])  # type: ignore[list-item] # a simulated log has known events only
            await self.service.caught_up()

        self.call(append())

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve(self) -> None:
        async with AsyncExitStack() as stack:
            client = None
            clock = VirtualClock()
            if self._on_bus:
                server = await stack.enter_async_context(bus.embedded_server(self.data_dir))
                client = await stack.enter_async_context(bus.bus_client(server))
                self.log = JetStreamLog(client)
            else:
                self.log = await self._in_memory(clock)
            self.service = await stack.enter_async_context(
                open_gateway(self.log, self.data_dir, providers=self._providers, bus=client, heartbeat_s=1.0)
            )
            running = await stack.enter_async_context(await serve_gateway(self.service))
            self.url = running.url
            file = GatewayFile(url=running.url, key_file=str(self.service.key_file))
            (self.data_dir / GATEWAY_FILE).write_bytes(msgspec.json.encode(file))
            self._ready.set()
            await self._stop.wait()

    async def _in_memory(self, clock: VirtualClock) -> MemoryLog:
        log = MemoryLog(clock)
        for record in self._recorded:
            clock.advance((record.recorded_ms - clock.now_ms()) / 1000)
            await log.append([record.event])  # type: ignore[list-item] # a simulated log has known events only
        return log
