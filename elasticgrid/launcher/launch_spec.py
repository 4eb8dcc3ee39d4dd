"""What iroh-tinker is asked for: the name and the specification of one launch, made from the job and its placement."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, Final

import msgspec

from elasticgrid import environment
from elasticgrid.core.job import JobState, LaunchState
from elasticgrid.core.names import launch_folder, submission_folder
from elasticgrid.core.spec import JobSpec, ProviderSpec
from elasticgrid.launcher.bundle_store import BundleWish
from elasticgrid.launcher.config import LauncherConfig
from elasticgrid.launcher.launch_files import (
    BUNDLE_KEY,
    CACHES_KEY,
    CREDENTIAL_FILE,
    CREDENTIALS_KEY,
    REQUEST_KEY,
    SECRETS_DIR,
    SECRETS_KEY,
    WORKSPACE_DIR,
)

#: How long a node's processes get between being asked to end and being killed, in seconds.
STOP_GRACE_S: Final = 10
#: Provider parameters are texts; these the engines take as lists.
_LISTS: Final = {
    "hosts": re.compile(r"[,\s]+"),
    "ssh_opts": re.compile(r"\s+"),
    "security_group_ids": re.compile(r"[,\s]+"),
}
#: Engines of ours that create their machines, and those whose nodes are other machines at all, reached by ssh: these
#: get the job as a bundle.
CLOUD_ENGINES: Final = frozenset(("aws", "gcp", "azure"))
REMOTE_ENGINES: Final = CLOUD_ENGINES | {"ssh"}
#: Where nodes on other machines keep their files, and what they share, unless something else is said.
_REMOTE_NODE_DIR: Final = "/tmp/elasticgrid"  # noqa: S108 - a folder of the machine that was made for this launch
_REMOTE_SHARED_DIR: Final = "~/.elasticgrid/shared"
_REMOTE_PYTHON: Final = "python3"
#: Gives each node of an engine that knows nothing of it a folder of its own; its rank is in its environment.
_OWN_FOLDER: Final = 'ELASTICGRID_NODE_DIR=$ELASTICGRID_NODE_DIR/$RANK exec "$@"'


def launch_name(state: JobState, attempt: str) -> str:
    """The name of a launch for engines, files and processes, as `launch_folder` makes it."""
    return launch_folder(state.tenant, state.id, state.submitted_id, attempt)


def engine_family(engine: str) -> str:
    """`gcp` of `gcp/us-central1`; `module` of an engine of somebody else's."""
    return "module" if engine.startswith("module=") else engine.split("/", 1)[0]


def launch_document(
    state: JobState, launch: LaunchState, provider: ProviderSpec, nodes: int, config: LauncherConfig, request_id: str
) -> dict[str, Any]:
    """The specification of one iroh-tinker job that starts an agent on each of `nodes` nodes."""
    assert state.spec is not None
    spec = state.spec
    name = launch_name(state, launch.id)
    family = engine_family(provider.engine)
    wish = _bundle_wish(state, spec, family, config)
    return {
        "name": name,
        "run": shlex.join(_command(spec, provider, family, config)),
        "setup": _setup(spec, provider),
        "workdir": str(config.launches_dir / name / WORKSPACE_DIR) if wish is not None and wish.here else spec.workdir,
        "num_nodes": nodes,
        "procs_per_node": 1,
        "envs": _environment(state, spec, launch, provider, config, name),
        "resources": {
            **provider_parameters(provider),
            "infra": [provider.engine],
            "use_spot": launch.market == "spot",
            # The placement fixed market and price; another market is another provider and another decision.
            "fallback_to_ondemand": False,
        },
        "rendezvous": {"mode": "dir", "uri": str(config.launches_dir / name / "rendezvous")},
        # The decider answers the end of a node, not the runner beside it.
        "recovery": {"mode": "none", "max_restarts": 0, "signal_grace_s": STOP_GRACE_S},
        REQUEST_KEY: request_id,
        CACHES_KEY: list(spec.caches),
        SECRETS_KEY: dict(spec.secrets),
        CREDENTIALS_KEY: str(config.launches_dir / name / CREDENTIAL_FILE) if family in REMOTE_ENGINES else "",
        BUNDLE_KEY: None if wish is None else msgspec.to_builtins(wish),
    }


def _command(spec: JobSpec, provider: ProviderSpec, family: str, config: LauncherConfig) -> list[str]:
    """The agent's argument list with the job's behind it."""
    if family in REMOTE_ENGINES:
        return [*config.agent_prefix_of(provider.params.get("python", _REMOTE_PYTHON)), *spec.command]
    words = [*config.agent_prefix, *spec.command]
    return ["sh", "-c", _OWN_FOLDER, "elasticgrid", *words] if family == "module" else words


