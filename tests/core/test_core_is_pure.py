"""The core computes and does nothing else: its syntax trees hold no clock, no chance, no I/O and no hidden state."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import elasticgrid.core

CORE = Path(elasticgrid.core.__file__).parent
MODULES = sorted(CORE.rglob("*.py"))

#: What the core may import: the standard library's pure parts, msgspec, and itself.
ALLOWED = {
    "__future__",
    "bisect",
    "collections",
    "dataclasses",
    "difflib",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "math",
    "msgspec",
    "operator",
    "re",
    "string",
    "types",
    "typing",
    "zlib",
}
#: Built-ins with an effect, or with an answer that differs from run to run.
FORBIDDEN_CALLS = {
    "__import__",
    "breakpoint",
    "compile",
    "eval",
    "exec",
    "globals",
    "hash",
    "id",
    "input",
    "open",
    "print",
    "setattr",
}
#: What of a pure module remembers its calls: state that every caller shares.
FORBIDDEN_NAMES = {"functools": {"cache", "cached_property", "lru_cache"}}
MUTATORS = {
    "add",
    "append",
    "appendleft",
    "clear",
    "discard",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "setdefault",
    "sort",
    "update",
}


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _module_names(tree: ast.Module) -> set[str]:
    names = set()
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def _impurities_of_imports(node: ast.AST) -> Iterator[str]:
    modules = []
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        modules = ["relative import"] if node.level else [str(node.module)]
        if node.module == "elasticgrid":
            modules = [f"elasticgrid.{alias.name}" for alias in node.names]
    for module in modules:
        in_core = module == "elasticgrid.core" or module.startswith("elasticgrid.core.")
        if not in_core and module.split(".")[0] not in ALLOWED:
            yield f"imports {module}"
        if module in FORBIDDEN_NAMES and isinstance(node, ast.Import):
            yield f"imports {module}, of which names are forbidden, as a whole"
    if isinstance(node, ast.ImportFrom):
        for alias in node.names:
            if alias.name in FORBIDDEN_NAMES.get(str(node.module), ()):
                yield f"imports {node.module}.{alias.name}"


def _impurities_of_state(node: ast.AST, shared: set[str]) -> Iterator[str]:
    """Writes to what a whole module, and so every caller, shares."""
    if isinstance(node, ast.Global):
        yield f"global {', '.join(node.names)}"
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    for target in targets:
        if isinstance(target, ast.Attribute | ast.Subscript) and _root(target) in shared:
            yield f"writes to the module's {_root(target)}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
        root = _root(node.func.value)
        if root in shared:
            yield f"changes the module's {root}"


def impurities(source: str) -> list[str]:
    """What in a module's source is not pure, one line each."""
    tree = ast.parse(source)
    shared = _module_names(tree)
    found = []
    for node in ast.walk(tree):
        says = [*_impurities_of_imports(node), *_impurities_of_state(node, shared)]
        if isinstance(node, ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await):
            says.append("is asynchronous")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
            says.append(f"calls {node.func.id}")
        found += [f"line {getattr(node, 'lineno', 0)} {each}" for each in says]
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_a_module_of_the_core_is_pure(module: Path) -> None:
    assert impurities(module.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from datetime import datetime",
        "import random",
        "import os.path",
        "import io, math",
        "import socket",
        "def f():\n    import asyncio",
        "from pathlib import Path",
        "import secrets",
        "import uuid",
        "import threading",
        "import subprocess",
        "import logging",
        "import structlog",
        "from elasticgrid import clock",
        "from elasticgrid.log.port import EventLog",
        "from ..log import port",
        "import functools",
        "from functools import cache as kept",
        "from functools import lru_cache",
        "from functools import cached_property",
        "open('x')",
        "print(1)",
        "input()",
        "hash('a')",
        "async def f(): pass",
        "async def f(g):\n    await g",
        "seen = {}\ndef f(k):\n    seen[k] = 1",
        "seen = []\ndef f(k):\n    seen.append(k)",
        "n = 0\ndef f():\n    global n\n    n += 1",
    ],
)
def test_an_impure_module_would_be_found(source: str) -> None:
    assert impurities(source)


@pytest.mark.parametrize(
    "source",
    [
        "import math",
        "from functools import partial, reduce",
        "from elasticgrid.core.spec import PPM",
        "T = {}\ndef f(k):\n    own = dict(T)\n    own[k] = 1\n    return own",
    ],
)
def test_a_pure_module_is_not_taken_for_an_impure_one(source: str) -> None:
    assert impurities(source) == []
