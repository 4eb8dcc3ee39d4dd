"""Tables that fit a terminal: which columns stand beside each other, how wide, and what is told beneath a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

#: Text is broken into lines no narrower than this, and a name is cut to no less than that.
_LEAST_TEXT: Final = 24
_LEAST_NAME: Final = 16
_MARKS: Final = "#~!"
#: Between two columns.
_GAP: Final = 2
#: What is told beneath a row begins here.
_INDENT: Final = 2
_BETWEEN: Final = " \u00b7 "
_NOTHING: Final = "\u2013"


class Layout(msgspec.Struct, frozen=True):
    """Where columns go.

    Attributes:
        beside: (column, width) of those that stand beside each other.
        beneath: columns that have no room there.
    """

    beside: tuple[tuple[int, int], ...]
    beneath: tuple[int, ...]


def heading(column: str) -> str:
    """The heading without the marks that say how the column is set."""
    return column.lstrip(_MARKS)


def layout(columns: Sequence[str], cells: Sequence[Sequence[str]], available: int) -> Layout:
    """Fit columns into a width: names are cut first, then the last columns give way, texts before others."""
    natural = [
        max([cell_len(heading(column)), *(_width(row[index]) for row in cells)]) for index, column in enumerate(columns)
    ]
    least = [_least(column, [row[index] for row in cells], natural[index]) for index, column in enumerate(columns)]
    shown = list(range(len(columns)))
    while len(shown) > 1 and _sum(least[index] for index in shown) > available:
        shown.remove(max(shown[1:], key=lambda index: (_rank(columns[index]), index)))
    widths = {index: least[index] for index in shown}
    left = available - _sum(widths.values())
    texts = sorted((index for index in shown if columns[index].startswith("~")), key=lambda index: natural[index])
    for index in (*(index for index in shown if index not in texts), *texts):
        share = left // (len(texts) - texts.index(index)) if index in texts else left
        more = max(min(natural[index] - widths[index], share), 0)
        widths[index] += more
        left -= more
    if len(shown) == 1:
        widths[shown[0]] = min(widths[shown[0]], available)
    beneath = tuple(index for index in range(len(columns)) if index not in widths)
    return Layout(tuple((index, widths[index]) for index in shown), beneath)


def table(
    columns: Sequence[str], cells: Sequence[Sequence[str]], available: int, *, fold: bool, beneath: bool
) -> RenderableType:
    """The table of a terminal so wide.

    Args:
        columns, cells: as `print_table` takes them, with nothing in them that controls a terminal.
        available: cells of the terminal in a line.
        fold: whether texts are broken into lines; else they are cut at their ends.
        beneath: whether columns that have no room are told in a line beneath each row; else they are left out.
    """
    made = layout(columns, cells, available)
    if not beneath or not made.beneath:
        return _beside(columns, cells, made, fold=fold, head=True)
    parts: list[RenderableType] = [_beside(columns, (), made, fold=fold, head=True)]
    parts.append(_told([heading(columns[index]) for index in made.beneath], fold=fold, style="bold"))
    for row in cells:
        parts.append(_beside(columns, [row], made, fold=fold, head=False))
        if any(row[index] for index in made.beneath):
            parts.append(_told([row[index] for index in made.beneath], fold=fold))
    return Group(*parts)


def plain_table(columns: Sequence[str], cells: Sequence[Sequence[str]], title: str = "") -> str:
    """The table where nobody reads it on a terminal: every row is one line and nothing is cut."""
    lines = [[heading(column) for column in columns], *([one_line(cell) for cell in row] for row in cells)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    shown = [title] if title else []
    for line in lines:
        parts = [
            cell.rjust(width) if column.startswith("#") else cell.ljust(width)
            for column, cell, width in zip(columns, line, widths, strict=True)
        ]
        shown.append("  ".join(parts).rstrip())
    return "\n".join(shown) + "\n"


def shortened(text: str, width: int) -> str:
    """A name that fits: its middle is cut, because names differ at their beginnings and ends. Sentences stay whole."""
    if cell_len(text) <= width or " " in text or width < _LEAST_NAME:
        return text
    head = width // 2
    tail = width - 1 - head
    return f"{text[:head]}\u2026{text[-tail:]}"


def one_line(text: str) -> str:
    """The text without ends of lines."""
    return " ".join(text.splitlines()) if "\n" in text else text


def _least(column: str, cells: Sequence[str], natural: int) -> int:
    """How narrow a column may become: numbers, times and what people copy lose nothing."""
    if column.startswith("~"):
        return min(natural, _LEAST_TEXT)
    if column.startswith(("#", "!")) or any(" " in cell for cell in cells):
        return natural
    return min(natural, max(_LEAST_NAME, cell_len(heading(column))))


def _rank(column: str) -> int:
    """Which column gives way first."""
    return {"~": 2, "!": 0}.get(column[:1], 1)


def _sum(widths: Iterable[int]) -> int:
    found = tuple(widths)
    return sum(found) + _GAP * max(len(found) - 1, 0)


def _beside(columns: Sequence[str], cells: Sequence[Sequence[str]], made: Layout, *, fold: bool, head: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=head)
    only = len(made.beside) == 1
    for index, width in made.beside:
        column = columns[index]
        # What stands alone and is still too long is broken: what people copy is not cut.
        folded = (column.startswith("~") and fold) or only
        table.add_column(
            heading(column),
            justify="right" if column.startswith("#") else "left",
            overflow="fold" if folded else "ellipsis",
            no_wrap=not folded,
            width=width,
        )
    for row in cells:
        fitted = [
            row[index] if columns[index].startswith("~") or only else shortened(row[index], width)
            for index, width in made.beside
        ]
        table.add_row(*[Text(cell if fold else one_line(cell)) for cell in fitted])
    return table


def _told(texts: Sequence[str], *, fold: bool, style: str = "") -> RenderableType:
    line = _BETWEEN.join(one_line(text) or _NOTHING for text in texts)
    text = Text(line, style=style, no_wrap=not fold, overflow="fold" if fold else "ellipsis")
    return Padding(text, (0, 0, 0, _INDENT))


def _width(text: str) -> int:
    return max((cell_len(line) for line in text.splitlines()), default=0)
