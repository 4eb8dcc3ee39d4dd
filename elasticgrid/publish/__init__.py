"""The trainer hook: step samples out, stop and resume in; and the data cursor. Never blocks, never raises.

Importing it loads nothing; names are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasticgrid.publish.sampler import CyclingIterator, ElasticSampler

__all__ = ["CyclingIterator", "ElasticSampler"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module("elasticgrid.publish.sampler"), name)
    globals()[name] = value
    return value
