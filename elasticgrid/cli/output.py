"""What the command line prints: data to standard output in the format asked for, everything else to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text


class Format(StrEnum):
    """How data is printed."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"
    YAML = "yaml"


def plain_terminal() -> bool:
    """Whether colour and animation are unwanted: no terminal, `NO_COLOR`, or `TERM=dumb`."""
    return not sys.stdout.isatty() or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def stdout() -> Console:
    """Where data goes."""
    return Console(no_color=plain_terminal() or None, highlight=False, soft_wrap=plain_terminal())


def stderr() -> Console:
    """Where messages, hints and progress go. A line stays a line when no person reads it."""
    no_color = bool(os.environ.get("NO_COLOR")) or None
    return Console(stderr=True, no_color=no_color, highlight=False, soft_wrap=not sys.stderr.isatty())


def say(message: str) -> None:
    """A message to the person, on standard error. Its text is not interpreted."""
    stderr().print(Text(message))


def print_data(value: Any, output: Format) -> None:
    """Print one value as JSON, one JSON line, or YAML."""
    plain = msgspec.to_builtins(value)
    if output is Format.YAML:
        sys.stdout.write(msgspec.yaml.encode(plain).decode())
    elif output is Format.JSONL:
        rows = plain if isinstance(plain, list) else [plain]
        for row in rows:
            print_line(row)
    else:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode() + "\n")
    sys.stdout.flush()


def print_line(value: Any) -> None:
    """Print one value as a JSON line, at once."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def print_table(columns: Iterable[str], rows: Iterable[Iterable[object]], *, title: str = "") -> None:
    """Print a table; cells are text and never interpreted as markup."""
    table = Table(title=title or None, box=None, pad_edge=False, header_style="bold")
    for column in columns:
        numeric = column.startswith("#")
        table.add_column(column.removeprefix("#"), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*[Text(str(cell)) for cell in row])
    stdout().print(table)


def dollars(microdollars: int, *, places: int = 2) -> str:
    """Money for people."""
    return f"${microdollars / 1_000_000:,.{places}f}"
