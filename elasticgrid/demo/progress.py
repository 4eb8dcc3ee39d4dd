"""The demonstration's progress: a live panel on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from elasticgrid.core.spec import PPM
from elasticgrid.demo.view import View

LINE_EVERY_S = 5.0


class Progress:
    """Shows a `View` while the job runs.

    Args:
        console: where to; standard error, so that data on standard output stays clean.
        total_steps: steps the job will take.
    """

    def __init__(self, console: Console, view: View, total_steps: int) -> None:
        self._console = console
        self._view = view
        self._total_steps = total_steps
        self._began = time.monotonic()
        self._last_line = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, message: str) -> None:
        """Tell one thing that happened, above the panel."""
        self._console.print(Text(f"{self._elapsed():>7}  {message}"))

    def update(self) -> None:
        """Show how things stand."""
        if self._live is not None:
            self._live.update(self._panel(), refresh=True)
        elif time.monotonic() - self._last_line >= LINE_EVERY_S:
            self._last_line = time.monotonic()
            self.note(", ".join(f"{name} {value}" for name, value in self._rows()))

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._began:.1f} s"

    def _rows(self) -> list[tuple[str, str]]:
        view, state = self._view, self._view.job
        if state is None:
            return [("job", "not submitted yet")]
        signals = view.signals
        share = f"{100 * signals.queue_us / signals.step_us:.0f} %" if signals.step_us else "-"
        wait = f"{100 * signals.data_wait_us / signals.step_us:.0f} %" if signals.step_us else "-"
        wanted = "" if state.target_nodes == len(state.members) else f" (going to {state.target_nodes})"
        cost = view.cost_microdollars(time.time_ns() // 1_000_000) / PPM
        return [
            ("phase", state.phase),
            ("world", f"{len(state.members)} nodes{wanted}, round {state.round}"),
            ("step", f"{view.step} of {self._total_steps}"),
            ("queue", f"{share} of the step"),
            ("data wait", f"{wait} of the step"),
            ("loss", "-" if math.isnan(view.loss) else f"{view.loss:.3f}"),
            ("cost", f"${cost:.5f}"),
        ]

    def _panel(self) -> Panel:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold")
        table.add_column()
        for name, value in self._rows():
            table.add_row(name, Text(value))
        table.add_row("last decision", Text(self._view.last_decision))
        if self._view.last_change and self._view.last_change != self._view.last_decision:
            table.add_row("last change", Text(self._view.last_change))
        bar = ProgressBar(total=self._total_steps, completed=min(self._view.step, self._total_steps), width=60)
        return Panel(Group(table, bar), title=f"elasticgrid demo  {self._elapsed()}", title_align="left")
