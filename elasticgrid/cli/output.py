"""What the command line prints: data to standard output in the format asked for, everything else to standard error."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from rich.console import Console, RenderableType
from rich.text import Text

from elasticgrid import utc
from elasticgrid.cli import tables
from elasticgrid.terminal import is_plain

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

PROGRAM: Final = "elasticgrid"
#: Everything that controls a terminal, but the end of a line and the tabulator; and what only colours.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


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
    """Whether colour and animation are unwanted in what is printed."""
    return is_plain(sys.stdout)


def stdout() -> Console:
    """Where data goes."""
    return Console(color_system=None if plain_terminal() else "auto", highlight=False, soft_wrap=not on_terminal())


def stderr() -> Console:
    """Where messages, hints and progress go."""
    colours: Literal["auto"] | None = None if is_plain(sys.stderr) else "auto"
    return Console(stderr=True, color_system=colours, highlight=False, soft_wrap=not sys.stderr.isatty())


def say(message: str) -> None:
    """A message to the person, on standard error. Its text is not interpreted.

    One that names a command is not broken into lines, so that the command is copied as one wherever it is long.
    """
    stderr().print(Text(visible(message)), soft_wrap=True if f"{PROGRAM} " in message else None)


def visible(text: str, *, colours: bool = False) -> str:
    """The text without anything that would move a terminal's cursor, or do worse.

    Names, reasons and output come from other people. With `colours` sequences that only colour are kept.
    """
    if not colours:
        return _CONTROL.sub("\ufffd", text)
    parts = _COLOUR.split(text)
    codes = _COLOUR.findall(text)
    return "".join(_CONTROL.sub("\ufffd", part) + code for part, code in zip(parts, [*codes, ""], strict=True))


def print_text(line: str, *, colours: bool = False, at_once: bool = True, ended: bool = True) -> None:
    """Print a line of text; whatever is in it, it is one line. One that has not `ended` is gone on with by the next."""
    sys.stdout.write(visible(tables.one_line(line), colours=colours) + "\n" * ended)
    if at_once:
        sys.stdout.flush()


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show that something takes its time, where that can be shown."""
    if is_plain(sys.stderr):
        yield
        return
    with stderr().status(Text(what)):
        yield


def progress_bar(*columns: ProgressColumn) -> Progress:
    """A bar on standard error that is gone at its end; it is not shown where that moves nothing."""
    from rich.progress import Progress

    return Progress(*columns, console=stderr(), transient=True, disable=is_plain(sys.stderr))


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


def print_table(
    columns: Sequence[str], rows: Iterable[Iterable[object]], *, title: str = "", brief: bool = False
) -> None:
    """Print a table; cells are text and never interpreted as markup.

    On a terminal it fits the width: what has no room beside the rest is told in a line beneath each row. Elsewhere
    every row is one line and nothing is cut.

    Args:
        columns: their headings. `#` in front sets a column to the right, `~` lets it be broken into lines, `!` keeps it
            from being cut, because people copy what is in it.
        rows: the cells.
        title: above it.
        brief: texts are cut at their ends instead of broken into lines.
    """
    cells = [[visible(str(cell)) for cell in row] for row in rows]
    if not on_terminal():
        sys.stdout.write(tables.plain_table(columns, cells, title))
        sys.stdout.flush()
        return
    if title:
        stdout().print(Text(title, style="italic"))
    stdout().print(tables.table(columns, cells, stdout().width, fold=not brief, beneath=True))


def table_of(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> RenderableType:
    """The table as a part of a live view: every row is one line, and what has no room is left out."""
    cells = [[visible(cell) for cell in row] for row in rows]
    return tables.table(columns, cells, stdout().width, fold=False, beneath=False)


def counted(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`, `2 launches`."""
    ending = "es" if noun.endswith(("s", "ch")) else "s"
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def dollars(microdollars: int, *, places: int = 2) -> str:
    """Money for people."""
    return f"${microdollars / 1_000_000:,.{places}f}"


def clock(time_ms: int, *, short: bool = False) -> str:
    """A time for people, in UTC; with `short` only the time of the day."""
    return utc.time_of_day(time_ms) if short else utc.moment(time_ms)


def ago(time_ms: int) -> str:
    """How long ago a time was, for people."""
    seconds = max(0, round(time.time() - time_ms / 1000))
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds // length_s}{unit} ago"
    return f"{seconds}s ago"
