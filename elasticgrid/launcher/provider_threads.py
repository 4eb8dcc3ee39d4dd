"""Threads for calls that block: a few for each provider, so a slow one holds up nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

#: Calls under way at one provider at once.
THREADS_PER_PROVIDER: Final = 16


class ProviderThreads:
    """Runs blocking calls, each provider's in threads of its own."""

    def __init__(self) -> None:
        self._pools: dict[str, ThreadPoolExecutor] = {}

    def run(self, provider: str, call: Callable[[], T]) -> asyncio.Future[T]:
        """Call it in one of the provider's threads. Cancelling the future does not end a call that has begun."""
        pool = self._pools.get(provider)
        if pool is None:
            pool = ThreadPoolExecutor(THREADS_PER_PROVIDER, thread_name_prefix=f"provider-{provider}")
            self._pools[provider] = pool
        return asyncio.get_running_loop().run_in_executor(pool, call)

    def close(self) -> None:
        """Return when every call has ended; those that have not begun never do."""
        for pool in self._pools.values():
            pool.shutdown(wait=True, cancel_futures=True)
