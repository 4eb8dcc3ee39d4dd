"""Everything that a training job must outlive has a test, and every test that says so names something of the list."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[1]
#: What the list must hold at least.
REQUIRED: Final = {
    *("A", "B", "C", "D", "E", "M", "N", "O", "P", "Q", "R", "S"),
    *("14", "15", "18", "20", "21", "22"),
    *("resize", "notice", "kill-worker", "kill-node", "bus-cut", "chaos"),
}


def listed() -> set[str]:
    """What the README's table names."""
    rows = [line for line in Path(__file__).with_name("README.md").read_text().splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([\w-]+)`", row.split("|")[1])}


def shown(source: str) -> Iterator[tuple[str, int]]:
    """(scenario, line) of every mark in a file of tests."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.survive":
            for argument in node.args:
                assert isinstance(argument, ast.Constant), f"line {node.lineno}: not a text"
                yield str(argument.value), node.lineno


ALL: Final = [
    (name, f"{path.relative_to(TESTS)}:{line}")
    for path in sorted(TESTS.rglob("test_*.py"))
    for name, line in shown(path.read_text(encoding="utf-8"))
]


def test_the_list_holds_everything_that_must_be_outlived() -> None:
    assert listed() >= REQUIRED


@pytest.mark.parametrize("name", sorted(listed()))
def test_everything_on_the_list_has_a_test(name: str) -> None:
    assert [where for shows, where in ALL if shows == name]


def test_no_test_names_what_is_not_on_the_list() -> None:
    assert [(name, where) for name, where in ALL if name not in listed()] == []


def test_every_mark_names_something() -> None:
    marked = r"pytest\.mark\.survive(?!\()|pytest\.mark\.survive\(\)"
    found = {path for path in TESTS.rglob("test_*.py") if re.search(marked, path.read_text())}
    assert found - {Path(__file__)} == set()
