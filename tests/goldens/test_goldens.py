"""Recorded archives are replayed for ever: what they say stays the same, and every decision in them follows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elasticgrid.core.events import SCHEMA_VERSIONS, Event
from elasticgrid.log.archive import ArchivedEvents, ArchivedSamples, ArchiveWriter, read_header
from elasticgrid.log.codec import UPCASTERS
from elasticgrid.review.state import dump, state_at
from elasticgrid.review.verify import verify_archive
from elasticgrid.review.whatif import what_if
from elasticgrid.review.whatif_change import Change

HERE = Path(__file__).parent
ARCHIVES = sorted(HERE.glob("*.egz"))


def middle(path: Path) -> int:
    sequences = [recorded.sequence for recorded in ArchivedEvents(path)]
    return sequences[len(sequences) // 2]


def state_dump(path: Path) -> bytes:
    return dump(state_at(ArchivedEvents(path)))


def middle_dump(path: Path) -> bytes:
    return dump(state_at(ArchivedEvents(path), sequence=middle(path)))


def verification(path: Path) -> bytes:
    return msgspec.json.format(msgspec.json.encode(verify_archive(path), order="sorted"), indent=2) + b"\n"


EXPECTED: dict[str, Callable[[Path], bytes]] = {
    "state.json": state_dump,
    "middle.json": middle_dump,
    "verify.json": verification,
}


def test_there_are_archives_of_a_real_run_and_of_simulated_ones() -> None:
    assert {path.stem for path in ARCHIVES} >= {"demo", "failures", "cancelled"}


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.stem)
@pytest.mark.parametrize("what", EXPECTED)
def test_an_archive_says_to_the_byte_what_it_always_said(path: Path, what: str, update_goldens: bool) -> None:
    expected = path.with_suffix(f".{what}")
    found = EXPECTED[what](path)
    if update_goldens:
        expected.write_bytes(found)
    assert found.decode() == expected.read_text(encoding="utf-8"), "look at it, then --update-goldens"


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.stem)
def test_every_decision_of_an_archive_still_follows(path: Path) -> None:
    report = verify_archive(path)
    assert report.ok, (report.divergences, report.laws)
    assert report.verified == report.decisions > 10
    assert not report.open_intents


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.stem)
def test_under_its_own_policy_an_archive_is_reproduced_exactly(path: Path) -> None:
    answer = what_if(ArchivedEvents(path), ArchivedSamples(path), Change())
    assert answer.differences == 0
    for each in answer.jobs:
        assert all(line.recorded == line.what_if and not line.extrapolated for line in each.table)


def test_decisions_whose_samples_have_aged_out_are_verified_from_what_they_carry() -> None:
    report = verify_archive(HERE / "demo.egz")
    assert report.from_samples > 0
    assert report.from_values > 0


# --------------------------------------------------------------------------------------------------------------------
# A second version of two types
# --------------------------------------------------------------------------------------------------------------------


def first_form(event: Event) -> bytes:
    """The event as a first version might have written it, with other fields for the reasons of drains and nodes."""
    raw: dict[str, Any] = msgspec.to_builtins(event)
    data = raw["data"]
    if data["type"] == "decision.drain":
        data["why"] = data.pop("reason").upper()
    elif data["type"] == "node.left":
        data["cause"] = {"code": 0, "text": data.pop("reason")}
    return msgspec.json.encode(raw)


def second_drain(raw: dict[str, Any]) -> dict[str, Any]:
    data = {**raw["data"], "reason": raw["data"]["why"].lower()}
    del data["why"]
    return {**raw, "data": data}


def second_left(raw: dict[str, Any]) -> dict[str, Any]:
    data = {**raw["data"], "reason": raw["data"]["cause"]["text"]}
    del data["cause"]
    return {**raw, "data": data}


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.stem)
def test_an_archive_of_a_first_version_replays_through_upcasters(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old.egz"
    header = read_header(path)
    changed = 0
    with ArchiveWriter(old, created_ms=header.created_ms, samples=header.samples) as writer:
        for recorded in ArchivedEvents(path):
            event = recorded.event
            assert isinstance(event, Event)
            raw = first_form(event)
            changed += b'"why"' in raw or b'"cause"' in raw
            writer.add_event(msgspec.structs.replace(recorded, raw=raw))
        for message in ArchivedSamples(path):
            writer.add_samples(message)
    assert changed > 2

    for name in ("decision.drain", "node.left"):
        monkeypatch.setitem(SCHEMA_VERSIONS, name, 2)
    monkeypatch.setitem(UPCASTERS, ("decision.drain", 1), second_drain)
    monkeypatch.setitem(UPCASTERS, ("node.left", 1), second_left)
    report = verify_archive(old)
    assert report.ok, (report.divergences, report.laws)
    assert report.verified == report.decisions
    assert not report.stopped
    assert state_dump(old) == path.with_suffix(".state.json").read_bytes()
