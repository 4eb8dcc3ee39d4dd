"""Routes about what a job's workers write: the last lines, and new ones as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Annotated, Final

import msgspec
from litestar import get
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Stream
from litestar.types import ControllerRouterHandler

from elasticgrid.core.job import TERMINAL
from elasticgrid.gateway.answers import LogPage
from elasticgrid.gateway.parameters import Gateway, Tenant
from elasticgrid.gateway.service import DEFAULT_TENANT, GatewayService
from elasticgrid.gateway.worker_logs import LogFile, LogSource, LogText, Wanted, find_logs, read_after, tail
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
    lines: _Lines = 200,
) -> LogPage:
    """The end of each worker's output, or with `agents` of each agent's, where they run on the gateway's machine."""
    detail = await gateway.views.job(tenant, job, as_of_ms=gateway.now_ms())
    logs = _Logs(gateway, detail, Wanted(node=node, rank=rank, round=round, agents=agents))
    sources = await logs.sources(detail)
    pieces: list[LogText] = []
    size = 0
    for source in sources:
        piece = await asyncio.to_thread(tail, logs.folder, source, lines)
        size += len(piece.text)
        if size > _MAX_TEXT:
            break
        pieces.append(piece)
    joined = [each.id for each in detail.nodes if each.host and node in ("", each.id)]
    return LogPage(
        job_id=job,
        log="\n".join(_labelled(pieces)),
        pieces=tuple(pieces),
        elsewhere=() if sources else tuple(joined),
    )


@get("/jobs/{job:str}/logs/stream", media_type="text/event-stream", summary="Watch what a job's workers write")
async def stream_logs(
    job: FromPath[str],
    gateway: Gateway,
    tenant: Tenant = DEFAULT_TENANT,
    node: _Node = "",
    rank: _Rank = None,
    round: _Round = 0,  # noqa: A002 - the parameter's name
    agents: FromQuery[bool] = False,
    lines: _Lines = 10,
) -> Stream:
    """Server-sent events, each a piece of one worker's output, until the job is over; later rounds come in as well.

    A client that comes back asks for enough lines and leaves out what it has by `offset`.
    """
    detail = await gateway.views.job(tenant, job, as_of_ms=gateway.now_ms())
    logs = _Logs(gateway, detail, Wanted(node=node, rank=rank, round=round, agents=agents))
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return Stream(_frames(logs, lines), media_type="text/event-stream", headers=headers)


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
        """The files that are there now."""
        handles = [(launch.id, launch.handle) for launch in detail.launches if launch.handle]
        return await asyncio.to_thread(find_logs, self.folder, handles, self.wanted)


async def _frames(logs: _Logs, lines: int) -> AsyncGenerator[bytes]:
    closed = asyncio.create_task(_until_closed(logs.gateway))
    try:
        yield b"retry: 1000\n\n"
        reached: dict[LogFile, int] = {}
        first = True
        silent_s = 0.0
        while not closed.done():
            detail = await logs.detail()
            over = detail.job.phase in TERMINAL
            sources = await logs.sources(detail)
            if first and sources:
                # From now on later rounds are wanted besides the one there is.
                logs.wanted = msgspec.structs.replace(logs.wanted, round=sources[0].file.round)
            size = 0
            for source in sources:
                at = reached.get(source.file)
                if at is None and first:
                    piece = await asyncio.to_thread(tail, logs.folder, source, lines)
                else:
                    piece = await asyncio.to_thread(read_after, logs.folder, source, at or 0, whole_lines=not over)
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
            await asyncio.wait({closed}, timeout=_POLL_S)
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
    return [f"{whose(piece)} | {line}" for piece in pieces for line in piece.text.splitlines()]


def whose(file: LogText) -> str:
    """A worker or an agent in a word or two."""
    return f"agent {file.node}" if file.rank < 0 else f"rank {file.rank}"


LOG_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (show_logs, stream_logs)
