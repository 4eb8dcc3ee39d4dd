"""Parts of the training that are to end in time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from elasticgrid.publish.publisher import current_publisher


@contextmanager
def expires(after_s: float, scope: str = "") -> Iterator[None]:
    """The block is to end within `after_s`, or the agent says that the worker is stuck, with the stacks of its threads.

    The block itself is never touched. It is `expires` of the publisher that the process has.

    Args:
        after_s: seconds.
        scope: what the block is called where that is told.
    """
    # Held for as long as the block lasts: a hook that nobody holds says goodbye.
    pub = current_publisher()
    with pub.expires(after_s, scope):
        yield
