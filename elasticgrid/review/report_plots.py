"""The report's plots, as the values that Plotly's script draws.

Plotly reads markup in labels, so every text that came from elsewhere is escaped here once more.
"""

from __future__ import annotations

import html
from typing import Any, Final

from elasticgrid.review.report_data import JobReport, Point, ReportData
from elasticgrid.review.report_lanes import Doing
from elasticgrid.review.timeline import nodes_text

Plot = dict[str, Any]

#: Names of colours that the page's script puts in, one for light and one for dark.
_COLOURS: Final[dict[Doing, str]] = {
    "launching": "launching",
    "booting": "booting",
    "waiting": "waiting",
    "training": "training",
    "draining": "draining",
}
_SYMBOLS: Final = {
    "lost": "x",
    "failed": "diamond",
    "stuck": "square",
    "gap": "hourglass-open",
    "notice": "triangle-left",
    "launch failed": "x-open",
    "checkpoint": "line-ns-open",
}
_DASHES: Final = ("solid", "dash", "dot", "dashdot")
MAX_LANES: Final = 120


def label(text: str) -> str:
    """A text as Plotly shows it, letter by letter."""
    return html.escape(text, quote=False)


def lanes_plot(data: ReportData) -> Plot:
    """What every node did when: a lane for each, under its provider, and the decisions above them."""
    names = [f"{each.provider} / {each.node}" for each in data.lanes[:MAX_LANES]]
    if len({each.job for each in data.lanes}) > 1:
        names = [f"{name} ({each.job})" for name, each in zip(names, data.lanes, strict=False)]
    traces = []
    for doing, colour in _COLOURS.items():
        bars = [
            (label(name), bar)
            for name, lane in zip(names, data.lanes, strict=False)
            for bar in lane.bars
            if bar.doing == doing
        ]
        if bars:
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": doing,
                    "colour": colour,
                    "y": [name for name, _ in bars],
                    "base": [bar.from_ms for _, bar in bars],
                    "x": [bar.to_ms - bar.from_ms for _, bar in bars],
                    "customdata": [f"{(bar.to_ms - bar.from_ms) / 1000:.1f} s" for _, bar in bars],
                    "hovertemplate": f"%{{y}}<br>{doing} for %{{customdata}}<extra></extra>",
                }
            )
    for what, symbol in _SYMBOLS.items():
        marks = [
            (label(name), mark)
            for name, lane in zip(names, data.lanes, strict=False)
            for mark in lane.marks
            if mark.what == what
        ]
        if marks:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": what,
                    "colour": "text" if what in ("checkpoint", "gap") else "bad",
                    "symbol": symbol,
                    "x": [mark.time_ms for _, mark in marks],
                    "y": [name for name, _ in marks],
                    "customdata": [label(mark.text) for _, mark in marks],
                    "hovertemplate": f"%{{y}}<br>{what}: %{{customdata}}<extra></extra>",
                }
            )
    decisions = [(job, card) for job in data.jobs for card in job.cards if card.action != "hold"]
    order = [label(name) for name in names]
    if decisions:
        order.insert(0, "decisions")
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "decision",
                "colour": "accent",
                "symbol": ["triangle-up" if card.action == "up" else "triangle-down" for _, card in decisions],
                "x": [card.time_ms for _, card in decisions],
                "y": ["decisions"] * len(decisions),
                "customdata": [
                    label(f"{job.name}: {card.current_nodes} -> {nodes_text(card.target_nodes)}, {card.rule}")
                    for job, card in decisions
                ],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    return {"kind": "lanes", "traces": traces, "order": order, "height": 150 + 26 * max(len(order), 2)}


def size_plot(data: ReportData) -> Plot:
    """Nodes over time: those that trained, and those that cost something."""
    traces = []
    for index, job in enumerate(data.jobs):
        name = label(job.name) if len(data.jobs) > 1 else ""
        colour = _colour(index) if name else "paid"
        traces.append(_steps(job.paid, f"{name} paid for".strip(), colour, "dot", "%{y}"))
        traces.append(_steps(job.training, f"{name} training".strip(), _colour(index), _dash(index), "%{y}"))
    return {"kind": "over time", "traces": traces, "title": "nodes", "height": 260, "whole": True}


def queue_plot(data: ReportData) -> Plot:
    """Share of the step spent waiting for a worker, over time."""
    traces = [
        _line(job.queue, label(job.name), _colour(index), "%{y:.0%} of the step")
        for index, job in enumerate(data.jobs)
        if job.queue
    ]
    return {"kind": "over time", "traces": traces, "title": "queue share", "height": 260, "percent": True}


def rate_plot(data: ReportData) -> Plot:
    """USD per hour, over time."""
    traces = [
        _steps(job.rate, label(job.name), _colour(index), _dash(index), "$%{y:.4~f} an hour")
        for index, job in enumerate(data.jobs)
    ]
    return {"kind": "over time", "traces": traces, "title": "USD an hour", "height": 220}


def cost_plot(data: ReportData) -> Plot:
    """USD spent, over time."""
    traces = [
        _line(job.cost, label(job.name), _colour(index), "$%{y:.6~f} spent") for index, job in enumerate(data.jobs)
    ]
    return {"kind": "over time", "traces": traces, "title": "USD spent", "height": 220}


def span(data: ReportData) -> tuple[int, int]:
    """From when to when all plots go."""
    begin = min([job.submitted_ms for job in data.jobs], default=data.first_ms)
    end = max([job.finished_ms or data.last_ms for job in data.jobs], default=data.last_ms)
    slack = max((end - begin) // 50, 500)
    return begin - slack, end + slack


def _colour(index: int) -> str:
    return f"job{index % 6}"


def _dash(index: int) -> str:
    return _DASHES[index // 6 % len(_DASHES)]


def _steps(points: tuple[Point, ...], name: str, colour: str, dash: str, hover: str) -> Plot:
    return {**_line(points, name, colour, hover), "shape": "hv", "dash": dash}


def _line(points: tuple[Point, ...], name: str, colour: str, hover: str) -> Plot:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "colour": colour,
        "x": [point.time_ms for point in points],
        "y": [point.value for point in points],
        "hovertemplate": f"{name}: {hover}<extra></extra>" if name else f"{hover}<extra></extra>",
    }


def at_its_highest(job: JobReport) -> str:
    """The plots in words, for who cannot see them."""
    most = max((point.value for point in job.training), default=0)
    dearest = max((point.value for point in job.rate), default=0.0)
    queue = max((point.value for point in job.queue), default=0.0)
    return (
        f"{job.name} trained on up to {nodes_text(round(most))}, cost up to ${dearest:,.4g} an hour and"
        f" ${job.cost_microdollars / 1e6:,.4g} in all; steps waited for a worker for up to {queue:.0%} of their time."
    )
