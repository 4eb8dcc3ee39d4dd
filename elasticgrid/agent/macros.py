"""Macros in a worker's command, such as `${rank}`; `MACROS` are all of them.

Anything else in a command stays as it is: a `$` of somebody else's means something to somebody else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

MACROS: Final = ("rank", "local_rank", "world_size", "round", "node", "checkpoint_dir")
_MACRO: Final = re.compile(r"\$\{(" + "|".join(MACROS) + r")\}")


def expanded(command: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The command with each macro replaced by its value; what a value holds is not looked at again."""
    return [_MACRO.sub(lambda found: values[found[1]], word) for word in command]
