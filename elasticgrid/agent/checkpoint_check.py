"""Whether a checkpoint that a worker named is one: complete, unchanged and of that step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from elasticgrid.core import agent_state as plan
from elasticgrid.core.errors import ElasticGridError
from elasticgrid.core.events import CheckpointRef
from elasticgrid.publish import checkpoint

_log = structlog.get_logger("elasticgrid.agent")


async def checked(named: plan.CheckCheckpoint, ignore: Callable[[str], None]) -> plan.CheckpointChecked:
    """The checkpoint, read and hashed; without one, and `ignore` told why, where it is none."""
    found: CheckpointRef | None = None
    try:
        info = await asyncio.to_thread(checkpoint.verify, named.uri)
    except (ElasticGridError, OSError, ValueError) as error:
        ignore("checkpoint that is not complete")
        _log.warning("a checkpoint is not complete", uri=named.uri, step=named.step, error=str(error))
    else:
        if info.step == named.step:
            found = CheckpointRef(step=info.step, uri=info.uri, sha256=info.sha256, bytes=info.bytes)
        else:
            ignore("checkpoint of another step")
            _log.warning("a checkpoint has another step", uri=named.uri, named=named.step, found=info.step)
    return plan.CheckpointChecked(round=named.round, checkpoint=found)
