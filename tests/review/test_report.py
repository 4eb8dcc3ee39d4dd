"""The incident report: what it gathers, and that no text of a log becomes anything but text."""

from __future__ import annotations

import hashlib
import html
import re
from base64 import b64encode
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from simulated_jobs import QUICK, job, providers

from elasticgrid.cli.review import change_of
from elasticgrid.core import events as ev
from elasticgrid.core.errors import InvalidInput, NotFound
from elasticgrid.log.codec import encode
from elasticgrid.review.report_data import Point as PointOf
from elasticgrid.review.report_data import ReportData, gather, thinned
from elasticgrid.review.report_html import html_report
from elasticgrid.review.report_markdown import markdown_report, plain
from elasticgrid.review.whatif import what_if
from elasticgrid.review.whatif_change import Change
from elasticgrid.testing.history import SimulatedGrid
from elasticgrid.testing.history_training import Workload

NASTY = """<img src=x onerror="document.title='owned'">&amp;</script><script>document.title='owned'</script>\u2028'`|"""


def gathered(grid: SimulatedGrid, **options: object) -> ReportData:
    return gather(grid.recorded, grid.samples, source="run.egz", software="1.0.0", **options)  # type: ignore[arg-type] # passed on as they are


@pytest.fixture(scope="module")
def busy() -> SimulatedGrid:
    """A launch that fails, a lost node, a failing worker, two jobs."""
    grid = SimulatedGrid(providers())
    grid.fail_launches("spot", "stockout", "no more capacity in the zone", times=1)
    one = grid.submit(job("one"), Workload(total_steps=400, demand=((200_000, 4), (1, 1))))
    grid.submit(job("two", deadline_ms=grid.now_ms + 60_000), Workload(total_steps=100))
    grid.at(190_000, lambda: grid.lose_node(one, evidence="silent"))
    grid.at(330_000, lambda: grid.fail_worker(one, code=7))
    grid.run()
    return grid


def test_the_figures_are_those_of_the_log(busy: SimulatedGrid) -> None:
    data = gathered(busy)
    assert {each.name: each.phase for each in data.jobs} == {"demo/one": "completed", "demo/two": "completed"}
    one = next(each for each in data.jobs if each.job == "one")
    assert one.cost[-1].value == pytest.approx(one.cost_microdollars / 1e6, rel=1e-3)
    assert one.cost[-1].value >= one.cost[0].value == 0
    assert max(point.value for point in one.training) == 4
    assert max(point.value for point in one.paid) >= 4
    assert one.training[-1].value == one.paid[-1].value == 0
    assert one.queue_from == "samples"
    assert 0.7 < max(point.value for point in one.queue) < 0.8
    assert {(each.name, each.what, each.failure): each.count for each in data.failures} == {
        ("demo/one", "launch", "stockout"): 1,
        ("demo/one", "node", "silent"): 1,
        ("demo/one", "worker", "app_failed"): 1,
    }
    assert data.verification.ok
    assert [line.sequence for line in data.lines] == list(range(1, len(busy.recorded) + 1))


def test_every_change_of_size_has_a_card_and_so_has_the_last_decision(busy: SimulatedGrid) -> None:
    for each in gathered(busy).jobs:
        assert [card.action for card in each.cards if card.action != "hold"].count("up") == each.ups
        assert [card.sequence for card in each.cards] == sorted({card.sequence for card in each.cards})
        grown = [card for card in each.cards if card.action == "up"]
        assert all(card.candidates and card.placement_sequence > card.sequence for card in grown)


def test_the_card_of_the_last_decision_tells_what_became_of_the_job(busy: SimulatedGrid) -> None:
    for each in gathered(busy).jobs:
        *others, last = each.cards
        assert (last.outcome, last.next_change_ms) == ("completed", None)
        assert [line.what for line in last.later][-1] == "decision.outcome"
        assert all(not card.later and card.outcome == "" for card in others)


def test_lanes_show_what_each_node_did_from_its_launch_until_it_was_gone(busy: SimulatedGrid) -> None:
    lanes = gathered(busy).lanes
    assert len({lane.provider for lane in lanes}) == 2
    for lane in lanes:
        assert all(before.to_ms == after.from_ms for before, after in pairwise(lane.bars))
        assert all(bar.from_ms < bar.to_ms for bar in lane.bars)
        assert lane.gone_ms is not None
    assert {mark.what for lane in lanes for mark in lane.marks} == {"checkpoint", "lost", "failed", "launch failed"}
    assert {bar.doing for lane in lanes for bar in lane.bars} == {
        "launching",
        "booting",
        "waiting",
        "training",
        "draining",
    }


