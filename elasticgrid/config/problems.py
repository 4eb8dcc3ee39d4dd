"""What is wrong with a file: all of it, each with its line, its field and a hint."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import msgspec

from elasticgrid.core.errors import InvalidInput

#: Problems that one error tells; the rest are counted.
MAX_TOLD = 20


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong. `path` is the field, such as `nodes.min` or `providers[1].engine`."""

    line: int
    path: str
    what: str
    hint: str = ""


class Problems:
    """Collects the problems of one file and raises them together."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._found: dict[tuple[int, str], Problem] = {}
        self._uncollected = 0

    def add(self, line: int, path: str, what: str, hint: str = "") -> None:
        """Note a problem; a second one of the same field on the same line is dropped."""
        self._found.setdefault((line, path), Problem(line, path, what, hint))

    def add_more(self, count: int) -> None:
        """Count problems that are not worth telling one by one."""
        self._uncollected += count

    def concerns(self, section: str) -> bool:
        """Whether something in this top-level section, or in the file as a whole, is wrong already."""
        return any(
            problem.path in ("", section) or problem.path.startswith((f"{section}.", f"{section}["))
            for problem in self._found.values()
        )

    def raise_as(self, error: type[InvalidInput]) -> None:
        """Raise what was found, if anything was.

        The first problem (by line) is the error itself; the others are the lines of its story, each as
        `file:line: field: what (hint)`.
        """
        if not self._found:
            return
        first, *others = sorted(self._found.values(), key=lambda problem: problem.line)
        story = [str(self._as_error(InvalidInput, problem)) for problem in others[: MAX_TOLD - 1]]
        untold = len(others) - len(story) + self._uncollected
        if untold:
            story.append(f"and {untold} more")
        raise self._as_error(error, first, story)

    def _as_error(self, error: type[InvalidInput], problem: Problem, story: Sequence[str] = ()) -> InvalidInput:
        where = f"{self.file}:{problem.line}"
        if problem.path:
            where += f": {problem.path}"
        return error(problem.what, where=where, hint=problem.hint, story=story)


def name_hint(given: str, allowed: Iterable[str]) -> str:
    """`did you mean ...?` for a near miss, and what is allowed."""
    names = list(allowed)
    near = difflib.get_close_matches(given.lower(), names, n=1)
    guess = f"did you mean `{near[0]}`? " if near else ""
    return f"{guess}allowed: {', '.join(names)}" if names else guess.strip()
