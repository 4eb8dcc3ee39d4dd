"""Routes about a job's checkpoint folder: what is in it, and each file of it."""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import quote

from litestar import get
from litestar.params import FromPath
from litestar.response import Stream
from litestar.types import ControllerRouterHandler

from elasticgrid.gateway.artifacts import (
    ArtifactList,
    CheckpointFolder,
    checkpoint_folder,
    contents,
    list_files,
    open_file,
)
from elasticgrid.gateway.parameters import Gateway, Tenant
from elasticgrid.gateway.service import DEFAULT_TENANT, GatewayService

#: The launcher's folder for jobs that name none, in the data folder of a control plane.
SHARED: Final = "shared"
_FILE_TYPE: Final = "application/octet-stream"


@get("/jobs/{job:str}/artifacts", summary="List a job's checkpoint files")
async def list_artifacts(job: FromPath[str], gateway: Gateway, tenant: Tenant = DEFAULT_TENANT) -> ArtifactList:
    """Where the checkpoint folder is one that the gateway sees; else there are none."""
    files, truncated = await asyncio.to_thread(list_files, _folder(gateway, tenant, job))
    return ArtifactList(job_id=job, artifacts=files, truncated=truncated)


@get("/jobs/{job:str}/artifacts/{file_path:path}", media_type=_FILE_TYPE, summary="Download a checkpoint file")
async def download_artifact(
    job: FromPath[str], file_path: FromPath[str], gateway: Gateway, tenant: Tenant = DEFAULT_TENANT
) -> Stream:
    """Its bytes, as it is now; no path leads out of the folder."""
    file, size = await asyncio.to_thread(open_file, _folder(gateway, tenant, job), file_path.removeprefix("/"))
    name = quote(file_path.rsplit("/", 1)[-1])
    headers = {
        "Content-Length": str(size),
        "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    return Stream(contents(file, size), media_type=_FILE_TYPE, headers=headers)


def _folder(gateway: GatewayService, tenant: str, job: str) -> CheckpointFolder:
    state = gateway.jobs.state(tenant, job)
    where = {launch.provider for launch in state.launches.values()}
    providers = [view.spec for view in gateway.providers.views() if view.spec.name in where]
    return checkpoint_folder(state, providers, gateway.data_dir / SHARED)


ARTIFACT_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (list_artifacts, download_artifact)
