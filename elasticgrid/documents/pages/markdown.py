"""Markdown as the pages need it: tables, code, and the docstrings they are filled from."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence

GENERATED = "<!-- Generated from the code by elasticgrid.documents.reference. -->\n"
_FIELD = re.compile(r"(\w+(?:, \w+)*): (.+)")


def page(title: str, *parts: str) -> str:
    """A page: its title and its parts, with one empty line between them."""
    return "\n\n".join([f"{GENERATED}\n# {title}", *(part.strip("\n") for part in parts if part)]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; empty text when there are no rows."""
    lines = [_row(row) for row in rows]
    return "\n".join([_row(head), _row(["---"] * len(head)), *lines]) if lines else ""


def code(text: object) -> str:
    """`text` as code; nothing for nothing."""
    return f"`{text}`" if str(text) else ""


def summary(thing: object) -> str:
    """A docstring without its sections (`Attributes:`, `Args:`, `Raises:`), a paragraph a line."""
    paragraphs = []
    for paragraph in (inspect.getdoc(thing) or "").split("\n\n"):
        if re.match(r"(Attributes|Args|Raises|Returns):\n", paragraph):
            break
        paragraphs.append(" ".join(line.strip() for line in paragraph.splitlines()))
    return "\n\n".join(paragraphs)


def attributes(cls: type[object]) -> dict[str, str]:
    """What the `Attributes:` section of the class's docstring says, by name; names told together share the text."""
    found: dict[str, str] = {}
    names: list[str] = []
    _, _, section = (inspect.getdoc(cls) or "").partition("Attributes:\n")
    for line in section.splitlines():
        if not line.startswith("    "):
            if line.strip():
                break
            continue
        told = _FIELD.fullmatch(line.strip()) if not line.startswith("     ") else None
        if told is not None:
            names = told[1].split(", ")
            found |= dict.fromkeys(names, told[2])
        else:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
