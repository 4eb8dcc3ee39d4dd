"""How fast the log is read through its mirror, beside reading it plainly, in one run on one real server.

    python -m benchmarks.mirror [--events N] [--rounds N]

Prints JSON: events a second for reading plainly, reading with a mirror that has yet to be written, reading with one
that is there already, comparing everything, walking the mirror's chain, and restoring the log from the mirror. The
best of several rounds counts, which alternate, because other work on the machine only ever makes it slower. The ratios
are to the plain read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

from elasticgrid.log.jetstream import JetStreamLog
from elasticgrid.log.mirror import Mirror
from elasticgrid.log.mirrored import mirrored_log
from elasticgrid.log.port import MAX_BATCH
from elasticgrid.log.restore import mirror_source
from elasticgrid.log.restore_folder import restore_folder
from elasticgrid.testing.bus import bus_client, embedded_server
from elasticgrid.testing.log_contract import an_event


async def count(records: AsyncIterator[object]) -> int:
    return sum([1 async for _ in records])


async def rate(work: Awaitable[object], events: int) -> float:
    started = time.perf_counter()
    await work
    return round(events / (time.perf_counter() - started))


async def measure(events: int, rounds: int, folder: Path) -> dict[str, Any]:
    best: dict[str, float] = {}

    def note(name: str, events_per_s: float) -> None:
        best[name] = max(best.get(name, 0), events_per_s)

    async with embedded_server(folder) as server, bus_client(server) as client:
        log = JetStreamLog(client)
        for first in range(0, events, MAX_BATCH):
            await log.append([an_event(number) for number in range(first, min(first + MAX_BATCH, events))])
        for number in range(rounds):
            note("plain", await rate(count(log.read()), events))
            async with await Mirror.open(folder / f"mirror{number}.sqlite") as mirror:
                note("writing", await rate(count(mirrored_log(client, mirror).read()), events))
                note("plain", await rate(count(log.read()), events))
                note("comparing", await rate(count(mirrored_log(client, mirror).read()), events))
                note("verify_full", await rate(mirrored_log(client, mirror).verify(full=True), events))
                note("chain_walk", await rate(mirror.check(), events))
                started = time.perf_counter()
                await mirrored_log(client, mirror).verify()
                verify_quick_s = time.perf_counter() - started
    note("restore", await rate(restore_folder(folder, mirror_source(folder / "mirror0.sqlite")), events))
    return {
        "events": events,
        **{f"{name}_events_per_s": value for name, value in best.items()},
        **{f"{name}_ratio": round(best[name] / best["plain"], 2) for name in ("writing", "comparing", "verify_full")},
        "verify_quick_s": round(verify_quick_s, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(measure(arguments.events, arguments.rounds, Path(folder))), indent=2))


if __name__ == "__main__":
    main()
