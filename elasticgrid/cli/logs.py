"""`jobs logs`: what a job's workers write."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from elasticgrid.cli.asked_for import parse_job
from elasticgrid.cli.failures import INTERRUPTED, OK
from elasticgrid.cli.hints import next_command
from elasticgrid.cli.options import DataDir, JobArgument, Json, KeyFile, Output, Tenant, Url, chosen, flags
from elasticgrid.cli.output import Format, print_data, print_line, print_text, say
from elasticgrid.cli.watch import tell_of_going_on
from elasticgrid.core.errors import InvalidInput

if TYPE_CHECKING:
    from elasticgrid.cli.client import Gateway
    from elasticgrid.gateway.worker_logs import LogText

_RECONNECT_S: Final = 1.0
#: Lines asked for when a broken stream is taken up again; what was shown already is left out.
_LINES_AGAIN: Final = 10_000
_RETURN: Final = "\r"


def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job is over or Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", help="Of each worker's end.", min=0, max=10_000)] = 50,
    node: Annotated[str, typer.Option("--node", help="Only this node's.", metavar="NODE")] = "",
    rank: Annotated[int | None, typer.Option("--rank", help="Only this rank's.", min=0)] = None,
    round_: Annotated[
        int, typer.Option("--round", help="From this round on, instead of the last one.", min=0, show_default=False)
    ] = 0,
    agents: Annotated[bool, typer.Option("--agents", help="What the nodes' agents write instead.")] = False,
    setup: Annotated[bool, typer.Option("--setup", help="What the job's setup command wrote instead.")] = False,
    tenant: Tenant = None,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Show what a job's workers wrote last, or follow it.

    Workers on the gateway's machine are read; for others, say who has it. Before any worker has written something it
    is what the setup command wrote.

    Example: elasticgrid jobs logs elastic-numpy-abc123 -f --rank 0
    """
    from elasticgrid.cli.client import gateway, job_path
    from elasticgrid.gateway.answers import LogPage

    if agents and setup:
        raise InvalidInput("only one of the two can be shown", where="--agents, --setup", hint="leave one out")
    tenant, job = parse_job(job, tenant)
    asked: dict[str, Any] = {
        "tenant": tenant,
        "node": node or None,
        "rank": rank,
        "round": round_ or None,
        "agents": True if agents else None,
        "setup": True if setup else None,
    }
    wanted = chosen(output, json)
    where = flags(url, key_file, data)
    with gateway(where) as grid:
        if follow:
            return _follow(grid, job, asked, lines, wanted, where)
        page = grid.get(job_path(job, "logs"), LogPage, lines=lines, **asked)
    if wanted is not Format.TEXT:
        print_data(page.pieces if wanted is Format.JSONL else page, wanted)
    else:
        printer = _Printer(several=len(page.pieces) > 1)
        for piece in page.pieces:
            printer.show(piece)
        printer.end_line()
    if page.elsewhere:
        say(f"not on this machine, ask their providers: {', '.join(page.elsewhere)}")
    elif setup or agents:
        if not page.pieces:
            say(f"no {'setup command' if setup else 'agent'} of this machine has written anything yet")
    elif all(piece.what == "setup" for piece in page.pieces):
        said = "; this is what its setup command wrote" if page.pieces else ""
        say(f"no worker has written anything yet{said}")
    return OK


def _follow(
    grid: Gateway, job: str, asked: dict[str, Any], lines: int, output: Format, where: dict[str, str | None]
) -> int:
    from elasticgrid.cli.client import StreamBroken, job_path
    from elasticgrid.gateway.worker_logs import LogText

    printer = _Printer(several=True)
    try:
        while True:
            printer.begin_stream()
            try:
                for piece in grid.stream(job_path(job, "logs", "stream"), LogText, lines=lines, **asked):
                    new = printer.unseen(piece)
                    if new is None:
                        continue
                    if output is Format.TEXT:
                        printer.show(new)
                    else:
                        print_line(new)
            except StreamBroken:
                lines = _LINES_AGAIN
                time.sleep(_RECONNECT_S)
            else:
                printer.end_line()
                see = next_command("jobs show", job, tenant=asked["tenant"], where=where)
                say(f"the job is over; see: {see}")
                return OK
    except KeyboardInterrupt:
        printer.end_line()
        tell_of_going_on(job, asked["tenant"], where, verb="jobs logs", flag="-f")
        return INTERRUPTED


class _Printer:
    """Prints pieces of output; with several writers each line says whose it is."""

    def __init__(self, *, several: bool) -> None:
        self._several = several
        self._reached: dict[str, int] = {}
        self._streamed: set[str] = set()
        #: Whose line was printed as far as it came.
        self._unfinished = ""

    def begin_stream(self) -> None:
        """What comes now may have been there before."""
        self._streamed.clear()

    def unseen(self, piece: LogText) -> LogText | None:
        """The part of a piece that was not there before."""
        import msgspec

        key = _key(piece)
        reached = self._reached.get(key, 0)
        if key in self._streamed and piece.offset < reached:
            reached = 0  # the output was begun anew
        elif key in self._reached and piece.offset > reached:
            say(f"{piece.whose}: {piece.offset - reached:,} bytes before this are not kept any more")
        self._streamed.add(key)
        if piece.end <= reached:
            return None
        self._reached[key] = piece.end
        if piece.offset >= reached:
            return piece
        data = piece.text.encode("utf-8", "replace")
        text = data[reached - piece.offset :].decode("utf-8", "replace")
        return msgspec.structs.replace(piece, offset=reached, text=text)

    def show(self, piece: LogText) -> None:
        """Print it. The beginning of a line is gone on with when the rest of it comes."""
        key = _key(piece)
        if piece.text and self._unfinished != key:
            self.end_line()
        *lines, rest = piece.text.split("\n")
        for line in lines:
            self._print(piece, line, ended=True)
        if rest.strip(_RETURN):
            self._print(piece, rest, ended=rest.endswith(_RETURN))
            self._unfinished = "" if rest.endswith(_RETURN) else key

    def end_line(self) -> None:
        """End a line that was printed as far as it came."""
        if self._unfinished:
            self._unfinished = ""
            print_text("")

    def _print(self, piece: LogText, line: str, *, ended: bool) -> None:
        # As on a terminal: what comes behind a carriage return is written over what was there.
        _, overwritten, line = line.rstrip(_RETURN).rpartition(_RETURN)
        if self._unfinished and overwritten:
            self.end_line()
        label = f"{piece.whose} | " if self._several and not self._unfinished else ""
        self._unfinished = ""
        print_text(f"{label}{line}", colours=True, ended=ended)


def _key(piece: LogText) -> str:
    return f"{piece.whose} {piece.node} {piece.round}"
