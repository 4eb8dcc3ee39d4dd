"""The benchmarks run, and print the figures they promise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elasticgrid.core.spec import JobSpec, ProviderSpec
from elasticgrid.log.archive import ArchiveWriter
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload

pytestmark = [pytest.mark.server, pytest.mark.process]


ROOT = Path(__file__).parents[2]


def printed_by(module: str, *arguments: str) -> str:
    """What a benchmark prints."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def figures_of(module: str, *arguments: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(printed_by(module, *arguments))
    return figures


def test_replay_prints_every_promised_figure_of_a_tiny_log() -> None:
    figures = figures_of("benchmarks.replay", "--quick", "--events", "1500", "--jobs", "5", "-o", "json")

    promised = (
        "fold_events_per_s",
        "verify_events_per_s",
        "decode_events_per_s",
        "follow_ratio",
        "rss_mb",
        "cold_start_s",
    )
    assert all(isinstance(figures[name], int | float) and figures[name] > 0 for name in promised), figures
    assert 1_500 <= figures["events"] < 1_600
    assert figures["tail_events"] == figures["events"] // 3
    assert figures["fold_events_per_s"] < figures["decode_events_per_s"]
    assert figures["follow_ratio"] < 1


def test_replay_measures_an_archive_that_is_given_and_prints_it_for_people(tmp_path: Path) -> None:
    archive = tmp_path / "some.egz"
    grid = SimulatedGrid((ProviderSpec(name="spot", max_nodes=4, price_microdollars_per_hour=500_000),))
    grid.submit(JobSpec(name="train", command=("train",), max_nodes=3), Workload(total_steps=300))
    grid.run()
    with ArchiveWriter(archive, created_ms=0) as writer:
        for recorded in grid.recorded:
            writer.add_event(recorded)

    names = [line.split()[0] for line in printed_by("benchmarks.replay", "--archive", str(archive)).splitlines()]

    assert {"archive_mb", "fold_events_per_s", "cold_start_s"} <= set(names)
    assert "events" not in names


def test_the_mirror_benchmark_prints_rates_and_their_ratios_to_a_plain_read() -> None:
    figures = figures_of("benchmarks.mirror", "--events", "1000", "--rounds", "1")

    for name in ("plain", "writing", "comparing", "verify_full", "chain_walk", "restore"):
        assert figures[f"{name}_events_per_s"] > 0
    for name in ("writing", "comparing", "verify_full"):
        assert figures[f"{name}_ratio"] > 0


def test_the_hook_benchmark_prints_what_the_hook_costs_for_each_state_of_the_bus() -> None:
    figures = figures_of("benchmarks.hook", "-o", "json")

    assert set(figures["step_us"]) == {"up", "stalled", "down"}
    assert figures["fork_harmless"] is True
    assert all(isinstance(figures[name], int | float) for name in ("bare_loop_us", "blocked_calls", "rss_mb", "exit_s"))


def test_watchers_of_whom_some_take_nothing_get_every_event_while_decisions_are_taken() -> None:
    figures = figures_of("benchmarks.sse_subscribers", "--subscribers", "100", "--seconds", "2", "--rounds", "1")

    alone, watched = figures["subscribers"]["0"], figures["subscribers"]["100"]
    assert watched["mute"] == 10
    assert watched["received"] == 1.0
    assert watched["decisions"] >= 0.5 * alone["decisions"] > 0
    for each in (alone, watched):
        assert all(each[name][part] > 0 for name in ("decision_ms", "append_ms") for part in ("p50", "p99"))
        assert each["burst_per_s"] > 0
