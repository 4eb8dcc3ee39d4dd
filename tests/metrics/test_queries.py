"""Every query of the alerts and of the dashboard asks for metrics and labels that are told."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from exported import everything, labels_of

from elasticgrid.metrics.log_metrics import FAILURES, PHASES

SERVICES = Path(__file__).parents[2] / "services"
ALERTS = SERVICES / "prometheus" / "alerts.yml"
DASHBOARD = SERVICES / "grafana" / "dashboards" / "elasticgrid.json"
#: What Prometheus adds to each series by itself.
ADDED = {"job", "instance"}
#: Told by Prometheus, and not by us.
OF_PROMETHEUS = {"up"}

_SELECTOR = re.compile(r"\b([a-z_]+)\b(?!\s*\()(?:\{([^}]*)\})?(?:\[[^\]]*\])?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
_GROUPED = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
_WORDS = {"by", "on", "or", "and", "unless", "ignoring", "group_left"}


class Query(NamedTuple):
    """A query, and where it stands."""

    where: str
    expr: str


def alert_queries() -> Iterator[Query]:
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            yield Query(rule["alert"], rule["expr"])


def dashboard_queries() -> Iterator[Query]:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield Query(panel["title"], target["expr"])
    for annotation in dashboard["annotations"]["list"]:
        yield Query(annotation["name"], annotation["expr"])


def selectors(expr: str) -> Iterator[tuple[str, dict[str, str]]]:
    """(metric, its matchers) of everything that a query selects."""
    bare = _GROUPED.sub(" ", expr)
    for name, matchers in _SELECTOR.findall(re.sub(r'(?<![{,=~!])"[^"]*"(?!\s*[,}])', " ", bare)):
        if ("_" in name and name not in _WORDS) or name in OF_PROMETHEUS:
            yield name, dict(_MATCHER.findall(matchers))


def grouped_by(expr: str) -> set[str]:
    """Labels that a query groups by."""
    return {label.strip() for labels in _GROUPED.findall(expr) for label in labels.split(",")}


def questionable(query: Query, told: dict[str, set[str]]) -> list[str]:
    """What a query asks for and nobody tells."""
    found = [(name, matchers) for name, matchers in selectors(query.expr) if name not in OF_PROMETHEUS]
    wrong = [f"{query.where}: no metric {name}" for name, _ in found if name not in told]
    known = [(name, matchers) for name, matchers in found if name in told]
    for name, matchers in known:
        wrong += [f"{query.where}: {name} has no label {each}" for each in set(matchers) - told[name] - ADDED]
    if known:
        together = set.union(*(told[name] for name, _ in known)) | ADDED
        wrong += [f"{query.where}: no label {each} to group by" for each in grouped_by(query.expr) - together]
    return wrong


QUERIES = [*alert_queries(), *dashboard_queries()]


async def told_of(folder: Path, first: int | None) -> dict[str, set[str]]:
    """Labels by sample name, as of some place in a log."""
    async with everything(folder, first=first) as (gateway, _):
        gateway.metrics.note("GET", "/metrics", 200, 0.01)
        await gateway.metrics.exposition("")
        found = labels_of(gateway.metrics.registry)
        for family in (each for each in gateway.metrics.registry.collect() if each.type == "counter"):
            found.setdefault(f"{family.name}_total", set())
        return found


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for first in (60, None):  # while nodes run, and when all is over
        for name, labels in asyncio.run(told_of(tmp_path_factory.mktemp("metrics"), first)).items():
            found.setdefault(name, set()).update(labels)
    # What this log has none of, or what only a log on a bus has.
    found["elasticgrid_mirror_lag_events"] = set()
    found["elasticgrid_decider_refused_samples_total"] = {"reason"}
    found["elasticgrid_preemption_notices_total"] = {"provider"}
    found["elasticgrid_nodes_lost_total"] = {"provider", "evidence"}
    found["elasticgrid_budget_used_ratio"] = {"tenant", "budget"}
    return found


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.where)
def test_a_query_asks_for_what_is_told(query: Query, told: dict[str, set[str]]) -> None:
    assert list(selectors(query.expr))
    assert questionable(query, told) == []


@pytest.mark.parametrize(
    ("expr", "wrong"),
    [
        ("max(elasticgrid_log_sequenc) > 1", "no metric elasticgrid_log_sequenc"),
        ('rate(elasticgrid_decisions_total{acton="up"}[5m])', "has no label acton"),
        ("sum by (zone) (elasticgrid_nodes)", "no label zone"),
        ("histogram_quantile(0.9, sum by (le) (rate(elasticgrid_append_latency_seconds_bucket[5m])))", "no metric"),
    ],
)
def test_a_query_for_something_else_would_be_found(expr: str, wrong: str, told: dict[str, set[str]]) -> None:
    assert any(wrong in each for each in questionable(Query("x", expr), told))


def test_values_that_alerts_look_for_are_values_that_there_are(told: dict[str, set[str]]) -> None:
    outcomes = {"appended", "conflict", "unavailable", "refused"}
    allowed = {"failure": {*FAILURES}, "phase": {*PHASES}, "outcome": outcomes}
    for query in QUERIES:
        for _, matchers in selectors(query.expr):
            for label, value in matchers.items():
                if label in allowed:
                    assert set(value.split("|")) <= allowed[label], query


def test_every_alert_says_what_to_do_and_is_played_in_the_test_file() -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    played = (SERVICES / "prometheus" / "alerts_test.yml").read_text()
    for rule in rules:
        assert rule["annotations"].keys() == {"summary", "action"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert f"alertname: {rule['alert']}" in played
    assert f"value: {len(rules)}}}" in played


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool: apt-get install prometheus")
def test_promtool_accepts_the_rules_and_each_of_them_fires_when_it_should() -> None:
    folder = SERVICES / "prometheus"
    for arguments in (
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
        ("check", "config", "--syntax-only", "prometheus.yml"),
    ):
        done = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_is_one_that_grafana_can_load() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"] if panel["type"] != "row"} == {"${datasource}"}
    assert [variable["name"] for variable in dashboard["templating"]["list"]] == ["datasource"]
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        taken = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        cells |= taken
