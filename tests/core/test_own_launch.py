"""An agent is wanted while the log knows its launch and says nothing that ends it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elasticgrid.core import agent_plan
from elasticgrid.core import agent_state as plan
from elasticgrid.core import events as ev
from elasticgrid.core.agent_launch import OwnLaunch, saw

MINE, OTHER = "p1a1", "p2a1"


def requested(attempt: str) -> ev.LaunchRequested:
    return ev.LaunchRequested(
        attempt=attempt,
        assignment=attempt,
        provider="here",
        engine="local",
        nodes=1,
        node_ids=(f"{attempt}-0",),
        price_microdollars_per_hour=0,
    )


def events_of(attempt: str) -> list[ev.EventData]:
    return [
        requested(attempt),
        ev.LaunchStarted(attempt=attempt, handle="h"),
        ev.LaunchFailed(attempt=attempt, failure="boot_failed", text="no"),
        ev.LaunchStopRequested(attempt=attempt, reason="r"),
        ev.LaunchStopped(attempt=attempt, reason="r"),
        ev.NodeLost(node=f"{attempt}-0", attempt=attempt, evidence="silent"),
    ]


def fold(*told: ev.EventData) -> OwnLaunch:
    launch = OwnLaunch(attempt=MINE)
    for data in told:
        launch = saw(launch, data)
    return launch


def test_an_agent_is_wanted_once_its_launch_was_requested_and_until_something_ends_it() -> None:
    start, started, failed, stop, stopped, lost = events_of(MINE)
    assert fold().unwanted == "the log does not know its launch"
    assert fold(start).unwanted == ""
    # A node that was given up for lost may only be out of reach: the decider tells it to leave, not the launch.
    assert fold(start, started, lost).unwanted == ""
    assert fold(start, failed).unwanted == "its launch failed"
    assert fold(start, started, stop).unwanted == "its launch was stopped"
    assert fold(start, started, stop, stopped).unwanted == "its launch was stopped"


@given(st.lists(st.sampled_from(events_of(OTHER))), st.lists(st.sampled_from(events_of(MINE))))
def test_what_is_said_of_other_launches_changes_nothing_and_an_end_is_final(
    others: list[ev.EventData], mine: list[ev.EventData]
) -> None:
    assert fold(*others) == OwnLaunch(attempt=MINE)
    launch = fold(*mine)
    assert fold(*others, *mine, *others) == launch
    if launch.over:
        assert fold(*mine, requested(MINE)).over == launch.over


def test_an_agent_that_never_joined_ends_without_a_word_and_one_that_did_says_that_it_left() -> None:
    told = plan.Unwanted(reason="launch_over", exit_code=1)
    _, instructions = agent_plan.evolve(agent_plan.initial("p1a1-0"), told)
    assert instructions == (plan.Leave(exit_code=1),)

    joined, _ = agent_plan.evolve(agent_plan.initial("p1a1-0"), plan.Joined(sequence=7))
    state, instructions = agent_plan.evolve(joined, told)
    assert instructions == (
        plan.Record(data=ev.NodeLeft(node="p1a1-0", reason="launch_over"), cause=plan.Cause()),
        plan.Leave(exit_code=1),
    )
    assert agent_plan.evolve(state, told) == (state, (plan.Ignored(what="Unwanted"),))
