"""How long simulated things take, and what launches come to."""

from __future__ import annotations

from typing import Protocol

import msgspec

from elasticgrid.core import events as ev


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """How long things take, milliseconds.

    Attributes:
        decide_ms: from something happening to a decision about it; `append_ms` until that is in the log.
        launch_ms: from a placement to its launch being asked for.
        first_step_ms: from a world to the first step of its round.
        commit_ms: from the last step of a round to its nodes having drained.
        stop_ms: from a stop being asked for to nothing running.
        detect_ms: from a node being gone to somebody noticing.
        tick_ms: how often what waits for time alone is looked at.
        report_ms: how often workers publish the samples of the steps in between.
    """

    decide_ms: int = 4
    append_ms: int = 3
    launch_ms: int = 250
    first_step_ms: int = 4_000
    commit_ms: int = 900
    stop_ms: int = 1_500
    detect_ms: int = 6_000
    tick_ms: int = 10_000
    report_ms: int = 5_000


class LaunchEnd(msgspec.Struct, frozen=True, kw_only=True):
    """What a launch comes to: its agents run, or it fails, `after_ms` after it was asked for."""

    after_ms: int
    failure: ev.FailureClass | None = None
    text: str = ""


class Machines(Protocol):
    """Where simulated nodes come from."""

    def launch(self, provider: str, at_ms: int) -> LaunchEnd:
        """What becomes of a launch that is asked for at this time."""
        ...

    def join_ms(self, provider: str) -> int:
        """How long after that an agent joins."""
        ...


class SteadyMachines:
    """Machines that always take as long, and fail when told to."""

    def __init__(self, *, boot_ms: int = 20_000, join_ms: int = 2_000) -> None:
        self._boot_ms = boot_ms
        self._join_ms = join_ms
        self._failures: dict[str, list[tuple[ev.FailureClass, str]]] = {}

    def fail(self, provider: str, failure: ev.FailureClass, text: str, times: int) -> None:
        """Let the next launches at a provider fail."""
        self._failures.setdefault(provider, []).extend([(failure, text)] * times)

    def launch(self, provider: str, at_ms: int) -> LaunchEnd:  # noqa: ARG002 - the time makes no difference
        """The next failure that was asked for, or a success."""
        failures = self._failures.get(provider)
        if failures:
            failure, text = failures.pop(0)
            return LaunchEnd(after_ms=self._boot_ms // 4, failure=failure, text=text)
        return LaunchEnd(after_ms=self._boot_ms)

    def join_ms(self, provider: str) -> int:  # noqa: ARG002 - all providers are alike
        """The same everywhere."""
        return self._join_ms
