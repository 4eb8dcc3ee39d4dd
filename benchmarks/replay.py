"""How fast a log is replayed: an archive is decoded, folded and verified, and how much memory that takes.

    python -m benchmarks.replay [--quick] [--events N] [--jobs N] [-o text|json]

The log is simulated, written to an archive and then measured in processes of its own, one for each figure.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from elasticgrid.core.events import Event, Recorded
from elasticgrid.core.grid import GridFold
from elasticgrid.core.spec import JobSpec, ProviderSpec, ScalingPolicy
from elasticgrid.log.archive import ArchivedEvents, ArchiveWriter
from elasticgrid.log.codec import decode
from elasticgrid.review.collector import rare_collections
from elasticgrid.review.verify import verify
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload

#: Events that are kept in memory where the raw limit of decoding is measured.
_DECODED = 50_000
_HOUR_MS = 3_600_000

_SCALING = ScalingPolicy(target_tokens_per_s=400, cooldown_down_ms=300_000, reversal_ms=300_000)


class _EnoughError(Exception):
    """The log is long enough."""


def write_log(path: Path, events: int, jobs: int) -> int:
    """Simulate a grid until its log has about `events` events, and write it to an archive; returns how many."""
    with ArchiveWriter(path, created_ms=0) as writer:

        def keep(recorded: Recorded) -> None:
            if recorded.sequence > events and isinstance(recorded.event, Event) and recorded.event.basis is None:
                raise _EnoughError  # never within a decision
            writer.add_event(recorded)

        providers = [
            ProviderSpec(name="spot", max_nodes=3 * jobs, market="spot", price_microdollars_per_hour=700_000),
            ProviderSpec(name="reserved", max_nodes=4 * jobs, price_microdollars_per_hour=2_000_000),
        ]
        grid = SimulatedGrid(providers, report_ms=300_000, on_event=keep, on_samples=lambda _: None)
        with contextlib.suppress(_EnoughError):
            _simulate(grid, jobs)
        return writer.events


def _simulate(grid: SimulatedGrid, jobs: int) -> None:
    """Jobs whose load goes up and down all day, one after another in each of `jobs` places."""
    numbers = itertools.count()

    def submit() -> None:
        number = next(numbers)
        spec = JobSpec(name=f"job{number}", command=("python", "train.py"), max_nodes=6, scaling=_SCALING)
        demand = ((1_800_000 + number % 7 * 120_000, 4 + number % 3), (2_400_000 + number % 5 * 120_000, 1))
        workload = Workload(
            total_steps=4_000, step_ms=60_000, demand=demand, repeat=True, begin_ms=grid.now_ms, checkpoint_steps=30
        )
        key = grid.submit(spec, workload)

        def look() -> None:
            if grid.job(key).terminal:
                submit()
            else:
                grid.at(_HOUR_MS, look)

        grid.at(_HOUR_MS, look)

    for place in range(jobs):
        grid.at(place * 997, submit)
    while True:
        grid.advance(_HOUR_MS)


# --------------------------------------------------------------------------------------------------------------------
# What is measured, each in a process of its own
# --------------------------------------------------------------------------------------------------------------------


def _rate(count: int, begun: float) -> float:
    return round(count / (time.perf_counter() - begun))


def _decode(path: Path) -> dict[str, float]:
    raws = [recorded.raw for recorded in itertools.islice(ArchivedEvents(path), _DECODED)]
    begun = time.perf_counter()
    for raw in raws:
        decode(raw)
    return {"decode_events_per_s": _rate(len(raws), begun)}


def _read(path: Path) -> dict[str, float]:
    begun = time.perf_counter()
    return {"read_events_per_s": _rate(sum(1 for _ in ArchivedEvents(path)), begun)}


def _fold(path: Path) -> dict[str, float]:
    fold = GridFold(memory=1)
    begun = time.perf_counter()
    with rare_collections():
        for recorded in ArchivedEvents(path):
            fold.apply(recorded)
    return {"fold_events_per_s": _rate(fold.events, begun), "fold_rss_mb": _rss_mb()}


def _apply(path: Path) -> dict[str, float]:
    records = list(itertools.islice(ArchivedEvents(path), _DECODED))
    fold = GridFold(memory=1)
    begun = time.perf_counter()
    with rare_collections():
        for recorded in records:
            fold.apply(recorded)
    return {"apply_events_per_s": _rate(fold.events, begun)}


def _verify(path: Path) -> dict[str, float]:
    begun = time.perf_counter()
    report = verify(ArchivedEvents(path))
    rate = _rate(report.events, begun)
    assert report.ok, report.divergences or report.laws
    return {
        "verify_events_per_s": rate,
        "decisions_per_s": round(rate * report.decisions / report.events),
        "rss_mb": _rss_mb(),
    }


def _rss_mb() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


_MEASURES: dict[str, Callable[[Path], dict[str, float]]] = {
    "decode": _decode,
    "read": _read,
    "apply": _apply,
    "fold": _fold,
    "verify": _verify,
}


def measure(path: Path) -> dict[str, float]:
    """All figures of an archive."""
    figures: dict[str, float] = {}
    for name in _MEASURES:
        command = [sys.executable, "-m", "benchmarks.replay", "--measure", name, "--archive", str(path)]
        figures |= json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short log: 60,000 events of 100 jobs")
    parser.add_argument("--events", type=int, help="length of the log (1,000,000)")
    parser.add_argument("--jobs", type=int, help="jobs at a time (1,000)")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("--archive", type=Path, help="measure this archive instead of a simulated log")
    parser.add_argument("--measure", choices=tuple(_MEASURES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(_MEASURES[arguments.measure](arguments.archive)))
        return
    events = arguments.events or (60_000 if arguments.quick else 1_000_000)
    jobs = arguments.jobs or (100 if arguments.quick else 1_000)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.archive
        if path is None:
            path = Path(folder) / "log.egz"
            begun = time.perf_counter()
            figures["events"] = write_log(path, events, jobs)
            figures["simulated_events_per_s"] = _rate(events, begun)
        figures["archive_mb"] = round(path.stat().st_size / 1e6, 2)
        figures |= measure(path)
    figures["fold_share_of_decode"] = round(figures["fold_events_per_s"] / figures["decode_events_per_s"], 3)
    if arguments.output == "json":
        print(json.dumps(figures))
    else:
        width = max(map(len, figures))
        for name, figure in figures.items():
            print(f"{name:<{width}}  {figure:>14,}")


if __name__ == "__main__":
    main()
