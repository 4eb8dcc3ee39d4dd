"""The pages for people, and what is written in them: links, code spans, fences."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec

TOP = Path(__file__).parents[2]
PAGES = sorted(
    [*TOP.glob("*.md"), *TOP.glob("docs/**/*.md"), *TOP.glob("services/**/*.md"), *TOP.glob("examples/**/*.md")]
)
#: Pages with commands that people are told to type.
GUIDES = [TOP / "README.md", *sorted(TOP.glob("docs/*.md")), *sorted(TOP.glob("docs/how-to/*.md"))]

_FENCE = re.compile(r"^(?:<!-- tested: (\w+) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_SPAN = re.compile(r"`([^`\n]+)`")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


class Fence(msgspec.Struct, frozen=True):
    """A block of code; `tested` names it for the test that runs it."""

    page: Path
    tested: str
    language: str
    text: str

    @property
    def where(self) -> str:
        """The page and the first line, for the name of a test."""
        first = self.text.strip().split("\n", 1)[0]
        return f"{self.page.relative_to(TOP)}: {first[:60]}"


class Link(msgspec.Struct, frozen=True):
    """A link or a picture."""

    is_picture: bool
    text: str
    target: str


def fences(page: Path) -> list[Fence]:
    """The blocks of code of a page."""
    return [Fence(page, *match.groups(default="")) for match in _FENCE.finditer(page.read_text(encoding="utf-8"))]


def prose(page: Path) -> str:
    """The page without its blocks of code and comments."""
    return _COMMENT.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))


def links(page: Path) -> list[Link]:
    """The links and pictures of a page."""
    return [Link(bool(mark), text, target) for mark, text, target in _LINK.findall(prose(page))]


def spans(page: Path) -> list[str]:
    """What is marked as code within the text."""
    return _SPAN.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """The names by which the page's headings can be linked to."""
    names = set()
    for heading in _HEADING.findall(prose(page)):
        kept = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower())
        names.add(kept.replace(" ", "-"))
    return names


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a block for a shell, as words, comments left out."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words
