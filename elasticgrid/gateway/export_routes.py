"""Routes that carry whole archives: out of the log, and into the log of a grid that is there to look at them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Annotated, Any, Final

from litestar import Request, get, post
from litestar.openapi.spec import OpenAPIMediaType, Operation, RequestBody, Schema
from litestar.params import QueryParameter
from litestar.response import Stream
from litestar.types import ControllerRouterHandler

from elasticgrid.core.names import is_name
from elasticgrid.gateway.parameters import MAX_INTEGER, Gateway, JobFilter, TenantFilter
from elasticgrid.gateway.spool import receive, sent, spool_folder
from elasticgrid.log.archive_format import SUFFIX, ArchiveFilters
from elasticgrid.log.export import export_archive
from elasticgrid.log.importing import Imported, import_archive

ARCHIVE_TYPE: Final = "application/vnd.elasticgrid.archive"
#: The largest archive that is taken in.
MAX_ARCHIVE_BYTES: Final = 16 * 1024**3

_Time = Annotated[int | None, QueryParameter(ge=0, le=MAX_INTEGER, description="recorded then; Unix milliseconds")]


@get("/events/export", media_type=ARCHIVE_TYPE, summary="Export the log")
async def export_events(
    gateway: Gateway,
    tenant: TenantFilter = "",
    job: JobFilter = "",
    since_ms: _Time = None,
    until_ms: _Time = None,
    with_samples: Annotated[bool, QueryParameter(description="also the step samples that are still there")] = False,
) -> Stream:
    """An archive of what the log holds now, which replays with no server. Credentials are taken out of it."""
    filters = ArchiveFilters(tenant=_part(tenant), job=_part(job), since_ms=since_ms, until_ms=until_ms)
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(spool_folder(gateway.data_dir))
        path = folder / f"log{SUFFIX}"
        await export_archive(
            gateway.event_log,
            gateway.bus,
            path,
            created_ms=gateway.now_ms(),
            filters=filters,
            with_samples=with_samples,
        )
        headers = {
            "Content-Length": str(path.stat().st_size),
            "Content-Disposition": f'attachment; filename="log{SUFFIX}"',
            "Cache-Control": "no-store",
        }
        # From here on the folder is the answer's.
        return Stream(_answer(path, stack.pop_all()), media_type=ARCHIVE_TYPE, headers=headers)
    raise AssertionError("the block returns or raises")


class _TakesArchive(Operation):
    """Describes the body, which is an archive."""

    def __post_init__(self) -> None:
        schema = Schema(type="string", format="binary")  # type: ignore[arg-type] # a name is as good as the enumeration
        self.request_body = RequestBody(content={ARCHIVE_TYPE: OpenAPIMediaType(schema=schema)}, required=True)


@post(
    "/events/import",
    status_code=200,
    operation_class=_TakesArchive,
    request_max_body_size=None,
    summary="Load an archive to look at",
)
async def import_events(
    request: Request[Any, Any, Any],
    gateway: Gateway,
    tenant: Annotated[str, QueryParameter(max_length=63, description="under which it is found; gets a `_` in front")],
) -> Imported:
    """Into an empty grid. The jobs are records: nobody decides about them, and nothing is launched."""
    with spool_folder(gateway.data_dir) as folder:
        path = folder / f"log{SUFFIX}"
        await receive(request.stream(), path, most_bytes=MAX_ARCHIVE_BYTES)
        imported = await import_archive(gateway.event_log, gateway.bus, path, tenant)
    await gateway.caught_up()
    return imported


def _part(name: str) -> str:
    """A filter's value; what is no name has no events, and must not reach the bus as part of a subject."""
    if not name:
        return "*"
    return name if is_name(name) else "-"


async def _answer(path: Path, stack: contextlib.AsyncExitStack) -> AsyncGenerator[bytes]:
    async with stack:
        async for chunk in sent(path):
            yield chunk


EXPORT_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (export_events, import_events)
