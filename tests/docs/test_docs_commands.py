"""What people are told to type can be typed: commands parse, code compiles, files are valid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
from doc_pages import GUIDES, PAGES, TOP, Fence, commands, fences

from elasticgrid.cli.main import app
from elasticgrid.config.grid_file import parse_grid
from elasticgrid.config.job_file import parse_job

ALL = [fence for page in PAGES for fence in fences(page)]
#: What the guides may tell people to run besides this program.
OTHERS = {
    "make",
    "curl",
    "sqlite3",
    "docker",
    "promtool",
    "python",
    ".",
    "export",
    "cd",
    "umask",
    "for",
    "echo",
    "done",
    "openssl",
}


def of(language: str) -> list[Any]:
    return [pytest.param(fence, id=fence.where) for fence in ALL if fence.language == language]


def parse(words: list[str]) -> None:
    """Parse a command line down to its verb; raises where its usage is wrong."""
    command: Any = typer.main.get_command(app)
    rest = words[1:]
    while hasattr(command, "commands"):
        assert rest, f"{words} names no verb"
        assert rest[0] in command.commands, f"{words}: no verb {rest[0]}"
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context(" ".join(words[:2]), rest).close()


@pytest.mark.parametrize("fence", of("sh"))
def test_every_command_is_one_that_there_is(fence: Fence) -> None:
    targets = re.findall(r"^([\w-]+):", (TOP / "Makefile").read_text(), re.MULTILINE)
    for words in commands(fence.text):
        while re.match(r"\w+=", words[0]):
            words = words[1:] or ["export"]
        program = words[0].rsplit("/", 1)[-1] if words[0].startswith(".venv/") else words[0]
        if program == "elasticgrid":
            parse(words)
        elif program == "make":
            assert [word for word in words[1:] if "=" not in word and word not in targets] == []
        elif fence.page in GUIDES:
            assert program in OTHERS, words


def test_a_wrong_verb_and_a_wrong_option_would_be_found() -> None:
    with pytest.raises(AssertionError):
        parse(["elasticgrid", "jobs", "explode"])
    with pytest.raises(Exception, match="--explode"):
        parse(["elasticgrid", "submit", "job.yaml", "--explode"])


@pytest.mark.parametrize("fence", of("python"))
def test_every_piece_of_python_compiles(fence: Fence) -> None:
    compile(fence.text, str(fence.page), "exec")


@pytest.mark.parametrize("fence", of("yaml"))
def test_every_file_that_is_shown_is_valid(fence: Fence) -> None:
    if "providers:\n" in fence.text and "\nrun:" not in fence.text:
        assert parse_grid(fence.text, file="grid.yaml")
    elif re.search(r"^run:", fence.text, re.MULTILINE):
        assert parse_job(fence.text, file="job.yaml", folder=Path("/"), submitted_ms=0)


def test_every_program_that_is_said_to_be_tested_is_one_that_a_test_knows() -> None:
    tested = {fence.tested for fence in ALL if fence.tested}
    assert tested <= {"hook", "sse", "bus", "restore", "torch_before", "torch_after"}
