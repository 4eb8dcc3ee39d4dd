"""Workers' output repeated on the agent's own: promptly, whole, and without any harm when nobody takes it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elasticgrid.agent.worker_output import LINE_BYTES, UNFINISHED_S, OutputSettings, WorkerOutput
from elasticgrid.output_files import passed_name, tail_of, whole_characters, whole_lines


class Time:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Repeated:
    """One worker's file, and what is repeated of it."""

    def __init__(self, path: Path, settings: OutputSettings) -> None:
        self.path = path
        self.clock = Time()
        self.said: list[bytes] = []
        self.output = WorkerOutput(settings, self.said.append, clock=self.clock)
        self.output.add(0, path)

    def write(self, data: bytes, *, turns: int = 1) -> bytes:
        """Append to the file; returns what is repeated in the turns that follow, a second apart."""
        with self.path.open("ab") as file:
            file.write(data)
        for _ in range(turns):
            self.output.turn()
            self.clock.now_s += UNFINISHED_S
        return self.take()

    def take(self) -> bytes:
        """What was repeated since this was asked last."""
        said = b"".join(self.said)
        self.said.clear()
        return said


@pytest.fixture
def repeated(tmp_path: Path) -> Repeated:
    return Repeated(tmp_path / "rank-0.log", OutputSettings(tee=True))


