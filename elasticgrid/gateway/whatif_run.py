"""A what-if that somebody asked the gateway for: an archive of the job, and a process that may not take for ever."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec

from elasticgrid.config.policy_file import PolicyValues
from elasticgrid.core.errors import InvalidInput
from elasticgrid.gateway.service import GatewayService
from elasticgrid.gateway.spool import spool_folder
from elasticgrid.log.archive_format import SUFFIX, ArchiveFilters
from elasticgrid.log.export import export_archive
from elasticgrid.review.whatif import WhatIf
from elasticgrid.review.whatif_process import WhatIfOutcome, WhatIfTask

#: Limits of one run.
TIMEOUT_S: Final = 120.0
_MEMORY_BYTES: Final = 2 * 1024**3
_HINT: Final = "export an archive and run `elasticgrid replay whatif` on it"


async def run_what_if(
    gateway: GatewayService, tenant: str, job: str, change: PolicyValues, *, timeout_s: float = TIMEOUT_S
) -> WhatIf:
    """Run a job under other settings.

    Args:
        gateway: has the log and the samples.
        tenant, job: which one. What other jobs held of the grid meanwhile is not known to the run.
        change: the settings that are different.
        timeout_s: how long the run may take.

    Raises:
        InvalidInput: there are no samples, the settings give no answer, or it takes too long.
    """
    filters = ArchiveFilters(tenant=tenant, job=job)
    with spool_folder(gateway.data_dir) as folder:
        archive = folder / f"whatif{SUFFIX}"
        await export_archive(
            gateway.event_log, gateway.bus, archive, created_ms=gateway.now_ms(), filters=filters, with_samples=True
        )
        task = WhatIfTask(
            archive=str(archive),
            scaling=change.scaling or {},
            placement=change.placement or {},
            tenant=tenant,
            job=job,
            memory_bytes=_MEMORY_BYTES,
            cpu_s=int(timeout_s) + 1,
        )
        outcome = await _run(task, folder, timeout_s)
    if outcome.answer is None:
        failure = outcome.failure
        assert failure is not None
        raise InvalidInput(failure.what, where=failure.where, hint=failure.hint, story=failure.story)
    return outcome.answer


async def _run(task: WhatIfTask, folder: Path, timeout_s: float) -> WhatIfOutcome:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "elasticgrid.review.whatif_process"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=folder,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(timeout_s):
            said, _ = await process.communicate(msgspec.json.encode(task))
    except TimeoutError:
        raise InvalidInput(f"the run took longer than {timeout_s:g} s", hint=_HINT) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode == -signal.SIGXCPU:
        raise InvalidInput(f"the run took longer than {timeout_s:g} s", hint=_HINT)
    try:
        return msgspec.json.decode(said, type=WhatIfOutcome)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"the run ended with {process.returncode} and no answer", hint=_HINT) from error
