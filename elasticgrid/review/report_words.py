"""The words that the page and the Markdown file of a report share."""

from __future__ import annotations

from typing import Any

from elasticgrid import utc
from elasticgrid.core import events as ev
from elasticgrid.core.gaps import cause_text
from elasticgrid.review.card import DecisionCard
from elasticgrid.review.report_data import JobReport, ReportData
from elasticgrid.review.timeline import SKEW_TOLD_MS, nodes_text
from elasticgrid.review.whatif import FirstDifference, WhatIf, WhatIfJob, doubt_words, none_words
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


def figure_rows(job: WhatIfJob) -> list[tuple[str, str, str, str, str]]:
    """The figures of a job: name and unit, recorded, what if, the difference, and whether it is extrapolated."""
    return [
        (
            f"{line.figure} ({line.unit})" if line.unit else line.figure,
            cell(line.recorded),
            cell(line.what_if),
            difference(line),
            "extrapolated" if line.extrapolated else "recorded",
        )
        for line in job.table
    ]


def found_words(answer: WhatIf) -> str:
    """Where the other policy first decides otherwise, as far as that can be told, or that it does not."""
    first = answer.first_difference
    return none_words(answer) if first is None else f"{difference_words(first)} {doubt_words(answer)}".strip()


def failure_rows(data: ReportData) -> list[tuple[str, str, str, int, str, str, str]]:
    """The failures by class: job, class, of what, how often, where, when last, and its words then."""
    return [
        (
            each.name,
            each.failure,
            each.what,
            each.count,
            ", ".join(f"{name} {count}" for name, count in each.providers.items()),
            utc.precise(each.last_ms),
            each.last_text,
        )
        for each in data.failures
    ]


def span_of(data: ReportData) -> str:
    """From when to when the log goes."""
    return f"{utc.precise(data.first_ms)} to {utc.precise(data.last_ms)} UTC"


def title_of(data: ReportData) -> str:
    """The report's title."""
    names = [job.job for job in data.jobs[:3]]
    more = len(data.jobs) + data.jobs_left_out - len(names)
    return f"Incident report: {', '.join(names) or 'no jobs'}{f' and {more} more' if more else ''}"


def story_of(job: JobReport, last_ms: int) -> list[str]:
    """What happened to a job, in sentences."""
    end_ms = job.finished_ms or last_ms
    how = f"{job.name} {job.phase}" if job.finished_ms else f"{job.name} was {job.phase} when the log ended"
    took = utc.lasted(end_ms - job.submitted_ms)
    said = [
        f"{how} at step {job.steps} after {took}, for {dollars(job.cost_microdollars)}."
        + (f" Reason: {job.reason}." if job.reason and job.phase != "completed" else "")
    ]
    for card in job.cards:
        if card.action != "hold":
            direction = "grew" if card.action == "up" else "shrank"
            size = f"from {card.current_nodes} to {nodes_text(card.target_nodes)}"
            said.append(f"{utc.precise(card.time_ms)}: it {direction} {size}: {card.reason} (rule {card.rule}).")
    said += [
        f"{utc.precise(gap.from_ms)}: no sample of round {gap.round} came for"
        f" {utc.lasted(gap.until_ms - gap.from_ms)}: {cause_text(gap)} ({gap.cause})."
        for gap in job.gaps
    ]
    if job.deadline_ms is not None:
        late_ms = end_ms - job.deadline_ms
        said.append(
            f"Its deadline was missed by {utc.lasted(late_ms)}."
            if late_ms > 0
            else f"Its deadline was {'met' if job.finished_ms else 'not over'}, with {utc.lasted(-late_ms)} left."
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
            f"{_counted(found.law_breaches, 'law of the log is', 'laws of the log are')} broken"
            if found.law_breaches
            else "every law of the log holds",
        ),
        (
            not found.missing_sequences,
            f"{_counted(found.missing_sequences, 'sequence is', 'sequences are')} missing"
            if found.missing_sequences
            else "no event is missing",
        ),
        (
            not found.open_intents,
            f"{_counted(len(found.open_intents), 'launch or stop has', 'launches or stops have')} no outcome yet"
            if found.open_intents
            else "every launch and every stop has its outcome",
        ),
        (
            abs(data.skew_ms) < SKEW_TOLD_MS,
            f"clocks differ from the log's by at most {abs(data.skew_ms)} ms"
            + (f" ({data.skew_actor})" if data.skew_actor else ""),
        ),
    ]
    if data.has_samples:
        since = f", from {utc.precise(data.silent_from_ms)}" if data.silent_ms else ""
        said.append((True, f"the longest silence between samples of a round: {utc.lasted(data.silent_ms)}{since}"))
    else:
        said.append((False, "the archive has no samples: signals are those that the decisions carry"))
    return said


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def rule_rows(card: DecisionCard) -> list[tuple[str, str, str, str]]:
    """Of each rule: its name, verdict, what it compared and what it says."""
    return [
        (
            rule.rule,
            rule.verdict,
            ", ".join(f"{name} {value:,}" for name, value in rule.numbers.items()),
            rule.says,
        )
        for rule in card.rules
    ]


def candidate_rows(card: DecisionCard) -> list[tuple[str, int, int, str, str]]:
    """Of each provider of the decision's placement: name, free, taken, USD per hour, and why no more was taken."""
    return [
        (
            each.provider,
            each.free,
            each.taken,
            f"{each.price_microdollars_per_hour / 1e6:,.4f}",
            ": ".join(filter(None, (each.refused, each.detail, _until(each)))),
        )
        for each in card.candidates
    ]


def _until(candidate: ev.Candidate) -> str:
    return f"until {utc.moment(candidate.until_ms)} UTC" if candidate.until_ms is not None else ""


def card_title(card: DecisionCard) -> str:
    """A decision in one line."""
    if card.action == "hold":
        return f"{utc.precise(card.time_ms)} hold {nodes_text(card.current_nodes)}: {card.rule}"
    return (
        f"{utc.precise(card.time_ms)} {card.action} {card.current_nodes} → {nodes_text(card.target_nodes)}: {card.rule}"
    )


def signals_of_card(card: DecisionCard) -> str:
    """What a decision saw, in a sentence."""
    seen = card.signals
    if not seen.steps:
        return "No step had been completed in this world."
    share = seen.queue_us * 100 / max(seen.step_us, 1)
    age = f", the last {card.sample_age_ms} ms old" if card.sample_age_ms is not None else ""
    waited = f"{seen.queue_us / 1e6:.3f} s ({share:.0f} %) waiting for a worker"
    return (
        f"{seen.steps} steps of round {seen.round} with {nodes_text(seen.nodes)}{age}: median step"
        f" {seen.step_us / 1e6:.3f} s, of it {waited} and {seen.data_wait_us / 1e6:.3f} s for input."
    )


def difference_words(first: FirstDifference) -> str:
    """Where both runs part, in a sentence."""
    why = f" ({first.rule}: {first.reason})" if first.rule else ""
    when = f"{utc.precise(first.time_ms)} UTC (event {first.after_sequence})"
    return (
        f"Until {when} the other policy does the same. Then, for"
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
