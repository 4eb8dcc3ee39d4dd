"""Machines of launches that are over: a call to create one may reach its provider after whoever made it was killed.

Every machine carries the name of its launch. From time to time each cloud is asked what it has, and what belongs to a
launch of this folder that the log says is over is stopped again, which deletes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import structlog
from iroh_tinker.cloud.engines import create_engine
from iroh_tinker.cloud.spec import LaunchSpec, ResourcesSpec

from elasticgrid.core.spec import ProviderSpec
from elasticgrid.launcher.config import LauncherConfig
from elasticgrid.launcher.engines.cloud import CloudNodes
from elasticgrid.launcher.launch_spec import provider_parameters
from elasticgrid.launcher.provider_job import ProviderJob

_log = structlog.get_logger("launcher")


def stop_orphans(provider: ProviderSpec, config: LauncherConfig, is_over: Callable[[str], bool]) -> list[str]:
    """Stop what a provider still has of launches that are over. Blocks.

    Args:
        provider: one of a cloud; others have nothing that outlives its launch.
        config: of this launcher, with the folder of its launches; launches of other launchers are left alone.
        is_over: whether the log says that the launch of this name is over.

    Returns:
        The names of the launches that were stopped.

    Raises whatever the engine raises: then nothing is known.
    """
    resources = ResourcesSpec(infra=[provider.engine], params=provider_parameters(provider))
    engine = create_engine(provider.engine, LaunchSpec(name="orphans", run="true", resources=resources))
    if not isinstance(engine, CloudNodes):
        return []
    stopped = []
    for name in sorted(_known(engine.launches(), config.launches_dir)):
        if is_over(name):
            _log.warning("a launch that is over still has machines", launch=name, provider=provider.name)
            if ProviderJob(config, name).stop():
                stopped.append(name)
    return stopped


def _known(names: Iterable[str], launches_dir: Path) -> list[str]:
    folders = {path.parent.name for path in launches_dir.glob("*/launch.json")}
    return [name for name in names if name in folders]
