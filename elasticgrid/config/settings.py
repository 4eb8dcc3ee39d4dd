"""Where the command line finds its control plane, and where each setting came from.

A flag wins over the environment, that over the project's file (`elasticgrid.yaml` in the current folder), that over
the user's file (`elasticgrid/config.yaml` in the XDG configuration folder), that over the default. Paths in a file are
relative to the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from elasticgrid.config.document import load
from elasticgrid.config.fields import Fields
from elasticgrid.config.files import read_source
from elasticgrid.config.problems import Problems
from elasticgrid.core.errors import InvalidInput, NotFound

PROJECT_FILE = "elasticgrid.yaml"
USER_FILE = "elasticgrid/config.yaml"
DEFAULT_DATA_DIR = ".elasticgrid"

Source = Literal["flag", "environment", "project file", "user file", "default"]
#: Each setting's name, as in files, and its environment variable.
VARIABLES = {
    "data_dir": "ELASTICGRID_DATA_DIR",
    "gateway_url": "ELASTICGRID_GATEWAY_URL",
    "key_file": "ELASTICGRID_KEY_FILE",
}
_PATHS = frozenset(("data_dir", "key_file"))


class Setting(msgspec.Struct, frozen=True):
    """One setting. `where` is the variable or file it was found in; empty for a flag and a default."""

    name: str
    value: str
    source: Source
    where: str = ""


class Settings(msgspec.Struct, frozen=True):
    """What the command line goes by.

    Attributes:
        data_dir: folder of a control plane on this machine; absolute.
        gateway_url: the gateway; empty means the one that the data folder tells of.
        key_file: the file with the key for it; empty likewise.
    """

    data_dir: Setting
    gateway_url: Setting
    key_file: Setting


def resolve(
    flags: Mapping[str, str | None], environ: Mapping[str, str], *, folder: Path, home: Path | None = None
) -> Settings:
    """The settings in force.

    Args:
        flags: those given on the command line, by setting name; None and absent mean not given.
        environ: the environment.
        folder: the current folder.
        home: the user's home folder.

    Raises:
        InvalidInput: a file is wrong, or the project's file would have the user's own key sent to its gateway.
    """
    layers = [
        {name: Setting(name, value, "flag") for name, value in flags.items() if value},
        {
            name: Setting(name, environ[variable], "environment", variable)
            for name, variable in VARIABLES.items()
            if environ.get(variable)
        },
        _from_file(folder / PROJECT_FILE, "project file"),
        _from_file(_user_file(environ, home or Path.home()), "user file"),
        {
            "data_dir": Setting("data_dir", DEFAULT_DATA_DIR, "default"),
            "gateway_url": Setting("gateway_url", "", "default"),
            "key_file": Setting("key_file", "", "default"),
        },
    ]
    found = {name: _absolute(next(layer[name] for layer in layers if name in layer), folder) for name in VARIABLES}
    gateway, key = found["gateway_url"], found["key_file"]
    if gateway.source == "project file" and key.source == "user file":
        raise InvalidInput(
            f"this folder's file names a gateway, {gateway.value}, that your own key would be sent to",
            where=gateway.where,
            hint="say so with --key-file, or name the key in this file",
        )
    return Settings(**found)


def _user_file(environ: Mapping[str, str], home: Path) -> Path:
    configured = Path(environ.get("XDG_CONFIG_HOME", ""))
    return (configured if configured.is_absolute() else home / ".config") / USER_FILE


def _from_file(path: Path, source: Source) -> dict[str, Setting]:
    try:
        text = read_source(path, InvalidInput)
    except NotFound:
        return {}
    problems = Problems(str(path))
    root = load(text, problems)
    found: dict[str, Setting] = {}
    if root is not None:
        fields = Fields(root, problems)
        for name in VARIABLES:
            value = fields.text(name)
            if value:
                setting = Setting(name, value, source, str(path))
                found[name] = _absolute(setting, path.parent)
        fields.done()
    problems.raise_as(InvalidInput)
    return found


def _absolute(setting: Setting, folder: Path) -> Setting:
    if setting.name not in _PATHS or not setting.value or setting.value == "-":
        return setting
    return msgspec.structs.replace(setting, value=str((folder / Path(setting.value).expanduser()).absolute()))
