"""The demonstration's result: what the run did, and whether that is what a demonstration must show."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec

from elasticgrid.demo.chaos_plan import What
from elasticgrid.review.report import VerifyReport
from elasticgrid.review.summary import RunSummary


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `elasticgrid demo --json` prints.

    Attributes:
        worlds: sizes of the rounds in order, in nodes.
        steps: optimizer steps of the committed line.
        duplicate_steps: steps of the committed line that ran more than once.
        lost_steps: steps that ran but were not kept.
        loss_first, loss_last: mean training loss of the first and the last five steps.
        samples_published, samples_dropped: by the trainers' hooks.
        decisions, verified, diverged: decisions in the log, re-taken with the same result, and with another.
        launches: iroh-tinker jobs asked for.
        nodes_by_provider: nodes that joined.
        duration_s: wall time of the whole command.
        archive: the log and the samples, for `elasticgrid replay`.
        failures: what did not come out as it must; empty means success.
    """

    worlds: tuple[int, ...]
    steps: int
    duplicate_steps: int
    lost_steps: int
    loss_first: float
    loss_last: float
    samples_published: int
    samples_dropped: int
    decisions: int
    verified: int
    diverged: int
    launches: int
    nodes_by_provider: dict[str, int]
    cost_usd: float
    duration_s: float
    archive: str
    failures: tuple[str, ...] = ()


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """One process that was killed (SIGKILL), seconds after the job was submitted."""

    at_s: float
    what: What
    pid: int


class ChaosResult(DemoResult, frozen=True, kw_only=True):
    """What `elasticgrid demo --chaos SEED --json` prints: what the demonstration's result has, and three fields more.

    Attributes:
        seed: what the moments of the kills were drawn from.
        orphans: processes of the run that were still there when everything had ended.
    """

    seed: int
    kills: tuple[Kill, ...]
    orphans: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What a run left behind.

    Attributes:
        published, dropped: samples, by the trainers' hooks.
        duration_s: wall time.
        archive: the log and the samples.
    """

    summary: RunSummary
    report: VerifyReport
    published: int
    dropped: int
    duration_s: float
    archive: Path


def judge(run: Run) -> DemoResult:
    """The result, with everything that is wrong with it."""
    summary, report = run.summary, run.report
    loss_first = summary.loss_first if summary.loss_first is not None else 0.0
    loss_last = summary.loss_last if summary.loss_last is not None else 0.0
    worlds = summary.worlds
    checks = [
        (any(after > before for before, after in pairwise(worlds)), "the world never grew"),
        (any(after < before for before, after in pairwise(worlds)), "the world never shrank"),
        (loss_last < loss_first, f"the loss did not fall: {loss_first:.3f} -> {loss_last:.3f}"),
        *_always(summary, report),
    ]
    return DemoResult(
        worlds=worlds,
        steps=summary.steps,
        duplicate_steps=summary.duplicate_steps or 0,
        lost_steps=summary.lost_steps or 0,
        loss_first=round(loss_first, 4),
        loss_last=round(loss_last, 4),
        samples_published=run.published,
        samples_dropped=run.dropped,
        decisions=report.decisions,
        verified=report.verified,
        diverged=report.diverged,
        launches=summary.launches,
        nodes_by_provider=summary.nodes_by_provider,
        cost_usd=summary.cost_usd,
        duration_s=round(run.duration_s, 1),
        archive=str(run.archive),
        failures=tuple(text for holds, text in checks if not holds),
    )


def judge_chaos(run: Run, *, seed: int, planned: int, kills: tuple[Kill, ...], orphans: int) -> ChaosResult:
    """The result of a run under chaos, with everything that is wrong with it.

    Which sizes its world took is not judged: that depends on what was killed when.
    """
    checks = [
        *_always(run.summary, run.report),
        (not orphans, f"processes left behind: {orphans}"),
        (len(kills) == planned, f"{len(kills)} of {planned} kills happened before the job was over"),
    ]
    values = msgspec.structs.asdict(judge(run)) | {"failures": tuple(text for holds, text in checks if not holds)}
    return ChaosResult(**values, seed=seed, kills=kills, orphans=orphans)


def _always(summary: RunSummary, report: VerifyReport) -> list[tuple[bool, str]]:
    """What must hold of any run, and what is wrong if it does not."""
    return [
        (summary.phase == "completed", f"the job ended as {summary.phase}: {summary.outcome_reason}"),
        (summary.duplicate_steps == 0, f"steps of the committed line that ran twice: {summary.duplicate_steps}"),
        (report.diverged == 0, f"decisions that came out differently when they were taken again: {report.diverged}"),
        (report.decisions > 0 and report.verified == report.decisions, "not every decision could be verified"),
        (not report.law_breaches, f"breaches of the laws of the log: {report.law_breaches}"),
    ]
