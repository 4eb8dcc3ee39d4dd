"""Figures of a run, routed by group: how often something succeeded or failed, and how long it took.

::

    metrics.configure(metrics.ConsoleMetricHandler())            # every group that has no handler of its own
    metrics.configure(metrics.NullMetricHandler(), group="io")   # but not this one

    @metrics.prof(group="training")
    def save(path): ...
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Final, Protocol, TypeVar, cast, overload

import msgspec

from elasticgrid.bus.connect import BusAddress
from elasticgrid.elastic.bus_sender import BusSender

_log = logging.getLogger("elasticgrid.elastic")

#: The group of what names none.
DEFAULT_GROUP: Final = "elasticgrid"

F = TypeVar("F", bound=Callable[..., Any])


class MetricData(msgspec.Struct, frozen=True, kw_only=True):
    """One figure; `time_ms` is when, Unix milliseconds."""

    time_ms: int
    group: str
    name: str
    value: float


class MetricHandler(Protocol):
    """Takes figures."""

    def emit(self, data: MetricData) -> None:
        """Take one. What it raises is logged and goes no further."""
        ...


class NullMetricHandler:
    """Forgets figures."""

    def emit(self, data: MetricData) -> None:
        """Forget it."""


class ConsoleMetricHandler:
    """Writes figures to standard error, one line each."""

    def emit(self, data: MetricData) -> None:
        """Write it."""
        sys.stderr.write(f"[{data.group}] {data.name}={data.value:g}\n")


class BusMetricHandler:
    """Sends figures to `grid.metrics.<run>.<group>` on a bus, from a thread of its own; drops what it cannot send.

    Args:
        address: the bus.
        run_id: whose figures they are.
    """

    def __init__(self, address: BusAddress, run_id: str) -> None:
        self._sender = BusSender(address, "metrics", run_id)

    def emit(self, data: MetricData) -> None:
        """Send it, some time."""
        self._sender.send(data.group, msgspec.json.encode(data))

    def close(self) -> None:
        """Send what waits, within a second or so, and end."""
        self._sender.close()


class MetricsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where figures go: by group, and `default` for all other groups."""

    default: MetricHandler = NullMetricHandler()
    groups: dict[str, MetricHandler] = {}


_default: MetricHandler = NullMetricHandler()
_by_group: dict[str, MetricHandler] = {}


def configure(handler: MetricHandler | MetricsConfig, group: str | None = None) -> None:
    """Send the figures of a group to `handler`; without a group those of all that have no handler of their own."""
    global _default
    if isinstance(handler, MetricsConfig):
        _default = handler.default
        _by_group.update(handler.groups)
    elif group is None:
        _default = handler
    else:
        _by_group[group] = handler


def put_metric(name: str, value: float, group: str = DEFAULT_GROUP) -> None:
    """Send one figure to its group's handler. Never raises."""
    data = MetricData(time_ms=time.time_ns() // 1_000_000, group=group, name=name, value=value)
    try:
        _by_group.get(group, _default).emit(data)
    except Exception:
        _log.exception("a handler of figures failed: %s", name)


@overload
def prof(function: F) -> F: ...
@overload
def prof(*, group: str = DEFAULT_GROUP) -> Callable[[F], F]: ...
def prof(function: F | None = None, *, group: str = DEFAULT_GROUP) -> F | Callable[[F], F]:
    """Count and time the calls of a function: `<name>.success` or `<name>.failure`, and `<name>.duration.ms`.

    The name is `Class.method`, or `module.function`. A coroutine is timed until it ends, and so is a generator, with
    what its caller does between two values; a caller that stops early makes it no failure.
    """
    if function is None:
        return functools.partial(_profiled, group=group)
    return _profiled(function, group=group)


def _profiled(function: F, *, group: str) -> F:
    name = _name(function)

    class Timed:
        def __enter__(self) -> None:
            self.began_s = time.perf_counter()

        def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
            ended_well = kind is None or kind is GeneratorExit
            put_metric(f"{name}.{'success' if ended_well else 'failure'}", 1, group)
            put_metric(f"{name}.duration.ms", (time.perf_counter() - self.began_s) * 1000, group)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with Timed():
                return await function(*args, **kwargs)

        return cast(F, awaited)

    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generated(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            with Timed():
                return (yield from function(*args, **kwargs))

        return cast(F, generated)

    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def streamed(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            with Timed():
                async with contextlib.aclosing(function(*args, **kwargs)) as values:
                    step = values.__anext__
                    while True:
                        try:
                            value = await step()
                        except StopAsyncIteration:
                            return
                        try:
                            step = functools.partial(values.asend, (yield value))
                        except GeneratorExit:
                            raise
                        except BaseException as error:
                            step = functools.partial(values.athrow, error)

        return cast(F, streamed)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        with Timed():
            return function(*args, **kwargs)

    return cast(F, called)


def _name(function: Callable[..., Any]) -> str:
    qualified = function.__qualname__.replace("<locals>.", "")
    return qualified if "." in qualified else f"{function.__module__.rsplit('.', 1)[-1]}.{qualified}"