def _setup(spec: JobSpec, provider: ProviderSpec) -> str | None:
    """The provider's setup command and the job's, in this order; each ends the setup when it fails."""
    commands = [text for text in (provider.params.get("setup", ""), spec.setup) if text.strip()]
    if not commands:
        return None
    # Each in a shell of its own: a folder that is entered or an `exit` in one means nothing to the other.
    return "set -e\n" + "".join(f"(\n{command}\n)\n" for command in commands)


def _bundle_wish(state: JobState, spec: JobSpec, family: str, config: LauncherConfig) -> BundleWish | None:
    is_remote = family in REMOTE_ENGINES
    if not (is_remote or spec.bundle or spec.file_mounts):
        return None
    return BundleWish(
        submission=_submission(state),
        source=spec.workdir,
        mounts=dict(spec.file_mounts),
        limit_bytes=config.bundle_limit_bytes,
        here=not is_remote,
        without=tuple(sorted(spec.secrets.values())),
    )


def _submission(state: JobState) -> str:
    return submission_folder(state.tenant, state.id, state.submitted_id)


def provider_parameters(provider: ProviderSpec) -> dict[str, Any]:
    """What the provider's engine is told, besides the engine's reference."""
    parameters: dict[str, Any] = dict(provider.params)
    for name, separator in _LISTS.items():
        if name in parameters:
            parameters[name] = [part for part in separator.split(parameters[name].strip()) if part]
    if provider.accelerator:
        parameters.setdefault("accelerators", provider.accelerator)
    if provider.zone and engine_family(provider.engine) in REMOTE_ENGINES:
        parameters.setdefault("zone", provider.zone)
    # Settings of the launcher's own, which are no business of iroh-tinker's.
    for name in ("setup", "nats_url", "shared_dir", "notices", "signal_notice_s"):
        parameters.pop(name, None)
    return parameters


def _environment(
    state: JobState, spec: JobSpec, launch: LaunchState, provider: ProviderSpec, config: LauncherConfig, name: str
) -> dict[str, str]:
    """The job's variables under those that its agents need; of the credential and the secrets only the paths."""
    family = engine_family(provider.engine)
    node_dir = config.launches_dir / name / "nodes" if family == "local" else Path(_REMOTE_NODE_DIR, name)
    return {
        **spec.env,
        environment.NATS_URL: provider.params.get("nats_url") or config.nats_url,
        environment.CREDENTIALS: str(config.launches_dir / name / CREDENTIAL_FILE),
        environment.TENANT: state.tenant,
        environment.JOB: state.id,
        environment.PROVIDER: launch.provider,
        environment.ATTEMPT: launch.id,
        environment.LAUNCHED: "1",
        environment.NPROC_PER_NODE: str(spec.nproc_per_node),
        environment.MAX_RESTARTS: str(spec.max_restarts),
        # Engines of ours put other folders into the last three where their nodes are other machines.
        environment.NODE_DIR: str(node_dir),
        environment.SHARED_DIR: _shared_dir(state, spec, provider, config),
        environment.CACHE_DIR: str(config.data_dir.absolute() / "caches"),
        environment.STUCK_AFTER_S: f"{spec.stuck_after_ms / 1000:.15g}",
        environment.LOG_BYTES: str(spec.output.max_bytes),
        environment.LOG_FILES: str(spec.output.files),
        environment.TEE: str(int(spec.output.tee)),
        **({environment.SECRETS_DIR: str(config.launches_dir / name / SECRETS_DIR)} if spec.secrets else {}),
        environment.ORPHAN_TIMEOUT_S: "" if config.orphan_timeout_s is None else f"{config.orphan_timeout_s:g}",
        **_notices(provider, family),
    }


def _notices(provider: ProviderSpec, family: str) -> dict[str, str]:
    """Where its nodes learn that they will be taken away: what the provider says, a cloud's own service by default."""
    sources = provider.params.get("notices", family if family in CLOUD_ENGINES else "")
    before_s = provider.params.get("signal_notice_s", "")
    return {
        **({environment.NOTICES: sources} if sources else {}),
        **({environment.SIGNAL_NOTICE_S: before_s} if before_s else {}),
    }


def _shared_dir(state: JobState, spec: JobSpec, provider: ProviderSpec, config: LauncherConfig) -> str:
    """A folder of this submission alone: an older one's rendezvous files would lead workers to dead addresses."""
    is_remote = engine_family(provider.engine) in REMOTE_ENGINES
    if spec.checkpoint_dir:
        base = str(Path(spec.workdir, spec.checkpoint_dir).absolute())
    elif provider.params.get("shared_dir"):
        base = provider.params["shared_dir"]
    elif config.shared_dir is not None:
        base = str(config.shared_dir.absolute())
    else:
        base = _REMOTE_SHARED_DIR if is_remote else str((config.data_dir / "shared").absolute())
    return f"{base}/{_submission(state)}"
