"""How data is printed: tables that fit a terminal, lines that a pipe can use."""

from __future__ import annotations

import re
import socket
import sys
import threading
from pathlib import Path

import pytest
from cli_grid import GridThread, Run
from cli_terminal import on_terminal
from msgspec.structs import replace

from elasticgrid.cli.output import Format, print_data, print_table
from elasticgrid.cli.tables import shortened
from elasticgrid.core import events as ev


def test_off_a_terminal_every_row_is_one_line_and_nothing_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 60
    print_table(("!name", "#count", "~text"), [("a", 1, long), ("longer", 22, "two\nlines")])
    assert capsys.readouterr().out.splitlines() == [
        "name    count  text",
        f"a           1  {long.strip()}",
        "longer     22  two lines",
    ]


def test_cells_are_text_and_never_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name",), [("[bold]x[/bold]",)])
    assert "[bold]x[/bold]" in capsys.readouterr().out


@pytest.mark.process
def test_on_a_terminal_tables_fit_and_what_is_copied_is_whole(past: GridThread) -> None:
    lines = on_terminal("decisions", "list", "train", environ={"NO_COLOR": "1"})
    assert max(map(len, lines)) <= 80
    lines = on_terminal("jobs", "list", environ={"NO_COLOR": "1"})
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("train ")
    lines = on_terminal("events", "list", "--limit", "30", environ={"NO_COLOR": "1"})
    assert max(map(len, lines)) <= 80
    assert any("decision.placement" in line for line in lines)


@pytest.mark.process
@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_no_colour_where_none_is_wanted(environ: dict[str, str], past: GridThread) -> None:
    assert not any("\x1b[" in line for line in on_terminal("jobs", "list", environ=environ))
    assert not any("\x1b[" in line for line in on_terminal("jobs", "watch", "train", environ=environ))


@pytest.mark.process
@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_nothing_moves_where_no_colour_is_wanted(
    environ: dict[str, str], past: GridThread, archive: Path, folder: Path
) -> None:
    """Neither what takes its time and would show that by a bar or a spinner, nor what logs while it runs."""
    (folder / "restored").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        up = on_terminal("up", "--data", "taken", "--http", address, code=2, environ=environ)
    assert any("mirror" in line for line in up)
    assert not any("\x1b" in line for line in up)
    for words in (
        ("replay", "verify", str(archive)),
        ("events", "export", "copy.egz"),
        ("events", "restore", "--data", "restored", "--from", str(archive)),
        ("decisions", "why", "train"),
        ("doctor",),
    ):
        lines = on_terminal(*words, environ=environ)
        assert lines
        assert not any("\x1b" in line for line in lines), (words, lines)


@pytest.mark.process
def test_bars_are_shown_where_they_may_be(archive: Path) -> None:
    assert any("\x1b[?25l" in line for line in on_terminal("replay", "verify", str(archive)))


@pytest.mark.parametrize("environ", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_logs_on_a_terminal_are_text_in_colour_only_where_it_is_wanted(environ: dict[str, str]) -> None:
    program = (
        "import sys, structlog\nfrom elasticgrid.logs import configure_logging\n"
        "configure_logging()\nstructlog.get_logger().info('said', number=1)"
    )
    lines = on_terminal("-c", program, program=(sys.executable,), environ=environ)
    assert any("\x1b" in line for line in lines) == (not environ)
    assert "said" in "".join(lines)
    assert not lines[0].startswith("{")


@pytest.mark.process
def test_watching_on_a_terminal_ends_with_the_whole_picture(past: GridThread) -> None:
    text = "\n".join(on_terminal("jobs", "watch", "train"))
    assert "completed" in text
    assert "decision.outcome" in text


def test_each_format_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"a": 1}, {"a": 2}]
    print_data(rows, Format.JSON)
    assert capsys.readouterr().out == '[\n  {\n    "a": 1\n  },\n  {\n    "a": 2\n  }\n]\n'
    print_data(rows, Format.JSONL)
    assert capsys.readouterr().out == '{"a":1}\n{"a":2}\n'
    print_data(rows, Format.YAML)
    assert capsys.readouterr().out == "- a: 1\n- a: 2\n"


