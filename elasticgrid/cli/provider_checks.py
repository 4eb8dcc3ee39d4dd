"""Whether a provider can be used from this machine: its engine, the tools it needs, and what it has to be told."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from elasticgrid.core.spec import ProviderSpec

#: engine family -> its command, the variables and the files in the home folder of which one holds a login, and how to
#: make one.
_CLOUDS: Final[dict[str, tuple[str, tuple[str, ...], tuple[str, ...], str]]] = {
    "gcp": (
        "gcloud",
        ("GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_AUTH_ACCESS_TOKEN"),
        (".config/gcloud/credentials.db", ".config/gcloud/application_default_credentials.json"),
        "gcloud auth login",
    ),
    "aws": (
        "aws",
        ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"),
        (".aws/credentials", ".aws/config"),
        "aws configure",
    ),
    "azure": ("az", ("AZURE_CLIENT_ID",), (".azure/azureProfile.json", ".azure/msal_token_cache.json"), "az login"),
}
_SEPARATOR: Final = re.compile(r"[,\s]+")


class Here(msgspec.Struct, frozen=True):
    """What a check looks at, so that it can be looked at for any machine.

    Attributes:
        environ: the environment.
        home: the user's home folder.
        which: the path of a command, None when there is none.
        engine_problem: why an engine cannot be loaded, empty when it can.
    """

    environ: Mapping[str, str]
    home: Path
    which: Callable[[str], str | None]
    engine_problem: Callable[[str], str]


class ProviderCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one provider.

    Attributes:
        why: why it cannot be used; empty when it can.
        remedy: what to do about it.
        refused: why the grid itself gives it no nodes now, where that is known.
    """

    provider: str
    engine: str
    usable: bool
    why: str = ""
    remedy: str = ""
    refused: str = ""


def check_provider(spec: ProviderSpec, here: Here) -> ProviderCheck:
    """Whether nodes of this provider can be launched from here. Starts nothing and asks nobody."""
    why, remedy = _problem(spec, here)
    return ProviderCheck(provider=spec.name, engine=spec.engine, usable=not why, why=why, remedy=remedy)


def _problem(spec: ProviderSpec, here: Here) -> tuple[str, str]:
    problem = here.engine_problem(spec.engine)
    if problem:
        return problem, "pip install 'elasticgrid[server]', or correct the engine in the grid file"
    family = spec.engine.split("/", 1)[0]
    if family == "ssh":
        return _ssh(spec, here)
    if family in _CLOUDS:
        return _cloud(family, here)
    return "", ""


def _ssh(spec: ProviderSpec, here: Here) -> tuple[str, str]:
    if here.which("ssh") is None:
        return "there is no command ssh", "install an OpenSSH client"
    hosts = [host for host in _SEPARATOR.split(spec.params.get("hosts", "").strip()) if host]
    if not hosts:
        return "no hosts are named", "params: {hosts: user@one user@two} in the grid file"
    key = spec.params.get("ssh_key", "")
    if key and not Path(key).expanduser().is_file():
        return f"there is no key {key}", "correct params.ssh_key in the grid file"
    return "", ""


def _cloud(family: str, here: Here) -> tuple[str, str]:
    command, variables, files, login = _CLOUDS[family]
    if here.which(command) is None:
        return f"there is no command {command}", f"install it, then: {login}"
    if not any(here.environ.get(name) for name in variables) and not any((here.home / file).exists() for file in files):
        return f"nobody is logged in with {command}", login
    return "", ""


def this_machine(environ: Mapping[str, str]) -> Here:
    """This machine as the checks see it."""
    return Here(environ, Path.home(), shutil.which, engine_problem)


def engine_problem(engine: str) -> str:
    """Why iroh-tinker cannot load an engine here; empty when it can."""
    try:
        from iroh_tinker.cloud.engines import create_engine
        from iroh_tinker.cloud.spec import LaunchSpec, ResourcesSpec
    except ImportError as error:
        return f"iroh-tinker is not installed: {error}"
    spec = LaunchSpec(name="check", run="true", resources=ResourcesSpec(infra=[engine]))
    try:
        create_engine(engine, spec)
    except Exception as error:  # an engine is somebody else's code and may raise anything
        return f"iroh-tinker has no such engine: {error}"
    return ""
