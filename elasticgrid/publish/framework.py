"""What the callbacks for training frameworks share; it imports none of them."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from elasticgrid.core.errors import ElasticGridError
from elasticgrid.publish import checkpoint
from elasticgrid.publish.publisher import Publisher

_log = logging.getLogger("elasticgrid.publish")


class Stopwatch:
    """Splits the time of a loop at its events: frameworks tell when things end and not how long they took."""

    def __init__(self) -> None:
        self._since_s = time.perf_counter()

    def lap_s(self) -> float:
        """Seconds since the last lap, or since it was made."""
        now_s = time.perf_counter()
        lap_s, self._since_s = now_s - self._since_s, now_s
        return lap_s


def commit(pub: Publisher, folder: Path) -> None:
    """Commit the folder that a framework wrote after the step just done, and tell it. A failure is logged, no more."""
    try:
        uri = checkpoint.seal(folder, pub.steps_completed, round=pub.round)
    except (OSError, ElasticGridError) as error:
        _log.warning("the checkpoint after step %d is not committed: %s", pub.steps_completed, error)
    else:
        pub.checkpointed(pub.steps_completed, uri)
