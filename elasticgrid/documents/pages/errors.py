"""The page of errors: code, exit code and HTTP status of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import NamedTuple

from elasticgrid.core import errors
from elasticgrid.core.errors import ElasticGridError
from elasticgrid.documents.pages.markdown import code, page, summary, table
from elasticgrid.gateway.problems import PROBLEM_JSON, NotAuthenticated, problem_of

ExitCodeOf = Callable[[ElasticGridError], int]


class _Line(NamedTuple):
    depth: int
    kind: type[ElasticGridError]


def errors_page(exit_code_of: ExitCodeOf) -> str:
    """Every error, in the order of the tree."""
    return page(
        "Errors",
        "Every error that is raised on purpose is one of these. It says what happened, where, and what to do next. On "
        f"the command line it decides the exit code; the gateway answers with {code(PROBLEM_JSON)}, in which `code` is "
        "this one.",
        table(
            ("error", "code", "exit code", "HTTP", "means"),
            (
                (
                    "&nbsp;&nbsp;" * depth + code(kind.__name__),
                    code(kind.code),
                    str(exit_code_of(kind(""))),
                    str(problem_of(kind("")).status),
                    summary(kind).split("\n\n", 1)[0],
                )
                for depth, kind in (*_tree(ElasticGridError, 0), _Line(1, NotAuthenticated))
            ),
        ),
        "Besides these, a command that was interrupted with Ctrl-C exits with 130.",
    )


def _tree(kind: type[ElasticGridError], depth: int) -> Iterator[_Line]:
    yield _Line(depth, kind)
    for each in vars(errors).values():
        if inspect.isclass(each) and issubclass(each, ElasticGridError) and each.__bases__ == (kind,):
            yield from _tree(each, depth + 1)
