"""How fast a log is replayed, beside the raw limits in the same run.

    python -m benchmarks.replay [--quick] [--events N] [--jobs N] [--archive FILE] [-o text|json]

A log is simulated (or taken from an archive), written to an archive, and restored into a real server. Then each figure
is measured in a process of its own:

decode_events_per_s   the raw limit: only decoding events whose bytes are in memory
read_events_per_s     reading the archive: unpacked, proven and decoded
apply_events_per_s    only folding events that are in memory
fold_events_per_s     reading the archive and folding it to the state of the grid
fold_share_of_decode  the same beside only decoding, in turns
verify_events_per_s   reading the archive, folding it, taking every decision again and comparing it, checking the laws
follow_events_per_s   following the log on the server, decoding and folding it
follow_ratio          the same beside only reading the stream through the follower, in turns
cold_start_s          a decider that loads its snapshot (`load_s`) and folds the `tail_events` that came after it,
                      through the mirror; before that, mirror and stream are compared (`compare_s`)
rss_mb                the most memory that verifying took, in MB (10^6 bytes); `fold_rss_mb` that folding took

Events per second are those of the process's own processor time, so that other work on the machine changes them little;
those that end in `_s` are time on the clock. Of several rounds the best one counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from elasticgrid.core.events import Recorded
from elasticgrid.core.grid import GridFold
from elasticgrid.log.archive import ArchivedEvents
from elasticgrid.log.codec import decode
from elasticgrid.review.collector import rare_collections
from elasticgrid.review.verify import verify

#: Events that are kept in memory where that is measured.
_IN_MEMORY: Final = 50_000
_ROUNDS: Final = 3


def _seconds(work: Callable[[], object]) -> float:
    """Processor seconds of this process that `work` takes."""
    began = time.process_time()
    work()
    return time.process_time() - began


def _rss_mb() -> float:
    """The most memory this process had resident. Not `ru_maxrss`, which begins at what the parent had."""
    status = Path("/proc/self/status").read_text()
    peak_kb = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return round(int(peak_kb) * 1024 / 1e6, 1)


def _folded(records: Iterable[Recorded]) -> GridFold:
    fold = GridFold(memory=0)
    with rare_collections():
        for recorded in records:
            fold.apply(recorded)
    return fold


# --------------------------------------------------------------------------------------------------------------------
# What is measured, each in a process of its own
# --------------------------------------------------------------------------------------------------------------------


def _limits(folder: Path) -> dict[str, float]:
    archive = folder / "log.egz"
    raws = [recorded.raw for recorded in itertools.islice(ArchivedEvents(archive), _IN_MEMORY)]

    def decode_all() -> None:
        for raw in raws:
            decode(raw)

    def read_all() -> None:
        for _ in itertools.islice(ArchivedEvents(archive), len(raws)):
            pass

    def fold_all() -> None:
        _folded(itertools.islice(ArchivedEvents(archive), len(raws)))

    best = dict.fromkeys((decode_all, read_all, fold_all), float("inf"))
    for _ in range(_ROUNDS):
        for work in best:
            best[work] = min(best[work], _seconds(work))
    return {
        "decode_events_per_s": round(len(raws) / best[decode_all]),
        "read_events_per_s": round(len(raws) / best[read_all]),
        "fold_share_of_decode": round(best[decode_all] / best[fold_all], 3),
    }


def _apply(folder: Path) -> dict[str, float]:
    records = list(itertools.islice(ArchivedEvents(folder / "log.egz"), _IN_MEMORY))
    seconds = min(_seconds(lambda: _folded(records)) for _ in range(_ROUNDS))
    return {"apply_events_per_s": round(len(records) / seconds)}


def _fold(folder: Path) -> dict[str, float]:
    began = time.process_time()
    fold = _folded(ArchivedEvents(folder / "log.egz"))
    seconds = time.process_time() - began
    return {"fold_events_per_s": round(fold.events / seconds), "fold_rss_mb": _rss_mb()}


def _verify(folder: Path) -> dict[str, float]:
    began = time.process_time()
    report = verify(ArchivedEvents(folder / "log.egz"))
    seconds = time.process_time() - began
    assert report.ok, report.divergences or report.laws
    return {
        "jobs_in_log": report.jobs,
        "decisions": report.decisions,
        "verify_events_per_s": round(report.events / seconds),
        "decisions_per_s": round(report.decisions / seconds),
        "rss_mb": _rss_mb(),
    }


# What is imported only where it is used would count in the memory of the others.


def _bus(folder: Path) -> dict[str, float]:
    from benchmarks.replay_bus import prepare_bus

    return prepare_bus(folder)


def _follow(folder: Path) -> dict[str, float]:
    from benchmarks.replay_bus import measure_follow

    return measure_follow(folder)


def _cold_start(folder: Path) -> dict[str, float]:
    from benchmarks.replay_bus import measure_cold_start

    return measure_cold_start(folder)


_MEASURES: Final[dict[str, Callable[[Path], dict[str, float]]]] = {
    "limits": _limits,
    "apply": _apply,
    "fold": _fold,
    "verify": _verify,
    "bus": _bus,
    "follow": _follow,
    "cold_start": _cold_start,
}


def measure(folder: Path) -> dict[str, float]:
    """All figures of the archive `log.egz` in a folder; other files are made beside it."""
    figures: dict[str, float] = {}
    for name in _MEASURES:
        command = [sys.executable, "-m", "benchmarks.replay", "--measure", name, "--folder", str(folder)]
        figures |= json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replay", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a short log: 20,000 events of 50 jobs at a time")
    parser.add_argument("--events", type=int, help="length of the log (1,000,000)")
    parser.add_argument("--jobs", type=int, help="jobs at a time (1,000)")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("--archive", type=Path, help="measure this archive of a whole log instead of a simulated one")
    parser.add_argument("--measure", choices=tuple(_MEASURES), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(_MEASURES[arguments.measure](arguments.folder)))
        return
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        archive = Path(name) / "log.egz"
        if arguments.archive is not None:
            archive.symlink_to(arguments.archive.resolve())
        else:
            from benchmarks.simulated_log import write_log

            events = arguments.events or (20_000 if arguments.quick else 1_000_000)
            jobs = arguments.jobs or (50 if arguments.quick else 1_000)
            began = time.process_time()
            figures["events"] = write_log(archive, events, jobs)
            figures["simulated_events_per_s"] = round(figures["events"] / (time.process_time() - began))
        figures["archive_mb"] = round(archive.stat().st_size / 1e6, 2)
        figures |= measure(Path(name))
    if arguments.output == "json":
        print(json.dumps(figures))
    else:
        width = max(map(len, figures))
        for figure, value in figures.items():
            print(f"{figure:<{width}}  {value:>14,}")


if __name__ == "__main__":
    main()
