"""The words that the page and the Markdown file of a report share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from elasticgrid.review.card import DecisionCard
from elasticgrid.review.report_data import JobReport, ReportData
from elasticgrid.review.whatif import FirstDifference, WhatIfJob
from elasticgrid.review.whatif_figures import Comparison

#: What a post-mortem asks, and a word on each.
QUESTIONS = (
    ("Summary", "Two sentences that somebody who was not there understands."),
    ("Impact", "Who noticed, for how long, and what it cost."),
    ("Root cause", "Why it happened; the decision cards above name rules and numbers."),
    ("What went well", ""),
    ("What went badly", ""),
    ("Where we were lucky", ""),
    ("Actions", "Each with an owner and a date. `replay whatif` shows what another policy would have done."),
)


def moment(time_ms: int) -> str:
    """A time for people, UTC."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def clock(time_ms: int) -> str:
    """The time of day, UTC."""
    return moment(time_ms)[11:]


def lasted(duration_ms: int) -> str:
    """A duration for people."""
    if abs(duration_ms) < 1_000:
        return f"{duration_ms} ms"
    seconds = duration_ms / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3_600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def dollars(microdollars: int) -> str:
    """Money for people: cents, or finer where it is less than a dollar."""
    return f"${microdollars / 1e6:,.2f}" if microdollars >= 1_000_000 else f"${microdollars / 1e6:.5f}"


def cell(value: Any) -> str:
    """A value of the what-if table."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def difference(line: Comparison) -> str:
    """By how much a figure would have been another, empty when it would not."""
    before, after = line.recorded, line.what_if
    if not isinstance(before, int | float) or not isinstance(after, int | float) or before == after:
        return ""
    return f"{(after - before) / before:+.0%}" if isinstance(before, float) and before else f"{after - before:+,.4g}"


def title_of(data: ReportData) -> str:
    """The report's title."""
    names = [job.job for job in data.jobs[:3]]
    more = len(data.jobs) + data.jobs_left_out - len(names)
    return f"Incident report: {', '.join(names) or 'no jobs'}{f' and {more} more' if more else ''}"


def story_of(job: JobReport, last_ms: int) -> list[str]:
    """What happened to a job, in sentences."""
    end_ms = job.finished_ms or last_ms
    how = f"{job.name} {job.phase}" if job.finished_ms else f"{job.name} was {job.phase} when the log ended"
    said = [
        f"{how} at step {job.steps} after {lasted(end_ms - job.submitted_ms)}, for {dollars(job.cost_microdollars)}."
        + (f" Reason: {job.reason}." if job.reason and job.phase != "completed" else "")
    ]
    for card in job.cards:
        if card.action != "hold":
            direction = "grew" if card.action == "up" else "shrank"
            size = f"from {card.current_nodes} to {card.target_nodes} nodes"
            said.append(f"{clock(card.time_ms)}: it {direction} {size}: {card.reason} (rule {card.rule}).")
    if job.deadline_ms is not None:
        late_ms = end_ms - job.deadline_ms
        said.append(
            f"Its deadline was missed by {lasted(late_ms)}."
            if late_ms > 0
            else f"Its deadline was {'met' if job.finished_ms else 'not over'}, with {lasted(-late_ms)} left."
        )
    failures = [
        f"{count} of the {whose}"
        for count, whose in ((job.app_failures, "application"), (job.infra_failures, "infrastructure"))
        if count
    ]
    if failures:
        said.append(f"Failures counted against it: {', '.join(failures)}.")
    return said


def checks_of(data: ReportData) -> list[tuple[bool, str]]:
    """Whether the log can be trusted, and what is missing: (fine, sentence)."""
    found = data.verification
    said = [
        (
            not found.diverged,
            f"{found.verified} of {found.decisions} decisions were taken again with the same result"
            + (f", {found.diverged} came out differently" if found.diverged else "")
            + (f", {found.unverifiable} could not be taken again" if found.unverifiable else ""),
        ),
        (
            not found.law_breaches,
            f"{found.law_breaches} laws of the log are broken" if found.law_breaches else "every law of the log holds",
        ),
        (
            not found.missing_sequences,
            f"{found.missing_sequences} sequences are missing" if found.missing_sequences else "no event is missing",
        ),
        (
            not found.open_intents,
            f"{len(found.open_intents)} launches or stops have no outcome yet"
            if found.open_intents
            else "every launch and every stop has its outcome",
        ),
        (
            abs(data.skew_ms) < 2_000,
            f"clocks differ from the log's by at most {abs(data.skew_ms)} ms"
            + (f" ({data.skew_actor})" if data.skew_actor else ""),
        ),
    ]
    if data.has_samples:
        since = f", from {clock(data.silent_from_ms)}" if data.silent_ms else ""
        said.append((True, f"the longest silence between samples of a round: {lasted(data.silent_ms)}{since}"))
    else:
        said.append((False, "the archive has no samples: signals are those that the decisions carry"))
    return said


def card_title(card: DecisionCard) -> str:
    """A decision in one line."""
    if card.action == "hold":
        return f"{clock(card.time_ms)} hold {card.current_nodes} nodes: {card.rule}"
    return f"{clock(card.time_ms)} {card.action} {card.current_nodes} → {card.target_nodes} nodes: {card.rule}"


def signals_of_card(card: DecisionCard) -> str:
    """What a decision saw, in a sentence."""
    seen = card.signals
    if not seen.steps:
        return "No step had been completed in this world."
    share = seen.queue_us * 100 / max(seen.step_us, 1)
    age = f", the last {card.sample_age_ms} ms old" if card.sample_age_ms is not None else ""
    waited = f"{seen.queue_us / 1e6:.3f} s ({share:.0f} %) waiting for a worker"
    return (
        f"{seen.steps} steps of round {seen.round} with {seen.nodes} nodes{age}: median step"
        f" {seen.step_us / 1e6:.3f} s, of it {waited} and {seen.data_wait_us / 1e6:.3f} s for input."
    )


def difference_words(first: FirstDifference) -> str:
    """Where both runs part, in a sentence."""
    why = f" ({first.rule}: {first.reason})" if first.rule else ""
    return (
        f"Until {moment(first.time_ms)} UTC (event {first.after_sequence}) the other policy does the same. Then, for"
        f" {first.tenant}/{first.job}, recorded: {first.recorded}; what if: {first.what_if}{why}."
    )


def model_words(job: WhatIfJob) -> str:
    """What the extrapolation rests on, in a sentence."""
    if job.model is None:
        return ""
    error = (
        f"off by {job.model.error_ppm / 10_000:.1f} % on held-out sizes"
        if job.model.error_ppm is not None
        else "of unknown error, since one size was measured"
    )
    sizes = ", ".join(str(each.nodes) for each in job.model.sizes)
    return f"The throughput model, fitted to sizes {sizes}, is {error}. Assumed: {'; '.join(job.model.assumes)}."
