"""The page of settings and environment variables."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Final

from elasticgrid import environment
from elasticgrid.config import settings
from elasticgrid.documents.pages.markdown import attributes, code, page, table

_VARIABLE: Final = re.compile(r'\w+: Final = "(\w+)"')


def settings_page() -> str:
    """What can be set, and by which variables processes tell each other what they need."""
    told = attributes(settings.Settings)
    return page(
        "Settings and environment variables",
        "## Of the command line",
        f"A flag wins over the environment, that over the project's file ({code(settings.PROJECT_FILE)} in the current "
        f"folder), that over the user's file ({code('~/.config/' + settings.USER_FILE)}, or in XDG_CONFIG_HOME), that "
        "over the default. Paths in a file are relative to the file. Flags with a variable of their own are in "
        "[the command line](command-line.md).",
        table(
            ("setting", "variable", "is"),
            ((code(name), code(variable), told[name]) for name, variable in settings.VARIABLES.items()),
        ),
        "## From launcher to agent to worker",
        "Services read the first four; what else is set there comes from the launcher or the agent, and a job's `env` "
        "may not name it.",
        table(
            ("variable", "is"),
            ((", ".join(map(code, names)), meaning) for names, meaning in _groups(inspect.getsource(environment))),
        ),
        "Variables of nats-server in containers are in `services/README.md`.",
    )


def _groups(source: str) -> Iterator[tuple[list[str], str]]:
    """The variables of a module of constants, in groups: a comment of `#: ...` lines and the constants behind it."""
    names: list[str] = []
    meaning: list[str] = []
    for line in [*source.splitlines(), "#: "]:
        if line.startswith("#: "):
            if names:
                yield names, " ".join(meaning)
                names, meaning = [], []
            meaning.append(line.removeprefix("#: "))
        elif found := _VARIABLE.match(line):
            names.append(found[1])
