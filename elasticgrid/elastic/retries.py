"""What is tried again behind the scenes is no news for whoever trains."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

import structlog
from stamina.instrumentation import RetryDetails, RetryHook, get_on_retry_hooks, set_on_retry_hooks

from elasticgrid.core.errors import ElasticGridError

_log = structlog.get_logger("elasticgrid.elastic")


class _Others:
    """Hands on the retries of other people's code; ours, which end in errors of ours, are told for debugging only."""

    def __init__(self, hook: RetryHook) -> None:
        self._hook: Final = hook

    def __call__(self, details: RetryDetails) -> AbstractContextManager[None] | None:
        if not isinstance(details.caused_by, ElasticGridError):
            return self._hook(details)
        _log.debug("trying again", number=details.retry_num, error=str(details.caused_by))
        return None


def tell_no_retries() -> None:
    """Keep our own retries out of the logs of this process. A second call changes nothing."""
    set_on_retry_hooks([hook if isinstance(hook, _Others) else _Others(hook) for hook in get_on_retry_hooks()])
