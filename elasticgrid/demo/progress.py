"""The demonstration's progress: a live panel on a terminal, a plain line now and then anywhere else."""

from __future__ import annotations

import math
import textwrap
import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from elasticgrid.core.spec import PPM
from elasticgrid.demo.view import View
from elasticgrid.review.timeline import nodes_text

LINE_EVERY_S: Final = 5.0
#: The panel is no wider than this on any terminal, so that lines stay short enough to read.
MAX_WIDTH: Final = 80
_LABEL_WIDTH: Final = 9
#: The gauge, what it says beside that, and how short it may be made for it.
_GAUGE_CELLS: Final = 24
_GAUGE_TEXT: Final = len(" 100 % for a worker, 100 % for data")
_LEAST_CELLS: Final = 4
#: Border and padding of the panel, and the space behind the labels.
_FRAME: Final = 4 + 2
#: Lines kept for what was decided: the panel never changes its height.
_CHANGE_LINES: Final = 2


class Progress:
    """Shows a `View` while the job runs.

    Args:
        console: where to; standard error, so that data on standard output stays clean. The panel is shown on a terminal
            that has colours and can move its cursor; anything else gets lines.
    """

    def __init__(self, console: Console, view: View) -> None:
        self._console = console
        self._view = view
        self._began = time.monotonic()
        self._last_line = self._began
        animated = console.is_terminal and not console.is_dumb_terminal and not console.no_color
        self._live = Live(console=console, auto_refresh=False, transient=True) if animated else None

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
        when = f"{self._elapsed_s():7.1f} s  "
        if self._live is None:
            self._console.print(Text(when + message), soft_wrap=True)
            return
        lines = textwrap.wrap(message, max(self._width() - len(when), 20)) or [""]
        for index, line in enumerate(lines):
            self._console.print(Text(when if index == 0 else " " * len(when), style="dim") + Text(line))

    def update(self) -> None:
        """Show how things stand."""
        if self._live is not None:
            self._live.update(self._panel(), refresh=True)
        elif time.monotonic() - self._last_line >= LINE_EVERY_S:
            self._last_line = time.monotonic()
            self.note(self._line())

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _width(self) -> int:
        return min(self._console.width, MAX_WIDTH)

    def _inner(self) -> int:
        """The width beside the labels."""
        return self._width() - _FRAME - _LABEL_WIDTH

    # ----------------------------------------------------------------------------------------------------------------
    # What is shown
    # ----------------------------------------------------------------------------------------------------------------

    def _line(self) -> str:
        """How things stand in one line of at most 80 columns."""
        state = self._view.job
        if state is None:
            return "the job is not submitted yet"
        return (
            f"step {self._view.step}, {nodes_text(len(state.members))},"
            f" {self._share(self._view.signals.queue_us)} waiting,"
            f" loss {self._loss_text()}, {self._cost_text()}"
        )

    def _panel(self) -> Panel:
        view, state = self._view, self._view.job
        inner = self._inner()
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="bold", width=_LABEL_WIDTH, no_wrap=True)
        table.add_column(width=inner, no_wrap=True, overflow="ellipsis")
        table.add_row("training", self._training())
        if state is None:
            table.add_row("world", "not submitted yet")
        else:
            table.add_row("world", f"{nodes_text(len(state.members))} in round {state.round}{self._moving()}")
        table.add_row("nodes", self._places())
        table.add_row("waiting", self._gauge())
        table.add_row("loss", self._loss_text())
        table.add_row("cost", f"{self._cost_text()}, now ${view.price_microdollars_per_hour / PPM:.2f} an hour")
        table.add_row("now", Text(view.last_decision, style="dim"))
        changed = textwrap.wrap(view.last_change, inner, max_lines=_CHANGE_LINES, placeholder=" ...")
        table.add_row("decided", Text("\n".join([*changed, *[""] * (_CHANGE_LINES - len(changed))])))
        minutes, seconds = divmod(int(self._elapsed_s()), 60)
        return Panel(
            Group(table),
            title="[bold]elasticgrid demo[/]",
            title_align="left",
            subtitle=f"{minutes}:{seconds:02}",
            subtitle_align="right",
            border_style="cyan",
            width=self._width(),
        )

    def _training(self) -> str:
        """How far it is: the job ends with its work, so that nobody knows of how many steps."""
        state = self._view.job
        if not self._view.step or state is None:
            return "no step yet"
        kept = f", checkpoint of step {state.checkpoint.step}" if state.checkpoint is not None else ""
        return f"step {self._view.step}{kept}"

    def _moving(self) -> str:
        state = self._view.job
        if state is None or state.terminal or state.target_nodes == len(state.members):
            return ""
        return f", going to {state.target_nodes}"

    def _places(self) -> Text:
        """Where the members of the world are: a dot each."""
        text = Text()
        for provider, count in self._view.places().items():
            text.append(f"{provider} ")
            text.append("●" * count + "  ", style="green")
        return text

    def _share(self, part_us: int) -> str:
        step_us = self._view.signals.step_us
        return f"{100 * part_us / step_us:.0f} %" if step_us else "- %"

    def _gauge(self) -> Text:
        """The share of a step that its work waits for a free worker, as a bar and a number."""
        signals = self._view.signals
        if not signals.step_us:
            return Text("no step of this world was seen yet", style="dim")
        cells = min(max(self._inner() - _GAUGE_TEXT, _LEAST_CELLS), _GAUGE_CELLS)
        filled = round(cells * signals.queue_us / signals.step_us)
        text = Text("█" * filled, style="yellow")
        text.append("░" * (cells - filled), style="dim")
        for_worker, for_data = self._share(signals.queue_us), self._share(signals.data_wait_us)
        text.append(f" {for_worker:>5} for a worker, {for_data} for data", style="default")
        return text

    def _loss_text(self) -> str:
        return "-" if math.isnan(self._view.loss) else f"{self._view.loss:.2f}"

    def _cost_text(self) -> str:
        return f"${self._view.cost_microdollars(time.time_ns() // 1_000_000) / PPM:.4f}"