def test_data_goes_to_standard_output_and_hints_to_standard_error(run: Run, grid: GridThread, job_file: Path) -> None:
    submitted = run("submit", job_file)
    assert submitted.out.startswith("train-")
    assert "next: elasticgrid jobs watch train-" in submitted.err
    listed = run("jobs", "list", "-o", "jsonl")
    assert len(listed.out.splitlines()) == 1
    assert listed.err == ""


def test_an_error_is_one_line_off_a_terminal(run: Run) -> None:
    ended = run("validate", "x" * 200 + ".yaml")
    assert ended.code == 3
    assert len(ended.err.splitlines()) == 1


def test_what_other_people_wrote_cannot_move_the_cursor_or_fake_a_line(
    run: Run, grid: GridThread, job_file: Path
) -> None:
    job = run("submit", job_file).out.strip()
    evil = "x\x1b[2J\x1b]0;title\x07\n     9 train decision.scale fake"
    assert run("jobs", "cancel", job, "--reason", evil).code == 0
    for line in (("events", "list"), ("jobs", "show", job), ("replay", "timeline")):
        ended = run(*line)
        assert "\x1b" not in ended.out
        assert not any(each.startswith("     9 train") for each in ended.out.splitlines())
        assert "\x1b" not in ended.err


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("short", 20, "short"),
        ("default-elastic-num-p5a1-987d884a", 20, "default-el…-987d884a"),
        ("a sentence that is longer than its column", 20, "a sentence that is longer than its column"),
        ("abcdefghijkl", 5, "abcdefghijkl"),
    ],
)
def test_names_lose_their_middle_and_sentences_nothing(text: str, width: int, shown: str) -> None:
    assert shortened(text, width) == shown
    assert len(shown) <= width or shown == text


@pytest.mark.process
@pytest.mark.parametrize("columns", ["80", "200"])
def test_watching_shows_size_nodes_steps_cost_and_the_outcome(past: GridThread, columns: str) -> None:
    lines = on_terminal("jobs", "watch", "train", environ={"NO_COLOR": "", "COLUMNS": columns})
    rows = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line).strip() for line in lines[-40:]]
    for row in ("size", "progress", "steps", "outcome", "cost"):
        assert any(each.startswith(f"{row} ") for each in rows)
    last = "\n".join(rows)
    assert "of it waiting for a worker" in last
    assert "tokens/s" in last


def test_a_hint_says_what_to_do_next_and_never_in_the_way_of_data(run: Run, past: GridThread, archive: Path) -> None:
    for line, hint in (
        (("jobs", "list"), "next: elasticgrid jobs watch train"),
        (("decisions", "list", "train"), "next: elasticgrid decisions why train"),
        (("decisions", "why", "train"), "next: elasticgrid jobs watch train"),
        (("decisions", "why", "train", "--archive", archive), f"next: elasticgrid replay timeline {archive}"),
        (("events", "list", "--limit", "1000"), "next: elasticgrid events tail --after"),
        (("providers", "list"), "next: elasticgrid providers check"),
        (("cost",), "next: elasticgrid cost --by provider"),
        (("replay", "verify", archive), f"next: elasticgrid replay timeline {archive}"),
        (("plan", "--nodes", "3"), "next: elasticgrid spec --nodes 3"),
    ):
        ended = run(*line)
        assert ended.code == 0
        assert hint in ended.err
        assert "next:" not in ended.out
        if line[0] != "replay":
            assert "next:" not in run(*line, "--json").err


@pytest.mark.process
def test_waiting_on_a_terminal_shows_the_job_live_and_ends_with_it(grid: GridThread, job_file: Path) -> None:
    def end_the_job() -> None:
        async def wait() -> None:
            async for recorded in grid.log.follow():
                event = recorded.event
                if isinstance(event, ev.Event) and isinstance(event.data, ev.JobSubmitted):
                    over = ev.OutcomeDecided(outcome="failed", reason="no node came")
                    ended = replace(event, id="over", actor="decider", data=over, causation_id=event.id)
                    await grid.log.append([ended])
                    return

        grid.call(wait())

    ending = threading.Thread(target=end_the_job)
    ending.start()
    text = "\n".join(on_terminal("submit", str(job_file), "--wait", code=1))
    ending.join()
    assert "no node came" in text
    assert "decision.outcome" in text
