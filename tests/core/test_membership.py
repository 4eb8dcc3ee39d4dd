"""Worlds: who has which rank, and where they meet."""

from __future__ import annotations

import pytest
from fleet_builder import LAW
from hypothesis import given
from hypothesis import strategies as st

from elasticgrid.core.errors import IllegalTransition
from elasticgrid.core.events import CheckpointRef, Member, WorldDecided
from elasticgrid.core.membership import ReadyNode, form_world


def ready(node: str, joined: int, port: int = 4000) -> ReadyNode:
    return ReadyNode(node=node, host=f"host-{node}", free_port=port, joined_sequence=joined)


def members(*nodes: str) -> tuple[Member, ...]:
    return tuple(Member(node=node, group_rank=rank) for rank, node in enumerate(nodes))


def world(previous: tuple[Member, ...], *nodes: ReadyNode) -> WorldDecided:
    return form_world(previous, nodes, round=2, nproc_per_node=1, resume=None)


def order(decided: WorldDecided) -> list[str]:
    return [member.node for member in decided.members]


def test_the_first_world_is_in_the_order_of_joining() -> None:
    assert order(world((), ready("c", 7), ready("a", 9), ready("b", 3))) == ["b", "c", "a"]


def test_survivors_keep_their_order_and_newcomers_follow_in_the_order_they_joined_in() -> None:
    decided = world(members("x", "y", "z"), ready("new2", 20), ready("z", 3), ready("new1", 12), ready("x", 9))
    assert order(decided) == ["x", "z", "new1", "new2"]


@pytest.mark.survive("Q")
def test_when_the_master_leaves_the_first_survivor_is_the_master_at_its_latest_free_port() -> None:
    decided = world(members("gone", "b", "c"), ready("c", 2, port=4003), ready("b", 1, port=4002))
    assert order(decided) == ["b", "c"]
    assert (decided.master_addr, decided.master_port) == ("host-b", 4002)


def test_the_world_carries_its_round_its_workers_and_where_it_resumes() -> None:
    checkpoint = CheckpointRef(step=40, uri="/c/40")
    decided = form_world((), (ready("a", 1), ready("b", 2)), round=5, nproc_per_node=4, resume=checkpoint)
    assert (decided.round, decided.world_size, decided.resume) == (5, 8, checkpoint)


def test_a_world_of_nobody_is_not_formed() -> None:
    with pytest.raises(IllegalTransition, match="no node that is ready"):
        world(members("a"))


names = st.integers(0, 60).map(lambda number: f"n{number}")


@LAW
@given(st.lists(names, unique=True), st.lists(names, unique=True, min_size=1))
def test_ranks_are_contiguous_and_survivors_never_change_places(before: list[str], now: list[str]) -> None:
    decided = world(members(*before), *(ready(node, index) for index, node in enumerate(now)))
    assert [member.group_rank for member in decided.members] == list(range(len(now)))
    assert sorted(order(decided)) == sorted(now)
    survivors = [node for node in before if node in now]
    assert order(decided)[: len(survivors)] == survivors
    assert order(decided)[len(survivors) :] == [node for node in now if node not in before]


class Counted(str):
    """A name that counts how often it is looked at."""

    looks = 0

    def __eq__(self, other: object) -> bool:
        Counted.looks += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        Counted.looks += 1
        return str.__hash__(self)


def looks_for(nodes: int) -> int:
    before = members(*(Counted(f"n{index}") for index in range(nodes)))
    now = tuple(ready(Counted(f"n{index}"), index) for index in range(nodes // 2, nodes + nodes // 2))
    Counted.looks = 0
    form_world(before, now, round=2, nproc_per_node=1, resume=None)
    return Counted.looks


def test_ten_times_the_nodes_take_ten_times_the_work() -> None:
    assert looks_for(10_000) <= 11 * looks_for(1_000)