def test_without_samples_the_queue_is_told_from_the_decisions(busy: SimulatedGrid) -> None:
    data = gather(busy.recorded, source="run.egz", software="1.0.0")
    assert {each.queue_from for each in data.jobs} == {"decisions"}
    assert "Queue shares are those in the decisions" in html_report(data)


def test_one_job_by_itself_and_none_at_all(busy: SimulatedGrid) -> None:
    data = gathered(busy, job=("demo", "two"))
    assert [each.job for each in data.jobs] == ["two"]
    assert {line.job for line in data.lines} == {"two"}
    assert "missed by" in html_report(data)
    with pytest.raises(NotFound, match="no job demo/three"):
        gathered(busy, job=("demo", "three"))
    empty = gather([], source="empty.egz", software="1.0.0")
    assert "There is no job in this log" in html_report(empty)
    assert markdown_report(empty).startswith("# Incident report: no jobs")


def test_a_long_series_is_thinned_to_means() -> None:
    points = thinned([PointOf(at, at % 2) for at in range(6_000)])
    assert len(points) == 1_500
    assert {point.value for point in points} == {0.5}
    assert thinned([]) == ()


# --------------------------------------------------------------------------------------------------------------------
# Text stays text
# --------------------------------------------------------------------------------------------------------------------


def nasty(grid: SimulatedGrid) -> list[ev.Recorded]:
    """The log with every free text in it replaced by something that wants to be markup."""

    def poisoned(value: object, name: str = "") -> object:
        if isinstance(value, dict):
            return {key: poisoned(each, key) for key, each in value.items()}
        if isinstance(value, list):
            return [poisoned(each, name) for each in value]
        free = ("actor", "reason", "text", "last_lines", "handle", "host", "provider", "rule", "says", "detail", "job")
        return f"{value} {NASTY}" if isinstance(value, str) and name in free else value

    made = []
    for recorded in grid.recorded:
        raw = poisoned(msgspec.json.decode(recorded.raw))
        event = msgspec.convert(raw, ev.Event)
        made.append(ev.Recorded(recorded.sequence, recorded.recorded_ms, event, encode(event)))
    return made


