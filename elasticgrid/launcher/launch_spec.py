"""What iroh-tinker is asked for: the name and the specification of one launch, made from the job and its placement."""

from __future__ import annotations

import hashlib
import re
import shlex
from pathlib import Path
from typing import Any, Final

from elasticgrid import environment
from elasticgrid.core.job import JobState, LaunchState
from elasticgrid.core.spec import JobSpec, ProviderSpec
from elasticgrid.launcher.config import LauncherConfig

#: Where in a specification the id of the `launch.requested` event stands: by it a launcher knows its own launches.
REQUEST_KEY: Final = "elasticgrid_request"
#: How long a node's processes get between being asked to end and being killed, in seconds.
STOP_GRACE_S: Final = 10
#: Engines cut the names of machines to 40 characters; the node's index behind the name must survive that.
_NAME_LENGTH: Final = 33
_DIGEST_LENGTH: Final = 8
#: Provider parameters are texts; these two the ssh engine takes as lists.
_LISTS: Final = {"hosts": re.compile(r"[,\s]+"), "ssh_opts": re.compile(r"\s+")}
#: Where nodes on other machines keep their files.
_REMOTE_NODE_DIR: Final = "/tmp/elasticgrid"  # noqa: S108 - a folder of the machine that was made for this launch


def launch_name(state: JobState, attempt: str) -> str:
    """The name of a launch for engines, files and processes: a hint for people, and a digest that makes it unique.

    It differs between two submissions of one job name, so nothing an older one left behind is taken for its own.
    """
    whole = "\x1f".join((state.tenant, state.id, state.submitted_id, attempt))
    digest = hashlib.sha256(whole.encode()).hexdigest()[:_DIGEST_LENGTH]
    tail = f"-{attempt[-12:]}-{digest}"
    text = f"{state.tenant}-{state.id}"[: _NAME_LENGTH - len(tail)] + tail
    return re.sub(r"[^a-z0-9-]", "-", text.lower()).lstrip("-")


def launch_document(
    state: JobState, launch: LaunchState, provider: ProviderSpec, nodes: int, config: LauncherConfig, request_id: str
) -> dict[str, Any]:
    """The specification of one iroh-tinker job that starts an agent on each of `nodes` nodes."""
    assert state.spec is not None
    spec = state.spec
    name = launch_name(state, launch.id)
    return {
        "name": name,
        "run": shlex.join((*config.agent_prefix, *spec.command)),
        "workdir": spec.workdir,
        "num_nodes": nodes,
        "procs_per_node": 1,
        "envs": _environment(state, spec, launch, provider, config, name),
        "resources": {
            **_parameters(provider),
            "infra": [provider.engine],
            "use_spot": launch.market == "spot",
            # The placement fixed market and price; another market is another provider and another decision.
            "fallback_to_ondemand": False,
        },
        "rendezvous": {"mode": "dir", "uri": str(config.launches_dir / name / "rendezvous")},
        # The decider answers the end of a node, not the runner beside it.
        "recovery": {"mode": "none", "max_restarts": 0, "signal_grace_s": STOP_GRACE_S},
        REQUEST_KEY: request_id,
    }


def _parameters(provider: ProviderSpec) -> dict[str, Any]:
    parameters: dict[str, Any] = dict(provider.params)
    for name, separator in _LISTS.items():
        if name in parameters:
            parameters[name] = [part for part in separator.split(parameters[name].strip()) if part]
    if provider.accelerator:
        parameters.setdefault("accelerators", provider.accelerator)
    return parameters


def _environment(
    state: JobState, spec: JobSpec, launch: LaunchState, provider: ProviderSpec, config: LauncherConfig, name: str
) -> dict[str, str]:
    """The job's variables under those that its agents need; of the credential only the path."""
    is_local = provider.engine.split("/", 1)[0] == "local"
    node_dir = config.launches_dir / name / "nodes" if is_local else Path(_REMOTE_NODE_DIR, name)
    return {
        **spec.env,
        environment.NATS_URL: config.nats_url,
        environment.CREDENTIALS: config.node_credentials,
        environment.TENANT: state.tenant,
        environment.JOB: state.id,
        environment.PROVIDER: launch.provider,
        environment.ATTEMPT: launch.id,
        environment.NPROC_PER_NODE: str(spec.nproc_per_node),
        environment.NODE_DIR: str(node_dir),
        environment.SHARED_DIR: str(_shared_dir(state, spec, config)),
        environment.ORPHAN_TIMEOUT_S: "" if config.orphan_timeout_s is None else f"{config.orphan_timeout_s:g}",
    }


def _shared_dir(state: JobState, spec: JobSpec, config: LauncherConfig) -> Path:
    """A folder of this submission alone: an older one's rendezvous files would lead workers to dead addresses."""
    if spec.checkpoint_dir:
        base = Path(spec.workdir, spec.checkpoint_dir)
    else:
        base = config.shared_dir if config.shared_dir is not None else config.data_dir / "shared"
    return base.absolute() / f"{state.tenant}-{state.id}-{state.submitted_id[-_DIGEST_LENGTH:]}"
