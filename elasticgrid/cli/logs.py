"""`jobs logs`: what a job's workers write."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from elasticgrid.cli.failures import INTERRUPTED, OK
from elasticgrid.cli.options import DataDir, JobArgument, Json, KeyFile, Output, Tenant, Url, chosen, flags
from elasticgrid.cli.output import Format, print_data, print_line, print_text, say

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
    tenant: Tenant = None,
    output: Output = Format.TEXT,
    json: Json = False,
    url: Url = None,
    key_file: KeyFile = None,
    data: DataDir = None,
) -> int:
    """Show what a job's workers wrote last, or follow it.

    Workers on the gateway's machine are read; for others, say who has it.

    Example: elasticgrid jobs logs elastic-numpy-abc123 -f --rank 0
    """
    from elasticgrid.cli.client import gateway, job_path
    from elasticgrid.gateway.answers import LogPage

    asked: dict[str, Any] = {
        "tenant": tenant,
        "node": node or None,
        "rank": rank,
        "round": round_ or None,
        "agents": True if agents else None,
    }
    wanted = chosen(output, json)
    with gateway(flags(url, key_file, data)) as grid:
        if follow:
            return _follow(grid, job, asked, lines, wanted)
        page = grid.get(job_path(job, "logs"), LogPage, lines=lines, **asked)
    if wanted is not Format.TEXT:
        print_data(page.pieces if wanted is Format.JSONL else page, wanted)
    else:
        printer = _Printer(several=len(page.pieces) > 1)
        for piece in page.pieces:
            printer.show(piece)
    if page.elsewhere:
        say(f"not on this machine, ask their providers: {', '.join(page.elsewhere)}")
    elif not page.pieces:
        say("no worker has written anything yet")
    return OK


def _follow(grid: Gateway, job: str, asked: dict[str, Any], lines: int, output: Format) -> int:
    from elasticgrid.cli.client import StreamBroken, job_path
    from elasticgrid.gateway.worker_logs import LogText

    printer = _Printer(several=True)
    try:
        while True:
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
                say(f"the job is over; see: elasticgrid jobs show {job}")
                return OK
    except KeyboardInterrupt:
        say(f"the job goes on; look again with: elasticgrid jobs logs {job} -f")
        say(f"cancel it with: elasticgrid jobs cancel {job}")
        return INTERRUPTED


class _Printer:
    """Prints pieces of output; with several workers each line says whose it is."""

    def __init__(self, *, several: bool) -> None:
        self._several = several
        self._reached: dict[tuple[str, int, int], int] = {}

    def unseen(self, piece: LogText) -> LogText | None:
        """The part of a piece that was not there before."""
        import msgspec

        key = (piece.node, piece.round, piece.rank)
        reached = self._reached.get(key, 0)
        if piece.end <= reached:
            return None
        self._reached[key] = piece.end
        if piece.offset >= reached:
            return piece
        data = piece.text.encode("utf-8", "replace")
        text = data[reached - piece.offset :].decode("utf-8", "replace")
        return msgspec.structs.replace(piece, offset=reached, text=text)

    def show(self, piece: LogText) -> None:
        """Print it."""
        if not piece.text:
            return
        label = ""
        if self._several:
            label = f"agent {piece.node} | " if piece.rank < 0 else f"rank {piece.rank} | "
        for line in piece.text.removesuffix("\n").split("\n"):
            print_text(f"{label}{line.removesuffix(_RETURN)}", colours=True)