class Tags(HTMLParser):
    """Every tag of a page, and the text between them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self._inside == "script" else self.text).append(data)


def test_no_text_of_the_log_becomes_markup_of_the_page(busy: SimulatedGrid) -> None:
    page = html_report(gather(nasty(busy), busy.samples, source=NASTY, software="1.0.0"))
    found = Tags()
    found.feed(page)
    names = [name for name, _ in found.tags]
    assert "img" not in names
    assert names.count("script") == 3
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on")]
    assert NASTY.replace("\u2028", "") in "".join(found.text).replace("\u2028", "")
    data = next(script for script in found.scripts if script.startswith('{"span"'))
    assert "<" not in data
    for label in re.findall(r'"[^"]*onerror[^"]*"', msgspec.json.encode(msgspec.json.decode(data)).decode()):
        assert "<img" not in label


def test_the_policy_of_the_page_allows_its_own_two_scripts_and_nothing_from_outside(busy: SimulatedGrid) -> None:
    found = Tags()
    found.feed(html_report(gathered(busy)))
    policy = next(
        attributes["content"]
        for name, attributes in found.tags
        if name == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    code = [script for script in found.scripts if not script.startswith('{"span"')]
    assert len(code) == 2
    for script in code:
        assert b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    assert "http" not in policy
    for name, attributes in found.tags:
        assert name not in ("iframe", "object", "embed", "base", "form")
        for attribute in ("src", "href", "action"):
            target = attributes.get(attribute)
            assert target is None or target.startswith("#") or target == "data:,"


def test_markdown_shows_texts_letter_by_letter(busy: SimulatedGrid) -> None:
    text = markdown_report(gather(nasty(busy), busy.samples, source="run.egz", software="1.0.0"))
    assert "<img" not in text.replace("\\<img", "")
    table = [line for line in text.splitlines() if line.startswith("| 1 ")]
    assert table
    assert len(re.findall(r"(?<!\\)\|", table[0])) == 9
    assert plain("- a\n# b * [c](d)") == r"\- a # b \* \[c\](d)"


def test_the_markdown_has_the_same_facts_and_a_skeleton(busy: SimulatedGrid) -> None:
    change = Change(scaling=msgspec.structs.replace(QUICK, cooldown_down_ms=600_000))
    answer = what_if(busy.recorded, busy.samples, change)
    text = markdown_report(gathered(busy, what_if=answer))
    for heading in ("What happened", "Can the log be trusted", "Decisions", "Failures", "What if", "Post-mortem"):
        assert f"## {heading}\n" in text
    for question in ("Impact", "Root cause", "Actions"):
        assert f"### {question}\n" in text
    assert "| cost (USD) |" in text
    assert "extrapolated |" in text
    page = html_report(gathered(busy, what_if=answer))
    assert html.escape("extrapolated") in page
    assert "Recorded against what if" in page


def test_the_markdown_of_several_jobs_says_of_everything_whose_it_is(busy: SimulatedGrid) -> None:
    data = gathered(busy)
    text = markdown_report(data)
    decisions, failures, _ = (text.split(f"## {name}\n")[1] for name in ("Decisions", "Failures", "Timeline"))
    for each in data.jobs:
        assert f"### {each.name}\n" in decisions
    assert decisions.split("## Failures")[0].count("| rule | verdict | compared | says |") == sum(
        len(each.cards) for each in data.jobs
    )
    assert "| queue\\_bound | decided | queue\\_us " in decisions
    assert "| provider | free | taken | USD/h | why not |" in decisions
    assert "| demo/one | stockout | launch | 1 | spot 1 | 20" in failures
    for line in data.lines[:50]:
        job_of = f"{line.tenant}/{line.job}".replace("_", "\\_")
        assert re.search(rf"\| {line.sequence} \| \d{{4}}-\d\d-\d\d .* \| {re.escape(job_of)} \|", text), line


def test_times_of_a_report_have_their_date(busy: SimulatedGrid) -> None:
    data = gathered(busy)
    for text in (markdown_report(data), re.sub(r"(?s)<script.*?</script>", "", html_report(data))):
        times = re.findall(r"(.{11})\b\d\d:\d\d:\d\d\b", text)
        assert times
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\d ", before) for before in times)


def test_missing_events_are_told_in_a_reports_timeline(busy: SimulatedGrid) -> None:
    records = [each for each in busy.recorded if each.sequence not in (16, 17)]
    data = gather(records, source="run.egz", software="1.0.0")
    assert "| missing |  | events 16 to 17 |" in markdown_report(data)
    assert "events 16 to 17" in html_report(data)


# --------------------------------------------------------------------------------------------------------------------
# What the command line takes
# --------------------------------------------------------------------------------------------------------------------


def test_a_policy_file_stands_for_the_jobs_own_and_settings_stand_on_top(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("scaling: {cooldown_up_s: 5}\nplacement: {spot: forbid}\n")
    (tmp_path / "grid.yaml").write_text("providers:\n  - {name: here, max_nodes: 3}\n")
    change = change_of(
        tmp_path / "policy.yaml",
        tmp_path / "grid.yaml",
        ["scaling.cooldown_down_s=0", "placement.providers=a, b"],
        ("demo", "one"),
    )
    spec = change.spec("demo", "one", job())
    assert (spec.scaling.cooldown_up_ms, spec.scaling.cooldown_down_ms) == (5_000, 0)
    assert spec.scaling.target_tokens_per_s is None
    assert (spec.placement.spot, spec.placement.providers) == ("forbid", ("a", "b"))
    assert change.spec("demo", "two", job()) == job()
    assert change.providers is not None
    assert [each.name for each in change.providers] == ["here"]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("scaling.cooldown_up_s", "write scaling.cooldown_up_s=0"),
        ("scaling.cooldwon_up_s=0", "did you mean `cooldown_up_s`"),
        ("scalling.cooldown_up_s=0", "did you mean `scaling`"),
        ("scaling.cooldown_up_s=soon", "a number is wanted"),
        ("placement.spot=maybe", "not one of the values"),
    ],
)
def test_a_wrong_setting_is_refused_with_a_hint(setting: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(said)):
        change_of(None, None, [setting], None)


def test_a_file_without_a_policy_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("name: x\n")
    with pytest.raises(InvalidInput, match="this field is missing"):
        change_of(tmp_path / "empty.yaml", None, None, None)
    (tmp_path / "wrong.yaml").write_text("scaling:\n  cooldown_up_s: -1\n")
    with pytest.raises(InvalidInput, match=r"wrong\.yaml:2: scaling\.cooldown_up_s"):
        change_of(tmp_path / "wrong.yaml", None, None, None)
