"""`replay whatif` and `replay report` as they are typed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner, Result

from elasticgrid.cli import review
from elasticgrid.core.errors import ArchiveDamaged, InvalidInput, NotFound
from elasticgrid.log.archive import ArchiveWriter, SampleRange
from elasticgrid.review.whatif_process import WhatIfTask, run_task
from elasticgrid.testing.history import SimulatedGrid

Archived = Callable[..., Path]


def typed(*words: object) -> Result:
    app = typer.Typer()
    review.register(app)
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_answer_is_a_table_and_says_where_the_runs_part(one_job: SimulatedGrid, archived: Archived) -> None:
    result = typed("whatif", archived(one_job), "--set", "scaling.cooldown_down_s=600")
    assert result.exception is None or isinstance(result.exception, SystemExit)
    for words in ("The first different decision: demo/train", "cooldown_down_s: 60 -> 600", "extrapolated"):
        assert words in result.stdout
    assert "the model's error on held-out sizes: 0.0 %" in result.stdout


def test_scripts_get_the_same_as_json(one_job: SimulatedGrid, archived: Archived) -> None:
    path = archived(one_job)
    same = msgspec.json.decode(typed("whatif", path, "--json").stdout)
    assert same["differences"] == 0
    assert same["first_difference"] is None
    other = msgspec.json.decode(typed("whatif", path, "--set", "scaling.cooldown_down_s=600", "-o", "json").stdout)
    assert other["differences"] == 1
    figures = {line["figure"] for line in other["jobs"][0]["table"]}
    assert figures >= {"cost", "node-hours", "finished after", "deadline", "changes", "reversals", "lost steps"}
    assert all(line["extrapolated"] for line in other["jobs"][0]["table"])
    assert other["jobs"][0]["model"]["held_out"]


def test_an_archive_without_samples_is_refused_with_what_to_do(one_job: SimulatedGrid, archived: Archived) -> None:
    result = typed("whatif", archived(one_job, samples=False))
    assert isinstance(result.exception, InvalidInput)
    assert "--with-samples" in result.exception.hint


@pytest.mark.parametrize("suffix", ["html", "md"])
def test_a_report_is_written_in_the_form_its_name_asks_for(
    one_job: SimulatedGrid, archived: Archived, tmp_path: Path, suffix: str
) -> None:
    target = tmp_path / f"incident.{suffix}"
    typed("report", archived(one_job), "-o", target, "--set", "scaling.cooldown_down_s=600")
    text = target.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>" if suffix == "html" else "# Incident report: train")
    assert "extrapolated" in text


def test_where_there_is_nothing_to_report_on_nothing_is_written(
    one_job: SimulatedGrid, archived: Archived, tmp_path: Path
) -> None:
    path, target = archived(one_job), tmp_path / "incident.html"
    assert isinstance(typed("report", path, "-o", tmp_path / "incident.pdf").exception, InvalidInput)
    assert isinstance(typed("report", tmp_path / "none.egz", "-o", target).exception, NotFound)
    assert isinstance(typed("report", path, "-o", target, "--job", "demo/none").exception, NotFound)
    assert isinstance(typed("report", path, "-o", tmp_path / "no" / "incident.html").exception, InvalidInput)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    assert isinstance(typed("report", path, "-o", target).exception, ArchiveDamaged)
    assert not target.exists()
    assert not (tmp_path / "incident.pdf").exists()


def test_a_report_replaces_no_file_unasked(one_job: SimulatedGrid, archived: Archived, tmp_path: Path) -> None:
    path, target = archived(one_job), tmp_path / "incident.md"
    target.write_text("mine")
    refused = typed("report", path, "-o", target).exception
    assert isinstance(refused, InvalidInput)
    assert "--force" in refused.hint
    assert target.read_text() == "mine"
    typed("report", path, "-o", target, "--force")
    assert target.read_text().startswith("# Incident report")


def test_a_job_may_be_named_without_its_tenant(one_job: SimulatedGrid, archived: Archived) -> None:
    path = archived(one_job)
    for name in ("train", "demo/train"):
        assert typed("whatif", path, "--job", name, "--set", "scaling.cooldown_down_s=600").exit_code == 0
    assert isinstance(typed("whatif", path, "--job", "other").exception, NotFound)


def test_where_samples_have_aged_out_the_span_is_named_and_nothing_is_claimed_of_it(
    one_job: SimulatedGrid, tmp_path: Path
) -> None:
    after = len(one_job.samples) - 20
    path = tmp_path / "aged.egz"
    with ArchiveWriter(path, created_ms=0, samples=SampleRange(after, len(one_job.samples))) as writer:
        for recorded in one_job.recorded:
            writer.add_event(recorded)
        for message in one_job.samples[after:]:
            writer.add_samples(message)
    told = typed("whatif", path, "--set", "scaling.grow_factor=4")
    assert "No difference among what can be told" in told.stdout
    assert "the samples of demo/train from 2025-" in told.stdout
    assert "no decision depended" not in told.stdout
    differs = typed("whatif", path, "--set", "scaling.target_queue_share=0.9").stdout
    assert "An earlier one cannot be ruled out: the samples of demo/train" in differs
    assert "what comes after the first different decision rests on them" in differs
    assert "extrapolated" not in differs
    # The same is said to whoever asks the gateway.
    task = WhatIfTask(
        archive=str(path),
        scaling={"grow_factor_ppm": 4_000_000},
        tenant="demo",
        job="train",
        memory_bytes=1 << 31,
        cpu_s=60,
    )
    answer = run_task(task).answer
    assert answer is not None
    assert answer.untold
    assert "cannot be told" in answer.why_none
