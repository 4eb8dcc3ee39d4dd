"""The parts of the report's page. Every text from the log goes through `escaped`, and nothing else makes markup."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence

from elasticgrid import utc
from elasticgrid.review import report_plots as plots
from elasticgrid.review.card import DecisionCard, later_text, next_text, placement_title
from elasticgrid.review.report_data import JobReport, ReportData
from elasticgrid.review.report_words import (
    QUESTIONS,
    candidate_rows,
    card_title,
    checks_of,
    dollars,
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
from elasticgrid.review.timeline import TimelineLine, nodes_text
from elasticgrid.review.whatif import WhatIf

title = title_of

_SECTIONS = (
    ("what-happened", "What happened"),
    ("trust", "Can the log be trusted"),
    ("lanes", "Nodes over time"),
    ("plots", "Size, queue and cost"),
    ("decisions", "Decisions"),
    ("failures", "Failures"),
    ("what-if", "What if"),
    ("timeline", "Timeline"),
    ("post-mortem", "Post-mortem"),
)
#: More lanes than this are scrolled.
_LANES_IN_SIGHT = 30
_PHASES = {"completed": "good", "failed": "bad", "cancelled": "warn"}


def escaped(text: object) -> str:
    """A text as the page shows it, letter by letter; also between quotes."""
    return html.escape(str(text), quote=True)


def header(data: ReportData) -> str:
    """Title, span and the way around."""
    parts = [each for each in _SECTIONS if each[0] != "what-if" or data.what_if is not None]
    links = "".join(f'<li><a href="#{name}">{text}</a></li>' for name, text in parts)
    return (
        f"<header><h1>{escaped(title_of(data))}</h1>"
        f'<p class="quiet">{span_of(data)} · {data.events:,} events · from'
        f' <span class="mono">{escaped(data.source)}</span></p>'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>'
    )


def footer(data: ReportData) -> str:
    """What made it."""
    return (
        f"<footer><p>Made from the event log alone, written by elasticgrid {escaped(data.software)}. Times are UTC."
        " This page needs no network.</p></footer>"
    )


def all_sections(data: ReportData) -> Iterator[str]:
    """Everything between header and footer."""
    yield _section("what-happened", _what_happened(data))
    yield _section("trust", _trust(data))
    yield _section("lanes", _lanes(data))
    yield _section("plots", _plots(data))
    yield _section("decisions", _decisions(data))
    yield _section("failures", _failures(data))
    if data.what_if is not None:
        yield _section("what-if", _what_if(data.what_if))
    yield _section("timeline", _timeline(data))
    yield _section("post-mortem", _post_mortem(data))


def _section(name: str, inner: str) -> str:
    text = dict(_SECTIONS)[name]
    return f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{text}</h2>{inner}</section>'


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]], caption: str, *, row_class: str = "") -> str:
    """A table of texts; a column whose name begins with `#` is of numbers, one with `+` of long texts."""
    kinds = [{"#": "n", "+": "long", "@": "when"}.get(column[:1], "") for column in columns]
    head = "".join(
        f'<th scope="col"{_class("n" if kind == "n" else "")}>{escaped(column.lstrip("#+@"))}</th>'
        for column, kind in zip(columns, kinds, strict=True)
    )
    body = []
    for row in rows:
        cells, name = (row[:-1], str(row[-1])) if row_class else (row, "")
        inner = "".join(f"<td{_class(kind)}>{escaped(value)}</td>" for value, kind in zip(cells, kinds, strict=True))
        body.append(f"<tr{_class(name)}>{inner}</tr>")
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escaped(caption)}"><table><thead><tr>{head}</tr>'
        f"</thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _what_happened(data: ReportData) -> str:
    if not data.jobs:
        return '<p class="quiet">There is no job in this log.</p>'
    return "".join(_job(job, data) for job in data.jobs) + _left_out(data.jobs_left_out, "cheaper jobs")


def _left_out(count: int, what: str) -> str:
    return f'<p class="quiet">{count:,} {what} are not shown.</p>' if count else ""


def _job(job: JobReport, data: ReportData) -> str:
    end_ms = job.finished_ms or data.last_ms
    sizes = [point.value for point in job.training if point.value]
    tiles = (
        ("cost", dollars(job.cost_microdollars)),
        ("time", utc.lasted(end_ms - job.submitted_ms)),
        ("steps", f"{job.steps:,}"),
        ("nodes trained on", f"{min(sizes):.0f} to {max(sizes):.0f}" if sizes else "none"),
        ("decisions up / down / hold", f"{job.ups} / {job.downs} / {job.holds}"),
        ("failures app / infra", f"{job.app_failures} / {job.infra_failures}"),
    )
    shown = "".join(f'<div class="tile"><b>{escaped(value)}</b><span>{name}</span></div>' for name, value in tiles)
    story = "".join(f"<li>{escaped(each)}</li>" for each in story_of(job, data.last_ms))
    badge = f'<span class="badge {_PHASES.get(job.phase, "plain")}">{escaped(job.phase)}</span>'
    return f'<h3>{escaped(job.name)} {badge}</h3><div class="tiles">{shown}</div><ul class="facts">{story}</ul>'


def _trust(data: ReportData) -> str:
    fine = data.verification.ok
    verdict = "Yes: every decision follows from what was known" if fine else "No: something in it does not follow"
    checks = "".join(
        f'<li><span class="badge {"good" if good else "warn"}">{"ok" if good else "look"}</span> {escaped(text)}</li>'
        for good, text in checks_of(data)
    )
    told = "".join(
        f"<p>Event {each.sequence}, decision {each.number} of {escaped(each.tenant)}/{escaped(each.job)}:"
        f" <code>{escaped(each.field or 'the whole event')}</code> should be <code>{escaped(each.expected)}</code>"
        f" and is <code>{escaped(each.got)}</code>. {escaped(each.note)}</p>"
        for each in data.verification.divergences[:10]
    )
    broken = "".join(
        f"<p>Event {each.sequence} breaks the law <code>{escaped(each.law)}</code>: {escaped(each.says)}</p>"
        for each in data.verification.laws[:10]
    )
    badge = f'<p><span class="badge {"good" if fine else "bad"}">{verdict}</span></p>'
    return f'{badge}<ul class="facts">{checks}</ul>{told}{broken}'


def _plot(name: str, caption: str) -> str:
    return f'<div class="plot" data-plot="{name}" role="img" aria-label="{escaped(caption)}"></div>'


_NO_SCRIPT = '<noscript><p class="quiet">The plots need scripts; the tables say the same.</p></noscript>'


def _lanes(data: ReportData) -> str:
    if not data.lanes:
        return '<p class="quiet">No node was ever launched.</p>'
    rows = [
        (
            lane.provider,
            lane.node,
            f"{lane.tenant}/{lane.job}",
            bar.doing,
            utc.precise(bar.from_ms),
            utc.lasted(bar.to_ms - bar.from_ms),
        )
        for lane in data.lanes
        for bar in lane.bars
    ]
    table = _table(("provider", "node", "job", "did", "@from", "#for"), rows, "What each node did")
    caption = f"What {nodes_text(len(data.lanes))} did over time; the table below says the same"
    hidden = _left_out(max(len(data.lanes) - plots.MAX_LANES, 0), "later lanes")
    drawn = _plot("lanes", caption)
    if len(data.lanes) > _LANES_IN_SIGHT:
        drawn = f'<div class="tall" role="region" tabindex="0" aria-label="Nodes over time">{drawn}</div>'
    shown = f"{_NO_SCRIPT}{drawn}{hidden}"
    return f"{shown}<details><summary>The same as a table</summary>{table}</details>"


def _plots(data: ReportData) -> str:
    words = " ".join(plots.at_its_highest(job) for job in data.jobs)
    source = {job.queue_from for job in data.jobs}
    note = "" if source == {"samples"} else " Queue shares are those in the decisions, not of every step."
    parts = [f"<p>{escaped(words)}{note}</p>{_NO_SCRIPT}"]
    for name, text in (("size", "Nodes"), ("queue", "Queue share"), ("rate", "USD an hour"), ("cost", "USD spent")):
        parts.append(f"<h3>{text}</h3>{_plot(name, f'{text} over time. {words}')}")
    rows = [(job.name, utc.precise(point.time_ms), f"{point.value:.0f}") for job in data.jobs for point in job.training]
    table = _table(("job", "@from", "#nodes training"), rows, "Nodes training over time")
    return "".join(parts) + f"<details><summary>Sizes as a table</summary>{table}</details>"


def _decisions(data: ReportData) -> str:
    parts = [
        '<p class="quiet">Every change of size, and the decision that held at the end: what was seen, what each rule'
        ' compared, and why each provider was taken or not.</p><p><button class="act" type="button"'
        ' data-open="#decisions details">Open all</button></p>'
    ]
    for job in data.jobs:
        parts.append(f"<h3>{escaped(job.name)}</h3>")
        parts += [_card(card) for card in job.cards]
        parts.append(_left_out(job.cards_left_out, "decisions"))
    return "".join(parts)


def _card(card: DecisionCard) -> str:
    rules = _table(
        ("rule", "verdict", "+compared", "+says"),
        [(*row, {"decided": "decided", "not asked": "notasked"}.get(row[1], "")) for row in rule_rows(card)],
        "Rules",
        row_class="verdict",
    )
    placed = ""
    if card.placement_sequence >= card.sequence:
        placed = f"<h3>Where: {escaped(placement_title(card))}</h3>"
        if card.candidates:
            columns = ("provider", "#free", "#taken", "#USD/h", "+why not")
            placed += _table(columns, candidate_rows(card), "Providers")
    broken = f"<p>{escaped(card.policy_broken)}</p>" if card.policy_broken else ""
    later = "".join(f"<li>{utc.precise(each.time_ms)} {escaped(later_text(each))}</li>" for each in card.later)
    since = f'<h3>Decided since</h3><ul class="facts">{later}</ul>' if later else ""
    return (
        f"<details><summary>{escaped(card_title(card))}</summary><p><b>{escaped(card.reason)}</b></p>"
        f"<p>{escaped(signals_of_card(card))}</p>{rules}{placed}{broken}{since}"
        f'<p class="quiet small">{escaped(_sentence(next_text(card)))} Decision'
        f" {card.number}, event {card.sequence}, read through event {card.events_through} and sample"
        f" {card.samples_through}; policy {escaped(card.policy)} v{card.policy_version}, configuration"
        f" <code>{escaped(card.config_digest)}</code>.</p></details>"
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _failures(data: ReportData) -> str:
    if not data.failures:
        return '<p><span class="badge good">none</span> No launch, worker or node failed.</p>'
    columns = ("job", "class", "of a", "#times", "where", "@last", "+its words")
    return _table(columns, failure_rows(data), "Failures by class")


def _what_if(answer: WhatIf) -> str:
    parts = [f"<p>{escaped(found_words(answer))}</p>"]
    if answer.stopped:
        parts.append(f'<p><span class="badge warn">stopped</span> {escaped(answer.stopped)}</p>')
    for job in answer.jobs:
        parts.append(f"<h3>{escaped(job.tenant)}/{escaped(job.job)}</h3>")
        if job.settings:
            parts.append(
                _table(
                    ("setting", "recorded", "what if"),
                    [(each.setting, each.recorded, each.what_if) for each in job.settings],
                    "Changed settings",
                )
            )
        parts.append(
            _table(
                ("figure", "#recorded", "#what if", "#difference", "source"),
                figure_rows(job),
                "Recorded against what if",
            )
        )
        parts.append(f'<p class="quiet small">{escaped(model_words(job))}</p>' if job.model is not None else "")
    return "".join(parts)


def _timeline(data: ReportData) -> str:
    kinds = sorted({line.what.split(".", 1)[0] for line in data.lines})
    options = "".join(f'<option value="{escaped(kind)}">{escaped(kind)}</option>' for kind in kinds)
    numeric = ("#", "time", "since")
    columns = (*numeric, "job", "actor", "what", "change", "reason")
    head = "".join(
        f'<th scope="col"{" data-numeric" if name in numeric else ""}><button type="button">{name}</button></th>'
        for name in columns
    )
    rows = []
    for line in data.lines:
        change = f"{line.before} → {line.after}" if line.before else line.after
        rows.append(
            f'<tr data-kind="{escaped(line.what.split(".", 1)[0])}"><td class="n">{line.sequence}</td>'
            f'<td class="when" data-value="{line.time_ms}">{utc.precise(line.time_ms)}</td>'
            f'<td class="n" data-value="{line.delta_ms}">+{utc.lasted(line.delta_ms)}</td>'
            f'<td class="word">{escaped(_job_of(line))}</td><td class="word">{escaped(line.actor)}</td>'
            f'<td class="word">{escaped(line.what)}</td>'
            f'<td class="long">{escaped(change)}</td><td class="long">{escaped(line.reason)}</td></tr>'
        )
    return (
        '<div class="controls"><label for="filter-text">Show only lines with<input id="filter-text" type="search"'
        ' autocomplete="off" spellcheck="false" placeholder="a node, a rule, a word"></label>'
        f'<label for="filter-kind">Kind<select id="filter-kind"><option value="">all</option>{options}</select></label>'
        '<p id="filter-shown" role="status" class="quiet"></p></div>'
        '<div class="scroll tall" role="region" tabindex="0" aria-label="Timeline"><table id="timeline-table"><thead>'
        f"<tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        + _left_out(data.lines_left_out, "later events")
    )


def _job_of(line: TimelineLine) -> str:
    return f"{line.tenant}/{line.job}" if line.job else ""


def _post_mortem(data: ReportData) -> str:
    parts = ['<p class="quiet">To be filled in by those who were there; the Markdown report has the same skeleton.</p>']
    for question, hint in QUESTIONS:
        parts.append(f"<h3>{question}</h3>")
        if question == "Summary":
            lines = [each for job in data.jobs[:3] for each in story_of(job, data.last_ms)[:1]]
            parts.append("".join(f"<p>{escaped(line)}</p>" for line in lines))
        parts.append(f'<p class="fill">{escaped(hint or "…")}</p>')
    return "".join(parts)
