"""Replays make millions of small values and no cycles: the garbage collector is asked to look less often meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_THRESHOLDS: Final = (50_000, 20, 100)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage rarely within this context. Values without cycles are freed at once as ever."""
    before = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
