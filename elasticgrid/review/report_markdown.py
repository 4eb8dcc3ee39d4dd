"""The incident report as Markdown: the same facts as the page, to paste where incidents are discussed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from elasticgrid import utc
from elasticgrid.review.card import DecisionCard, later_text, next_text, placement_title
from elasticgrid.review.report_data import JobReport, ReportData
from elasticgrid.review.report_words import (
    QUESTIONS,
    candidate_rows,
    card_title,
    checks_of,
    failure_rows,
    figure_rows,
    found_words,
    model_words,
    rule_rows,
    signals_of_card,
    span_of,
    story_of,
    title_of,
)
from elasticgrid.review.whatif import WhatIf

_SPECIAL = re.compile(r"([\\`*_\[\]<>|~&]|^[-+#])")
#: Holds, checkpoints and first steps are left out of the Markdown timeline beyond so many lines.
MAX_LINES = 200


def plain(text: object) -> str:
    """A text as Markdown shows it, letter by letter, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(str(text).split()))


def markdown_report(data: ReportData) -> str:
    """The file."""
    return "\n".join(_parts(data)) + "\n"


def _parts(data: ReportData) -> Iterator[str]:
    yield f"# {plain(title_of(data))}\n"
    yield f"{span_of(data)}, {data.events:,} events, from {plain(data.source)}.\n"
    yield "## What happened\n"
    for job in data.jobs:
        yield from _job(job, data)
    if data.jobs_left_out:
        yield f"{data.jobs_left_out} cheaper jobs are not shown.\n"
    yield "## Can the log be trusted\n"
    yield from (f"- {'ok' if fine else '**look**'}: {plain(text)}" for fine, text in checks_of(data))
    yield from (
        f"- **diverged**: event {each.sequence}, {plain(each.field or 'the whole event')}: expected"
        f" {plain(each.expected)}, got {plain(each.got)}"
        for each in data.verification.divergences
    )
    yield "\n## Decisions\n"
    for job in data.jobs:
        yield f"### {plain(job.name)}\n"
        for card in job.cards:
            yield from _card(card)
        if job.cards_left_out:
            yield f"{job.cards_left_out:,} decisions are not shown.\n"
    yield "## Failures\n"
    if data.failures:
        columns = ("job", "class", "of a", "times", "where", "last", "its words")
        yield from _table(columns, failure_rows(data))
    else:
        yield "No launch, worker or node failed.\n"
    if data.what_if is not None:
        yield from _what_if(data.what_if)
    yield "## Timeline\n"
    lines = data.lines[:MAX_LINES]
    yield from _table(
        ("event", "time", "since", "job", "actor", "what", "change", "reason"),
        [
            (
                line.sequence,
                utc.precise(line.time_ms),
                f"+{utc.lasted(line.delta_ms)}",
                f"{line.tenant}/{line.job}" if line.job else "",
                line.actor,
                line.what,
                f"{line.before} → {line.after}" if line.before else line.after,
                line.reason,
            )
            for line in lines
        ],
    )
    if len(data.lines) + data.lines_left_out > len(lines):
        yield f"{len(data.lines) + data.lines_left_out - len(lines):,} later events are not shown.\n"
    yield "## Post-mortem\n"
    for question, hint in QUESTIONS:
        yield f"### {question}\n\n{hint or '…'}\n"


def _job(job: JobReport, data: ReportData) -> Iterator[str]:
    yield f"### {plain(job.name)}: {plain(job.phase)}\n"
    yield from (f"- {plain(line)}" for line in story_of(job, data.last_ms))
    yield f"- {job.ups} decisions up, {job.downs} down, {job.holds} hold\n"


def _card(card: DecisionCard) -> Iterator[str]:
    yield f"#### {plain(card_title(card))}\n"
    yield f"{plain(card.reason)}. {plain(signals_of_card(card))}\n"
    yield from _table(("rule", "verdict", "compared", "says"), rule_rows(card))
    if card.placement_sequence >= card.sequence:
        yield f"Where: {plain(placement_title(card))}\n"
        if card.candidates:
            yield from _table(("provider", "free", "taken", "USD/h", "why not"), candidate_rows(card))
        if card.policy_broken:
            yield f"{plain(card.policy_broken)}\n"
    if card.later:
        yield "Decided since:\n"
        yield from (f"- {utc.precise(each.time_ms)} {plain(later_text(each))}" for each in card.later)
        yield ""
    yield f"Decision {card.number}, event {card.sequence}; {plain(next_text(card))}.\n"


def _what_if(answer: WhatIf) -> Iterator[str]:
    yield "## What if\n"
    yield plain(found_words(answer)) + "\n"
    if answer.stopped:
        yield f"The simulation stopped: {plain(answer.stopped)}.\n"
    for job in answer.jobs:
        yield f"### {plain(f'{job.tenant}/{job.job}')}\n"
        yield from (f"- {plain(each.setting)}: {plain(each.recorded)} → {plain(each.what_if)}" for each in job.settings)
        yield ""
        yield from _table(
            ("figure", "recorded", "what if", "difference", "source"),
            figure_rows(job),
        )
        yield f"{plain(model_words(job))}\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{' --- |' * len(columns)}"
    yield from (f"| {' | '.join(plain(value) for value in row)} |" for row in rows)
    yield ""
