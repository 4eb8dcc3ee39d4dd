"""Training without a grid, as torchrun is used: the node agent, and nodes that meet at one address.

::

    from elasticgrid.elastic import LaunchConfig, elastic_launch

    results = elastic_launch(LaunchConfig(nproc_per_node=2), train)(learning_rate)

Importing it loads nothing; names are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasticgrid.elastic import events, metrics, timer
    from elasticgrid.elastic.config import LaunchConfig
    from elasticgrid.elastic.function_worker import record
    from elasticgrid.elastic.launch import elastic_launch
    from elasticgrid.elastic.run_outcome import RunResult

_HOME = {
    "LaunchConfig": "elasticgrid.elastic.config",
    "RunResult": "elasticgrid.elastic.run_outcome",
    "elastic_launch": "elasticgrid.elastic.launch",
    "record": "elasticgrid.elastic.function_worker",
}
_MODULES = ("events", "metrics", "timer")

__all__ = ["LaunchConfig", "RunResult", "elastic_launch", "events", "metrics", "record", "timer"]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
