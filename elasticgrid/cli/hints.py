"""What to type next: commands that do the same for the same grid when they are copied."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final

from elasticgrid.cli.output import PROGRAM

_WHERE: Final = {"gateway_url": "--url", "key_file": "--key-file", "data_dir": "--data"}


def next_command(
    verb: str, *arguments: str, tenant: str | None = None, where: Mapping[str, str | None] | None = None
) -> str:
    """The command line to copy.

    Args:
        verb: such as `jobs watch`.
        arguments: what comes behind it.
        tenant: whose job it is; the default one needs no name.
        where: the flags that this command was given to find the gateway, by setting; the next one needs them as well.
    """
    words = [*arguments]
    if tenant not in (None, "", "default"):
        words += ["--tenant", tenant]
    for setting, flag in _WHERE.items():
        if given := (where or {}).get(setting):
            words += [flag, given]
    return shlex.join([PROGRAM, *verb.split(), *words])
