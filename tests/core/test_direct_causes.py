"""What is the cause of a fact: what it says itself, or what it must have been."""

from __future__ import annotations

import pytest

from elasticgrid.core import events as ev
from elasticgrid.core.direct_causes import DirectCauses

KEY = ("t", "j")
PLACED = ev.PlacementDecided(
    demand_nodes=2,
    placed_nodes=2,
    assignments=(ev.Assignment(id="p1a1", provider="p", action="add", nodes=2, price_microdollars_per_hour=1),),
)
REQUESTED = ev.LaunchRequested(
    attempt="p1a1",
    assignment="p1a1",
    provider="p",
    engine="local",
    nodes=2,
    node_ids=("p1a1-0", "p1a1-1"),
    price_microdollars_per_hour=1,
)
JOINED = ev.NodeJoined(node="p1a1-0", attempt="p1a1", provider="p", host="h", free_port=1, pid=1)
WORLD = ev.WorldDecided(round=1, members=(), nproc_per_node=1, master_addr="h", master_port=1)
DRAINED = ev.NodeDrained(node="p1a1-0", round=1, last_step=5, clean=True, free_port=1)
STOP = ev.LaunchStopRequested(attempt="p1a1", reason="r")


def told(*data: ev.EventData) -> DirectCauses:
    """After these events, each with its place as its id."""
    causes = DirectCauses()
    for number, each in enumerate(data):
        causes.take(event(each, id=str(number)))
    return causes


def event(data: ev.EventData, *, cause: str = "", id: str = "new") -> ev.Event:  # noqa: A002 - the field's name
    return ev.Event(id=id, time_ms=1, tenant=KEY[0], job=KEY[1], causation_id=cause, actor="a", data=data)


def drain(*leaving: str) -> ev.DrainDecided:
    return ev.DrainDecided(round=1, reason="resize", leaving=leaving)


@pytest.mark.parametrize(
    ("before", "fact", "cause"),
    [
        ((PLACED, drain()), REQUESTED, "0"),
        ((PLACED, REQUESTED, drain()), ev.LaunchStarted(attempt="p1a1", handle="h"), "1"),
        ((PLACED, REQUESTED, REQUESTED, drain()), JOINED, "1"),
        ((PLACED, REQUESTED, drain("p1a1-1"), drain("p1a1-0"), drain()), STOP, "3"),
        ((PLACED, REQUESTED, drain("p1a1-0", "p1a1-1"), drain("p1a1-0")), STOP, "2"),
        (
            (PLACED, REQUESTED, *(ev.NodeLeft(node=f"p1a1-{index}", reason="r") for index in (1, 0)), drain()),
            STOP,
            "3",
        ),
        ((PLACED, REQUESTED, STOP, drain()), ev.LaunchStopped(attempt="p1a1", reason="r"), "2"),
        ((PLACED, drain("p1a1-0", "p1a1-1"), drain()), ev.LaunchStopped(attempt="p1a1", reason="r"), "1"),
        ((PLACED, REQUESTED, drain()), ev.LaunchFailed(attempt="p1a1", failure="stockout", text=""), "1"),
        ((WORLD, REQUESTED), ev.NodeStarted(node="p1a1-0", round=1, step=1), "0"),
        ((WORLD, drain(), REQUESTED), DRAINED, "1"),
        ((drain("p1a1-0"), REQUESTED), ev.NodeLeft(node="p1a1-0", reason="resize"), "0"),
        ((WORLD,), ev.JobCancelRequested(reason="r"), ""),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, tuple) else "",
)
def test_a_fact_is_caused_by_what_concerns_it_and_not_by_what_came_last(
    before: tuple[ev.EventData, ...], fact: ev.EventData, cause: str
) -> None:
    assert told(*before).of(KEY, fact) == cause
    # An older writer named the last event.
    assert told(*before).told(event(fact, cause=str(len(before) - 1))) == (cause or str(len(before) - 1))


def test_an_agents_own_word_holds_where_it_can_be_true() -> None:
    causes = told(PLACED, REQUESTED, WORLD, drain(), drain("p1a1-0"), STOP)
    assert causes.told(event(DRAINED, cause="4")) == "4"
    assert causes.told(event(ev.NodeLeft(node="p1a1-0", reason="launch_over"), cause="5")) == "5"
    assert (
        causes.told(
            event(
                ev.NodeFailed(node="p1a1-0", round=1, last_step=1, exits=(), failure="app_failed", free_port=1),
                cause="5",
            )
        )
        == "2"
    )


def test_what_came_from_outside_has_no_cause() -> None:
    causes = told(PLACED, REQUESTED, WORLD, drain("p1a1-0"))
    assert causes.told(event(ev.NodeLeft(node="p1a1-0", reason="terminated"))) == ""
    notice = ev.NodePreemptionNotice(node="p1a1-0", source="aws", deadline_ms=1)
    assert causes.told(event(notice)) == ""


def test_a_job_that_is_forgotten_causes_nothing() -> None:
    causes = told(PLACED)
    causes.forget(KEY)
    assert causes.of(KEY, REQUESTED) == ""
    assert causes.told(event(REQUESTED, cause="0")) == "0"
