"""A control plane for elastic, cross-cloud training whose every decision can be replayed.

In a training loop::

    import elasticgrid

    pub = elasticgrid.publisher()
    for batch in pub.data(loader):
        with pub.step(tokens=batch.tokens) as step:
            step.loss = train(batch)
        if pub.should_stop():
            break

Importing this package starts nothing and loads no bus client and no server code; names are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasticgrid.publish.publisher import Publisher, PublisherStats, Step, publisher

    __version__: str

__all__ = ["Publisher", "PublisherStats", "Step", "__version__", "publisher"]

_HOME = dict.fromkeys(("Publisher", "PublisherStats", "Step", "publisher"), "elasticgrid.publish.publisher")


def __getattr__(name: str) -> object:
    value: object
    if name == "__version__":
        from importlib.metadata import version

        value = version("elasticgrid")
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
