"""Routes about what a job's workers write: the last lines, and new ones as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec
from litestar import get
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Stream
from litestar.types import ControllerRouterHandler

from elasticgrid.core.errors import NotFound
from elasticgrid.core.job import TERMINAL
from elasticgrid.core.names import launch_folder
from elasticgrid.gateway.answers import LogPage
from elasticgrid.gateway.parameters import Caller, Gateway, Tenant
from elasticgrid.gateway.service import DEFAULT_TENANT, GatewayService
from elasticgrid.gateway.worker_logs import LogFile, LogSource, LogText, Wanted, What, find_logs, read_after, tail
from elasticgrid.projections.results import JobDetail

MAX_LINES: Final = 10_000
#: The launcher's folder of launches, in the data folder of a control plane.
LAUNCHES: Final = "launches"
_POLL_S: Final = 0.5
_HEARTBEAT_S: Final = 15.0
#: How much text one answer or one look at the files has at most; the rest comes with the next.
_MAX_TEXT: Final = 4 * 1024 * 1024

_Node = Annotated[str, QueryParameter(max_length=80, description="only this node's")]
_Rank = Annotated[int | None, QueryParameter(ge=0, le=10**9, description="only this rank's")]
_Round = Annotated[int, QueryParameter(ge=0, le=10**9, description="this round and later ones; 0 is the last")]
_Setup = Annotated[bool, QueryParameter(description="what the setup command of each launch wrote instead")]
_Lines = Annotated[int, QueryParameter(ge=0, le=MAX_LINES, description="so many of each worker's last lines")]


@get("/jobs/{job:str}/logs", summary="Show what a job's workers wrote last")
async def show_logs(
    job: FromPath[str],
    gateway: Gateway,
    tenant: Tenant = DEFAULT_TENANT,
    node: _Node = "",
    rank: _Rank = None,
    round: _Round = 0,  # noqa: A002 - the parameter's name
    agents: FromQuery[bool] = False,
    setup: _Setup = False,
    lines: _Lines = 200,
) -> LogPage:
    """The end of each worker's output, or with `agents` of each agent's, where they run on the gateway's machine.

    As long as there is nothing of any worker it is that of the setup commands. A node, rank or round that there is no
    output of, where that of others is here, is not found.
    """
    detail = await gateway.views.job(tenant, job, as_of_ms=gateway.now_ms())
    logs = _Logs(gateway, detail, Wanted(node=node, rank=rank, round=round, what=_what(agents, setup)))
    sources = await logs.sources(detail)
    pieces: list[LogText] = []
    size = 0
    for source in sources:
        piece = await asyncio.to_thread(tail, logs.folder, source, lines)
        size += len(piece.text)
        if size > _MAX_TEXT:
            break
        pieces.append(piece)
    return LogPage(
        job_id=job,
        log="\n".join(_labelled(pieces)),
        pieces=tuple(pieces),
        elsewhere=() if sources else await logs.elsewhere(detail),
    )


@get("/jobs/{job:str}/logs/stream", media_type="text/event-stream", summary="Watch what a job's workers write")
async def stream_logs(
    job: FromPath[str],
    gateway: Gateway,
    caller: Caller,
    tenant: Tenant = DEFAULT_TENANT,
    node: _Node = "",
    rank: _Rank = None,
    round: _Round = 0,  # noqa: A002 - the parameter's name
    agents: FromQuery[bool] = False,
    setup: _Setup = False,
    lines: _Lines = 10,
) -> Stream:
    """Server-sent events, each a piece of one worker's output, until the job is over; later rounds come in as well.

    A client that comes back asks for enough lines and leaves out what it has by `offset`. The stream ends when the key
    or the login that it was asked for with is over.
    """
    detail = await gateway.views.job(tenant, job, as_of_ms=gateway.now_ms())
    logs = _Logs(gateway, detail, Wanted(node=node, rank=rank, round=round, what=_what(agents, setup)))
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    frames = _frames(logs, lines, partial(gateway.keyring.left_s, caller))
    return Stream(frames, media_type="text/event-stream", headers=headers)


class _Logs:
    """The files of one job, looked for again each time."""

    def __init__(self, gateway: GatewayService, detail: JobDetail, wanted: Wanted) -> None:
        self.folder: Path = gateway.data_dir / LAUNCHES
        self.gateway = gateway
        self.wanted = wanted
        self._key = (detail.job.tenant, detail.job.id)

    async def detail(self) -> JobDetail:
        """The job as of now."""
        return await self.gateway.views.job(*self._key, as_of_ms=self.gateway.now_ms())

    async def sources(self, detail: JobDetail) -> tuple[LogSource, ...]:
        """The files that are there now; those of setups while there are none of any worker."""
        found = await self._find(detail, self.wanted)
        if found or self.wanted.what != "worker" or await self._find(detail, Wanted()):
            return found
        return await self._find(detail, msgspec.structs.replace(self.wanted, what="setup"))

    async def elsewhere(self, detail: JobDetail) -> tuple[str, ...]:
        """The nodes that are asked about and whose output is not here, where nothing that is here is asked for.

        Raises:
            NotFound: there is none, and what is asked for is not in the output of those that are here.
        """
        wanted = self.wanted
        here = [source.file for source in await self._find(detail, Wanted(round=1, what=wanted.what))]
        has_output = {file.node for file in here}
        joined = tuple(node.id for node in detail.nodes if node.host and node.id not in has_output)
        asked = tuple(node for node in joined if wanted.node in ("", node))
        if here and not asked and wanted.what != "setup":
            raise _not_among(wanted, here)
        return asked

    async def _find(self, detail: JobDetail, wanted: Wanted) -> tuple[LogSource, ...]:
        tenant, job = self._key
        submitted_id = self.gateway.jobs.state(tenant, job).submitted_id
        # A launch whose setup failed never came to have a handle.
        handles = [
            (launch.id, launch.handle or launch_folder(tenant, job, submitted_id, launch.id))
            for launch in detail.launches
        ]
        return await asyncio.to_thread(find_logs, self.folder, handles, wanted)


def _not_among(wanted: Wanted, files: Sequence[LogFile]) -> NotFound:
    """That there is no such output among these."""
    nodes = sorted({file.node for file in files})
    if wanted.node and wanted.node not in nodes:
        what, where, there = f"no node {wanted.node[:80]} has written anything", "node", ", ".join(nodes[:8])
        return NotFound(what, where=where, hint=f"there are {there}{' and more' if len(nodes) > 8 else ''}")
    for name, asked in (("rank", wanted.rank), ("round", wanted.round or None)):
        numbers = [getattr(file, name) for file in files]
        if asked is not None and asked not in numbers:
            return NotFound(f"no {name} {asked} has written anything", where=name, hint=_range(numbers))
    return NotFound("no such node, rank and round have written anything together", hint="leave one of them out")


def _range(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"there is {least} alone" if least == most else f"there are {least}..{most}"


async def _frames(logs: _Logs, lines: int, left_s: Callable[[], float]) -> AsyncGenerator[bytes]:
    """The stream, for as long as `left_s` says that its watcher may go on."""
    closed = asyncio.create_task(_until_closed(logs.gateway))
    try:
        yield b"retry: 1000\n\n"
        reached: dict[LogFile, int] = {}
        first = True
        silent_s = 0.0
        while not closed.done() and left_s() > 0:
            detail = await logs.detail()
            over = detail.job.phase in TERMINAL
            sources = await logs.sources(detail)
            if sources and not logs.wanted.round:
                # From now on later rounds are wanted besides the one there is.
                logs.wanted = msgspec.structs.replace(logs.wanted, round=sources[0].file.round)
            size = 0
            for source in sources:
                at = reached.get(source.file)
                if at is None and first:
                    piece = await asyncio.to_thread(tail, logs.folder, source, lines)
                else:
                    piece = await asyncio.to_thread(read_after, logs.folder, source, at or 0, to_end=over)
                reached[source.file] = piece.end
                size += len(piece.text)
                if piece.text:
                    yield b"data: %b\n\n" % msgspec.json.encode(piece)
            first = first and not sources
            if size:
                silent_s = 0.0
                continue
            if over:
                yield b"event: end\ndata: {}\n\n"
                return
            await asyncio.wait({closed}, timeout=min(_POLL_S, left_s()))
            silent_s += _POLL_S
            if silent_s >= _HEARTBEAT_S:
                silent_s = 0.0
                yield b": heartbeat\n\n"
    finally:
        closed.cancel()
        await asyncio.gather(closed, return_exceptions=True)


async def _until_closed(gateway: GatewayService) -> None:
    """The gateway's feed of events ends when it is closed."""
    async for _ in gateway.feed.frames(gateway.feed.last, job="-"):
        pass


def _labelled(pieces: list[LogText]) -> list[str]:
    """Lines that say whose they are, where there are several to choose from."""
    if len(pieces) == 1:
        return pieces[0].text.splitlines()
    return [f"{piece.whose} | {line}" for piece in pieces for line in piece.text.splitlines()]


def _what(agents: bool, setup: bool) -> What:
    return "setup" if setup else "agent" if agents else "worker"


LOG_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (show_logs, stream_logs)
