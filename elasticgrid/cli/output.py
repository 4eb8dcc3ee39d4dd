"""What the command line prints: data to standard output in the format asked for, everything else to standard error."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, Literal

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

#: A column that may be broken into lines is made no narrower for the sake of others, and those no narrower than this.
_LEAST_FLEXIBLE: Final = 20
_LEAST_FIXED: Final = 8
#: Everything that controls a terminal, but the end of a line and the tabulator; and what only colours.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_MARKS: Final = "#~!"
#: Between two columns.
_GAP: Final = 2


class Format(StrEnum):
    """How data is printed."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"
    YAML = "yaml"


def on_terminal() -> bool:
    """Whether a person reads what is printed as it comes."""
    return sys.stdout.isatty()


def plain_terminal() -> bool:
    """Whether colour and animation are unwanted: no terminal, `NO_COLOR`, or `TERM=dumb`."""
    return not on_terminal() or _unwanted()


def _unwanted() -> bool:
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def stdout() -> Console:
    """Where data goes."""
    return Console(color_system=None if plain_terminal() else "auto", highlight=False, soft_wrap=not on_terminal())


def stderr() -> Console:
    """Where messages, hints and progress go."""
    colours: Literal["auto"] | None = None if _unwanted() else "auto"
    return Console(stderr=True, color_system=colours, highlight=False, soft_wrap=not sys.stderr.isatty())


def say(message: str) -> None:
    """A message to the person, on standard error. Its text is not interpreted."""
    stderr().print(Text(visible(message)))


def visible(text: str, *, colours: bool = False) -> str:
    """The text without anything that would move a terminal's cursor, or do worse.

    Names, reasons and output come from other people. With `colours` sequences that only colour are kept.
    """
    if not colours:
        return _CONTROL.sub("\ufffd", text)
    parts = _COLOUR.split(text)
    codes = _COLOUR.findall(text)
    return "".join(_CONTROL.sub("\ufffd", part) + code for part, code in zip(parts, [*codes, ""], strict=True))


def print_text(line: str, *, colours: bool = False, at_once: bool = True) -> None:
    """Print a line of text; whatever is in it, it is one line."""
    sys.stdout.write(visible(_one_line(line), colours=colours) + "\n")
    if at_once:
        sys.stdout.flush()


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show that something takes its time, where that can be shown."""
    console = stderr()
    if not console.is_terminal or _unwanted():
        yield
        return
    with console.status(Text(what)):
        yield


def print_data(value: Any, output: Format) -> None:
    """Print one value as JSON, one JSON line, or YAML."""
    plain = msgspec.to_builtins(value)
    if output is Format.YAML:
        sys.stdout.write(msgspec.yaml.encode(plain).decode())
    elif output is Format.JSONL:
        rows = plain if isinstance(plain, list | tuple) else [plain]
        for row in rows:
            print_line(row)
    else:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode() + "\n")
    sys.stdout.flush()


def print_line(value: Any) -> None:
    """Print one value as a JSON line, at once."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Iterable[object]], *, title: str = "") -> None:
    """Print a table; cells are text and never interpreted as markup.

    On a terminal it fits the width; elsewhere every row is one line and nothing is cut.

    Args:
        columns: their headings. `#` in front sets a column to the right, `~` lets it be broken into lines, `!` keeps it
            from being cut, because people copy what is in it.
        rows: the cells.
        title: above it.
    """
    cells = [[visible(str(cell)) for cell in row] for row in rows]
    if on_terminal():
        stdout().print(table_of(columns, cells, title=title))
    else:
        sys.stdout.write(_plain_table(columns, cells, title))
        sys.stdout.flush()


def table_of(columns: Sequence[str], rows: Iterable[Iterable[str]], *, title: str = "", fold: bool = True) -> Table:
    """The same table for a terminal; without `fold` what does not fit is cut, so that every row is one line."""
    cells = [[visible(cell) for cell in row] for row in rows]
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    widths = _widths(columns, cells, stdout().width)
    for column, width in zip(columns, widths, strict=True):
        flexible = column.startswith("~")
        table.add_column(
            column.lstrip(_MARKS),
            justify="right" if column.startswith("#") else "left",
            overflow="fold" if flexible and fold else "ellipsis",
            no_wrap=not (flexible and fold),
            width=width,
        )
    for row in cells:
        fitted = [
            cell if column.startswith("~") else shortened(cell, width)
            for column, cell, width in zip(columns, row, widths, strict=True)
        ]
        table.add_row(*[Text(cell) for cell in fitted])
    return table


def shortened(text: str, width: int) -> str:
    """A name that fits: its middle is cut, because names differ at their beginnings and ends. Sentences stay whole."""
    if cell_len(text) <= width or " " in text or width < _LEAST_FIXED:
        return text
    head = width // 2
    tail = width - 1 - head
    return f"{text[:head]}\u2026{text[-tail:]}"


def _widths(columns: Sequence[str], cells: list[list[str]], available: int) -> list[int]:
    """The width of each column: what `~` columns cannot do with is taken from the widest of the others."""
    natural = [
        max([cell_len(column.lstrip(_MARKS)), *(_width(row[index]) for row in cells)])
        for index, column in enumerate(columns)
    ]
    flexible = [index for index, column in enumerate(columns) if column.startswith("~")]
    fixed = [index for index in range(len(columns)) if index not in flexible]
    widths = dict(enumerate(natural))
    room = available - _GAP * (len(columns) - 1)
    wanted = sum(min(natural[index], _LEAST_FLEXIBLE) for index in flexible)
    cut = [index for index in fixed if not columns[index].startswith("!")]
    while cut and sum(widths[index] for index in fixed) + wanted > room:
        widest = max(cut, key=lambda index: widths[index])
        if widths[widest] <= _LEAST_FIXED:
            break
        widths[widest] -= 1
    left = max(room - sum(widths[index] for index in fixed), 1)
    for place, index in enumerate(flexible):
        share = max(left // (len(flexible) - place), 1)
        widths[index] = min(natural[index], share)
        left -= widths[index]
    return [widths[index] for index in range(len(columns))]


def _width(text: str) -> int:
    return max((cell_len(line) for line in text.splitlines()), default=0)


def _plain_table(columns: Sequence[str], cells: list[list[str]], title: str) -> str:
    lines = [[column.lstrip(_MARKS) for column in columns], *([_one_line(cell) for cell in row] for row in cells)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    shown = [title] if title else []
    for line in lines:
        parts = [
            cell.rjust(width) if column.startswith("#") else cell.ljust(width)
            for column, cell, width in zip(columns, line, widths, strict=True)
        ]
        shown.append("  ".join(parts).rstrip())
    return "\n".join(shown) + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.splitlines()) if "\n" in text else text


def dollars(microdollars: int, *, places: int = 2) -> str:
    """Money for people."""
    return f"${microdollars / 1_000_000:,.{places}f}"


def clock(time_ms: int, *, short: bool = False) -> str:
    """A time for people, in UTC; with `short` only the time of the day."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%H:%M:%S" if short else "%Y-%m-%d %H:%M:%S")


def ago(time_ms: int) -> str:
    """How long ago a time was, for people."""
    seconds = max(0, round(time.time() - time_ms / 1000))
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds // length_s}{unit} ago"
    return f"{seconds}s ago"