class Broken:
    """An output whose reader is gone."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.tries = 0

    def __call__(self, lines: bytes) -> None:
        self.tries += 1
        raise self.error


# Lines --------------------------------------------------------------------------------------------------------------


def test_a_progress_bar_is_repeated_as_it_moves(repeated: Repeated) -> None:
    seen = [repeated.write(b"\rstep %d" % number) for number in range(4)]
    assert seen == [b"", b"[rank 0] step 0\n", b"[rank 0] step 1\n", b"[rank 0] step 2\n"]
    assert repeated.write(b"", turns=2) == b"[rank 0] step 3\n"
    assert repeated.write(b"\n") == b""
    assert repeated.write(b"done\n") == b"[rank 0] done\n"


def test_a_bar_that_ends_with_a_carriage_return_is_one_as_well(repeated: Repeated) -> None:
    assert repeated.write(b"10 %\r20 %\r") == b"[rank 0] 10 %\n"
    assert repeated.write(b"30 %\r") == b"[rank 0] 20 %\n"
    assert repeated.write(b"\n") == b"[rank 0] 30 %\n"


def test_a_line_that_does_not_end_is_repeated_after_a_second_and_its_end_makes_no_other(repeated: Repeated) -> None:
    assert repeated.write(b"loading ...") == b""
    assert repeated.write(b"", turns=1) == b"[rank 0] loading ...\n"
    assert repeated.write(b"\n") == b""
    assert repeated.write(b"\n") == b"[rank 0] \n"


def test_dots_that_never_stop_are_repeated_now_and_then(repeated: Repeated) -> None:
    seen = [repeated.write(b".") for _ in range(6)]
    assert sum(bool(line) for line in seen) >= 3
    repeated.output.finish()
    seen.append(repeated.take())
    assert b"".join(seen).replace(b"[rank 0] ", b"").replace(b"\n", b"") == b"......"


@pytest.mark.parametrize("pieces", [[b"\n"], [b"a\n", b"\n", b"b\n"], [b"\n\n"], [b"a", b"\n\n"], [b"\r\n"]])
def test_every_blank_line_is_repeated_however_it_arrives(repeated: Repeated, pieces: list[bytes]) -> None:
    seen = b"".join(repeated.write(piece) for piece in pieces)
    wanted = b"".join(pieces).replace(b"\r\n", b"\n").splitlines()
    assert seen == b"".join(b"[rank 0] %b\n" % line for line in wanted)


def test_no_character_is_cut_in_two(repeated: Repeated) -> None:
    text = "ü€😀".encode()
    seen = b""
    for byte in text:
        seen += repeated.write(bytes([byte]), turns=2)
    repeated.output.finish()
    seen += repeated.take()
    assert b"".join(line.removeprefix(b"[rank 0] ") for line in seen.splitlines()) == text
    assert [line.decode() for line in seen.splitlines()] == ["[rank 0] ü", "[rank 0] €", "[rank 0] 😀"]


def test_a_line_longer_than_is_kept_is_repeated_in_pieces_of_whole_characters(repeated: Repeated) -> None:
    line = "€".encode() * LINE_BYTES
    seen = repeated.write(line + b"\n").splitlines()
    assert b"".join(each.removeprefix(b"[rank 0] ") for each in seen) == line
    for each in seen:
        each.decode()
    assert repeated.write(b"\n") == b"[rank 0] \n"


@pytest.mark.parametrize(
    ("data", "lines", "characters"),
    [
        (b"", 0, 0),
        (b"a", 0, 1),
        (b"a\n", 2, 2),
        (b"a\r", 0, 2),
        (b"a\rb", 2, 3),
        (b"a\nb\r", 2, 4),
        (b"\xff", 0, 0),
        (b"a\xc3", 0, 1),
        (b"a\xe2\x82", 0, 1),
        (b"\xf0\x9f\x98", 0, 0),
        (b"\xf0\x9f\x98\x80", 0, 4),
        (b"\x80\x80\x80\x80", 0, 4),
    ],
)
def test_where_output_may_be_cut(data: bytes, lines: int, characters: int) -> None:
    assert (whole_lines(data), whole_characters(data)) == (lines, characters)


def test_the_tail_of_a_file_is_its_last_lines_and_never_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"\xff\n" + b"".join(b"line %d\n" % number for number in range(1_000)))
    assert tail_of(path, 20, 4_096).splitlines() == [f"line {number}" for number in range(980, 1_000)]
    assert tail_of(path, 20, 10) == "\nline 999"
    assert tail_of(tmp_path / "none", 20) == ""


# Nobody who takes it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), ValueError("I/O operation on closed file")])
def test_output_that_nobody_takes_is_given_up_once_and_still_kept_to_its_size(tmp_path: Path, error: Exception) -> None:
    broken = Broken(error)
    path = tmp_path / "rank-0.log"
    output = WorkerOutput(OutputSettings(max_bytes=100, files=1, tee=True), broken)
    output.add(0, path)
    for _ in range(20):
        with path.open("ab") as file:
            file.write(b"a line of a busy worker\n")
        output.turn()
    output.finish()
    assert broken.tries == 1
    assert path.stat().st_size <= 124
    assert int((tmp_path / passed_name(path.name)).read_text()) + path.stat().st_size == 20 * 24


def test_the_end_of_an_output_that_nobody_takes_is_no_error(tmp_path: Path) -> None:
    for write in (None, Broken(BrokenPipeError(32, "Broken pipe"))):
        output = WorkerOutput(OutputSettings(tee=True), write)
        output.add(0, tmp_path / "rank-0.log")
        (tmp_path / "rank-0.log").write_bytes(b"no end of line")
        output.finish()


def test_a_file_that_somebody_reads_is_rotated_when_they_are_done(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    output = WorkerOutput(OutputSettings(max_bytes=10, files=1), None)
    output.add(0, path)
    path.write_bytes(b"0123456789a\n")
    with path.open("rb") as reader:
        fcntl.flock(reader.fileno(), fcntl.LOCK_SH)
        output.turn()
        assert path.stat().st_size == 12
    output.turn()
    assert path.stat().st_size == 0
    assert (tmp_path / "rank-0.log.1").read_bytes() == b"0123456789a\n"


def test_a_copy_that_cannot_be_made_costs_nothing_that_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    output = WorkerOutput(OutputSettings(max_bytes=10, files=2), None)
    output.add(0, path)
    path.write_bytes(b"the first file\n")
    output.turn()
    (tmp_path / "rank-0.log.new").mkdir()
    path.write_bytes(b"the second file\n")
    for _ in range(3):
        output.turn()
    assert path.read_bytes() == b"the second file\n"
    assert (tmp_path / "rank-0.log.1").read_bytes() == b"the first file\n"
    (tmp_path / "rank-0.log.new").rmdir()
    output.turn()
    assert (tmp_path / "rank-0.log.1").read_bytes() == b"the second file\n"
    assert (tmp_path / "rank-0.log.2").read_bytes() == b"the first file\n"


REPEAT = """
import sys
from pathlib import Path
from elasticgrid.agent.running_round import own_output
from elasticgrid.agent.worker_output import OutputSettings, WorkerOutput
from elasticgrid.logs import configure_logging
configure_logging(level="warning")
for number in range(2):
    path = Path(sys.argv[1], f"rank-{number}.log")
    output = WorkerOutput(OutputSettings(tee=True), own_output())
    output.add(number, path)
    path.write_bytes(b"a line\\nno end of line")
    output.turn()
    output.finish()
"""


@pytest.mark.process
@pytest.mark.parametrize(("output", "told"), [(">&-", 0), ("", 1), (">/dev/full", 1)])
def test_a_process_without_a_usable_output_succeeds_and_says_so_at_most_once(
    tmp_path: Path, output: str, told: int
) -> None:
    readable, writable = os.pipe()
    os.close(readable)
    try:
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {output}', "sh", sys.executable, "-c", REPEAT, str(tmp_path)],
            stdout=writable,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        os.close(writable)
    assert (done.returncode, done.stderr.count("not repeated any more")) == (0, told)
    assert "Traceback" not in done.stderr
