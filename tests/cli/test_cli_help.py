"""Help, examples, and what a command costs before it does anything."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer.main
from cli_grid import Run

from elasticgrid.cli.main import GROUPS, app

COMMAND = typer.main.get_command(app)


def verbs() -> Iterator[tuple[str, ...]]:
    """Every verb there is, by the words that lead to it."""

    def below(command: object, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        commands = getattr(command, "commands", None)
        if commands is None:
            yield words
            return
        for name, inner in commands.items():
            yield from below(inner, (*words, name))

    return below(COMMAND, ())


def examples(text: str) -> list[str]:
    return re.findall(r"Example: (.+)", text)


def help_of(words: tuple[str, ...]) -> str:
    command = COMMAND
    for word in words:
        command = command.commands[word]  # type: ignore[attr-defined] # a group has them
    return command.help or ""


VERBS = sorted(verbs())


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_every_verb_has_an_example_of_itself(words: tuple[str, ...]) -> None:
    (example,) = examples(help_of(words))
    assert "elasticgrid " + " ".join(words) in example


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_every_example_is_a_line_that_the_command_line_takes(words: tuple[str, ...]) -> None:
    (example,) = examples(help_of(words))
    # Variables may be set in front.
    given = shlex.split(example)
    given = given[given.index("elasticgrid") + 1 :]
    command, context = COMMAND, None
    while hasattr(command, "commands"):
        context = command.make_context("elasticgrid", list(given), parent=context, resilient_parsing=False)
        name, command, given = command.resolve_command(context, given)  # type: ignore[attr-defined] # a group has it
        assert command is not None, name
    command.make_context(words[-1], list(given), parent=context)


@pytest.mark.parametrize("words", [(), *VERBS], ids=" ".join)
def test_help_fits_into_80_columns(words: tuple[str, ...], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ended = run(*words, "--help")
    assert ended.code == 0
    assert max(map(len, ended.out.splitlines())) <= 80


def test_the_help_shows_the_verbs_in_their_groups(run: Run) -> None:
    out = run("--help").out
    places = [out.index(f" {group} ") for group in GROUPS]
    assert places == sorted(places)


def test_nothing_given_is_answered_with_the_help_and_no_error(run: Run) -> None:
    ended = run()
    assert ended.code == 2
    assert "Run a grid" in ended.out + ended.err
    assert "error" not in ended.err


def test_the_version_is_printed(run: Run) -> None:
    assert re.fullmatch(r"elasticgrid \d+\.\d+\.\d+\S*\n", run("--version").out)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (("nope",), "No such command 'nope'"),
        (("jobs", "lst"), "Did you mean 'list'?"),
        (("jobs", "show"), "Missing argument 'JOB'"),
        (("jobs", "resize", "x", "--min", "few"), "--min"),
        (("plan", "--nodes", "3", "--prefer", "luck"), "--prefer"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_line_ends_with_2_and_names_the_help_that_helps(line: tuple[str, ...], says: str, run: Run) -> None:
    ended = run(*line)
    assert ended.code == 2
    assert says in ended.err
    assert re.search(r"see: elasticgrid( \w+)* --help\n", ended.err)


@pytest.mark.parametrize(
    "line", [("--help",), ("plan", "--nodes", "4"), ("config", "show")], ids=lambda line: " ".join(line)
)
def test_what_needs_no_server_loads_no_server_code(line: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom elasticgrid.cli.main import main\n"
        f"assert main({list(line)!r}) == 0\n"
        "print([name for name in ('litestar', 'nats', 'uvicorn', 'aiosqlite', 'iroh_tinker', 'httpx') "
        "if name in sys.modules], file=sys.stderr)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stderr.splitlines()[-1] == "[]"


def test_the_command_line_alone_loads_little(run: Run) -> None:
    code = (
        "import sys, elasticgrid.cli.main\n"
        "print([name for name in sys.modules if name.split('.')[0] in "
        "('litestar', 'nats', 'uvicorn', 'aiosqlite', 'yaml', 'httpx', 'zstandard', 'structlog')])\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
