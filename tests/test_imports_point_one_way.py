"""Imports point one way: from what people type, over the services, down to the core that knows of nobody."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import elasticgrid

PACKAGE = Path(elasticgrid.__file__).parent

_BASE = {
    "core",
    "base64url",
    "clock",
    "environment",
    "logs",
    "marked_processes",
    "output_files",
    "parent_death",
    "terminal",
    "utc",
}
_LOG = _BASE | {"bus", "log"}
_VIEWS = _LOG | {"config", "projections", "review"}
_SERVICES = {"agent", "decider", "launcher", "gateway"}

#: Part of the package -> what of the package it may import besides itself. A part that is not here has no place yet.
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "base64url": set(),
    "clock": set(),
    "environment": set(),
    "marked_processes": set(),
    "output_files": set(),
    "parent_death": set(),
    "terminal": set(),
    "utc": set(),
    "logs": {"terminal"},
    "config": {"core"},
    "documents": _VIEWS | _SERVICES | {"metrics"},
    "bus": _BASE,
    "log": _BASE | {"bus"},
    # Runs inside somebody else's training: three modules of the bus and nothing that serves.
    "publish": {"core", "environment", "bus.connect", "bus.subjects", "bus.windowed_publisher"},
    "projections": _LOG,
    "sim": _LOG,
    "review": _LOG | {"config", "projections", "sim"},
    "testing": _LOG | {"sim"},
    "metrics": _LOG | {"projections"},
    "agent": _LOG | {"publish"},
    "elastic": _LOG | {"agent", "publish"},
    "decider": _VIEWS | {"metrics"},
    "launcher": _VIEWS | {"metrics"},
    "gateway": _VIEWS | {"metrics"},
    "runtime": _VIEWS | _SERVICES | {"metrics"},
    "demo": _VIEWS | _SERVICES | {"runtime"},
    "cli": _VIEWS | _SERVICES | {"elastic", "runtime", "demo", "documents"},
    "__init__": {"publish"},
    "__main__": {"cli"},
}


def part_of(path: Path) -> str:
    """The first name below the package: a folder or a module."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(source: str) -> Iterator[tuple[int, str]]:
    """(line, what) of every import from the package, `what` without the package's own name."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("elasticgrid.") and name != "elasticgrid.__version__":
                yield node.lineno, name.removeprefix("elasticgrid.")


def broken(part: str, source: str) -> list[str]:
    """The imports that point the wrong way."""
    allowed = MAY_IMPORT[part] | {part}
    return [
        f"line {line}: {part} imports {what}"
        for line, what in imports(source)
        if not any(what == each or what.startswith(f"{each}.") for each in allowed)
    ]


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_lies_below_it(path: Path) -> None:
    part = part_of(path)
    assert part in MAY_IMPORT, f"say in MAY_IMPORT what {part} may import"
    assert broken(part, path.read_text(encoding="utf-8")) == []


def test_no_two_parts_may_import_each_other() -> None:
    def below(part: str, seen: frozenset[str] = frozenset()) -> set[str]:
        found: set[str] = set()
        for each in {name.split(".")[0] for name in MAY_IMPORT[part]} - seen:
            found |= {each} | below(each, seen | {each})
        return found

    assert [part for part in MAY_IMPORT if part in below(part)] == []


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("core", "from elasticgrid.clock import Clock"),
        ("core", "def f():\n    import elasticgrid.log.port"),
        ("publish", "from elasticgrid.bus import streams"),
        ("publish", "from elasticgrid.bus.follower import Follower"),
        ("decider", "from elasticgrid.launcher import service"),
        ("gateway", "from elasticgrid.cli.main import main"),
    ],
)
def test_an_import_that_points_the_wrong_way_would_be_found(part: str, source: str) -> None:
    assert broken(part, source)
