"""Rendezvous without a grid is a pure function of the log: what it decides, and what a node that waits is told."""

from __future__ import annotations

import asyncio
import contextlib

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace
from run_history import History

from elasticgrid.core import events as ev
from elasticgrid.core.errors import Conflict
from elasticgrid.core.names import run_folder
from elasticgrid.core.run_plan import decide, decision_events, failures_of, next_nodes, turn_of, verdict
from elasticgrid.core.run_state import RUN_TENANT, RunSettings, StaticWorld, evolve, initial
from elasticgrid.log.memory import MemoryLog
from elasticgrid.log.port import Expectation, Scope
from elasticgrid.testing.clock import VirtualClock

SETTINGS = RunSettings(min_nodes=2, max_nodes=3, nproc_per_node=2, max_restarts=1, last_call_ms=5_000, grace_ms=9_000)


def world_of(history: History) -> list[str]:
    return [member.node for member in history.state.members]


def running(*nodes: str, settings: RunSettings = SETTINGS) -> History:
    history = History(settings)
    history.join(*nodes)
    history.wait(settings.last_call_ms)
    history.settle()
    assert world_of(history) == list(nodes)
    return history


def test_a_round_begins_at_once_with_the_most_nodes_and_after_the_last_call_with_enough() -> None:
    history = History(SETTINGS)
    history.join("a")
    history.wait(600_000)
    assert history.ask() == ()
    history.join("b")
    history.wait(4_999)
    assert history.ask() == ()
    history.wait(1)
    (world,) = history.ask()
    assert isinstance(world, ev.WorldDecided)
    assert (world.round, world.world_size, world.master_addr, world.master_port) == (1, 4, "a.test", 29_500)
    full = History(SETTINGS)
    full.join("a", "b", "c", "d")
    full.ask()
    assert world_of(full) == ["a", "b", "c"]


def test_a_late_node_ends_the_round_when_its_call_is_over_and_comes_after_the_survivors() -> None:
    history = running("b", "a")
    history.join("0")
    (drain,) = history.ask()
    assert drain == ev.DrainDecided(round=1, reason="resize", grace_ms=9_000)
    assert history.ask() == ()
    history.drain("b")
    assert history.ask() == ()
    history.drain("a")
    history.ask()
    assert world_of(history) == ["b", "a", "0"]
    assert history.state.round == 2


def test_the_loss_of_the_first_node_moves_the_master_to_the_next_survivor() -> None:
    history = running("a", "b", "c")
    history.lose("a")
    (drain,) = history.ask()
    assert isinstance(drain, ev.DrainDecided)
    assert drain.reason == "node_lost"
    history.drain("b", "c")
    (world,) = history.ask()
    assert isinstance(world, ev.WorldDecided)
    assert world_of(history) == ["b", "c"]
    assert (world.master_addr, world.master_port) == ("b.test", 30_000)


def test_a_spare_node_takes_the_place_of_a_lost_one_without_a_last_call() -> None:
    history = running("a", "b", "c")
    history.join("d")
    assert history.settle() == []
    history.lose("b")
    history.ask()
    history.drain("a", "c")
    history.ask()
    assert world_of(history) == ["a", "c", "d"]


def test_failures_are_counted_over_the_whole_run_and_a_node_that_joins_anew_resets_nothing() -> None:
    history = running("a", "b")
    history.fail("a")
    history.ask()
    history.drain("b")
    history.ask()
    assert history.state.round == 2
    history.leave("b")
    history.ask()
    history.drain("a")
    history.join("b2")
    history.wait(5_000)
    history.settle()
    assert world_of(history) == ["a", "b2"]
    history.fail("b2", message="ValueError: no good")
    history.ask()
    history.drain("a")
    (outcome,) = history.ask()
    assert isinstance(outcome, ev.OutcomeDecided)
    assert outcome.outcome == "failed"
    assert "ValueError: no good" in outcome.reason
    assert "rounds that failed: 2, restarts allowed: 1" in outcome.reason


def test_a_failure_that_the_loss_of_another_node_explains_costs_no_restart() -> None:
    history = running("a", "b", "c", settings=History(SETTINGS).other_settings(max_restarts=0))
    history.fail("b", message="connection reset by peer")
    history.ask()
    assert history.ask() == ()
    history.drain("c")
    assert history.ask() == (), "what became of the third node is not known yet"
    history.lose("a")
    history.ask()
    assert world_of(history) == ["b", "c"]
    assert history.state.restarts_used == 0


def test_the_root_cause_is_the_earliest_failure_of_all_nodes() -> None:
    history = running("a", "b")
    history.fail("a", time_ms=2_000_500, message="connection reset")
    history.fail("b", time_ms=2_000_100, code=-9, message="")
    root, other = failures_of(history.state)
    assert (root.node, root.signal, root.exit_code) == ("b", "SIGKILL", -9)
    assert (other.node, other.message) == ("a", "connection reset")
    assert root.summary == "rank 0 on b failed in round 1 with signal SIGKILL"


def test_a_run_is_completed_when_every_member_has_finished_also_while_the_round_was_to_end() -> None:
    history = running("a", "b")
    history.join("c")
    history.ask()
    history.finish("a", "b")
    (outcome,) = history.ask()
    assert isinstance(outcome, ev.OutcomeDecided)
    assert (outcome.outcome, outcome.last_step) == ("completed", 9)
    history.join("d")
    assert history.settle() == []


def test_a_node_that_will_be_taken_away_leaves_and_the_others_go_on() -> None:
    history = running("a", "b", "c")
    history.record(ev.NodePreemptionNotice(node="c", source="file", deadline_ms=0))
    (drain,) = history.ask()
    assert drain == ev.DrainDecided(round=1, reason="preempted", leaving=("c",), grace_ms=9_000)
    history.drain("a", "b", "c")
    history.leave("c")
    history.ask()
    assert world_of(history) == ["a", "b"]


def test_workers_that_do_not_get_on_are_only_told_of_unless_something_else_was_said() -> None:
    history = running("a", "b")
    history.stick("b")
    history.wait(10**9)
    assert history.settle() == []
    assert history.state.restarts_used == 0


def test_a_stuck_round_that_is_to_begin_again_ends_without_a_common_step_and_costs_a_restart() -> None:
    history = running("a", "b", settings=History(SETTINGS).other_settings(on_stuck="restart"))
    history.stick("b")
    history.stick("a")
    (drain,) = history.ask()
    assert drain == ev.DrainDecided(round=1, reason="stuck", grace_ms=9_000)
    assert history.ask() == ()
    history.drain("a", "b")
    (world,) = history.ask()
    assert isinstance(world, ev.WorldDecided)
    assert (world.round, world.restarts, history.state.restarts_used) == (2, 1, 1)
    assert history.settle() == [], "what was said of round 1 says nothing of round 2"
    history.stick("a", "rank 1 hangs")
    (outcome,) = history.ask()
    assert outcome == ev.OutcomeDecided(
        outcome="failed",
        reason="a is stuck after step 7 of round 2: rank 1 hangs; rounds that failed: 2, restarts allowed: 1",
        last_step=7,
    )


def test_a_stuck_round_ends_the_run_at_once_where_that_was_said() -> None:
    history = running("a", "b", settings=History(SETTINGS).other_settings(on_stuck="fail"))
    history.stick("b", "rank 2 hangs")
    (outcome,) = history.ask()
    assert isinstance(outcome, ev.OutcomeDecided)
    assert (outcome.outcome, outcome.reason) == ("failed", "b is stuck after step 7 of round 1: rank 2 hangs")


def test_a_word_of_being_stuck_that_comes_late_or_from_nobody_changes_nothing() -> None:
    history = running("a", "b", settings=History(SETTINGS).other_settings(on_stuck="fail"))
    history.record(ev.NodeStuck(node="x", round=1, what="expired", last_step=0, since_ms=0))
    history.record(ev.NodeStuck(node="a", round=0, what="expired", last_step=0, since_ms=0))
    assert history.settle() == []


def test_a_failure_explains_a_round_better_than_that_it_was_stuck_before() -> None:
    settings = History(SETTINGS).other_settings(on_stuck="restart", max_restarts=1)
    history = running("a", "b", settings=settings)
    history.fail("a", message="of round 1")
    history.settle()
    history.drain("b")
    history.settle()
    history.stick("a", "rank 1 hangs")
    (outcome,) = history.settle()[0]
    assert isinstance(outcome, ev.OutcomeDecided)
    assert outcome.reason.startswith("a is stuck"), "what failed in round 1 is not why round 2 ended"
    failed = running("a", "b", settings=History(SETTINGS).other_settings(max_restarts=0))
    failed.stick("a")
    failed.fail("b", message="boom")
    failed.ask()
    failed.drain("a")
    (outcome,) = failed.ask()
    assert isinstance(outcome, ev.OutcomeDecided)
    assert outcome.reason.startswith("rank 0 on b failed")


def test_a_world_says_how_many_rounds_failed_and_a_change_of_nodes_is_no_restart() -> None:
    history = running("a", "b")
    history.join("c")
    history.ask()
    history.drain("a", "b")
    history.ask()
    history.fail("a")
    history.ask()
    history.drain("b", "c")
    history.ask()
    worlds = [event.data for event in history.events if isinstance(event.data, ev.WorldDecided)]
    assert [world.restarts for world in worlds] == [0, 0, 1]


def test_two_runs_of_one_name_are_told_apart_by_their_first_decision() -> None:
    one = running("a", "b")
    other = History(SETTINGS)
    other.wait(1)
    other.join("a", "b")
    other.wait(SETTINGS.last_call_ms)
    other.settle()
    assert one.state.first_decision_id
    assert run_folder("run", one.state.first_decision_id) != run_folder("run", other.state.first_decision_id)
    before = one.state.first_decision_id
    one.lose("a")
    one.settle()
    assert one.state.first_decision_id == before


def test_a_static_world_is_what_was_agreed_on_and_begins_again_alone() -> None:
    static = StaticWorld(node_rank=1, nodes=2, master_addr="10.0.0.1", master_port=29_400)
    history = History(RunSettings(min_nodes=1, max_nodes=1, nproc_per_node=3, max_restarts=1, static=static))
    history.join("static-1")
    (world,) = history.ask()
    assert isinstance(world, ev.WorldDecided)
    assert [member.node for member in world.members] == ["static-0", "static-1"]
    assert (world.world_size, world.master_addr, world.master_port) == (6, "10.0.0.1", 29_400)
    history.fail("static-1")
    history.settle()
    assert history.state.round == 2
    history.finish("static-1")
    history.settle()
    assert history.state.outcome == "completed"


def test_a_waiting_node_is_told_what_there_is_to_wait_for() -> None:
    lonely = History(SETTINGS)
    lonely.join("a")
    assert verdict(lonely.state, SETTINGS, "a", lonely.now_ms + 599_999) is None
    late = verdict(lonely.state, SETTINGS, "a", lonely.now_ms + 600_000)
    assert late is not None
    assert (late.kind, late.why) == ("timed_out", "waited 600 s: 1 of at least 2 nodes joined the run run")

    full = running("a", "b", "c")
    full.join("d")
    assert verdict(full.state, SETTINGS, "d", full.now_ms) is None
    none_left = verdict(full.state, SETTINGS, "d", full.now_ms + 600_000)
    assert none_left is not None
    assert none_left.kind == "exhausted"
    assert verdict(full.state, SETTINGS, "a", full.now_ms + 10**9) is None

    other = verdict(full.state, full.other_settings(nproc_per_node=4), "e", full.now_ms)
    assert other is not None
    assert other.kind == "state"

    full.finish("a", "b", "c")
    full.ask()
    spare = verdict(full.state, SETTINGS, "d", full.now_ms)
    assert spare is not None
    assert spare.kind == "graceful_exit"
    closed = verdict(full.state, SETTINGS, "never-joined", full.now_ms)
    assert closed is not None
    assert closed.kind == "closed"
    assert verdict(full.state, SETTINGS, "a", full.now_ms) is None


def test_a_node_that_was_given_up_is_told_and_so_is_one_whose_log_is_a_grids() -> None:
    history = running("a", "b", "c")
    history.lose("c")
    lost = verdict(history.state, SETTINGS, "c", history.now_ms)
    assert lost is not None
    assert lost.kind == "connection"
    foreign = running("a", "b")
    basis = ev.Basis(
        number=9, as_of_ms=0, events_through=0, samples_through=0, policy="law", policy_version=1, config_digest="x"
    )
    foreign.record(ev.DrainDecided(round=1, reason="resize"), basis)
    assert decide(foreign.state, SETTINGS, foreign.now_ms) == ()
    told = verdict(foreign.state, SETTINGS, "a", foreign.now_ms)
    assert told is not None
    assert told.kind == "state"


def test_the_next_node_is_to_act_when_the_first_is_gone() -> None:
    history = running("a", "b", "c")
    assert [turn_of(history.state, node) for node in ("a", "b", "c")] == [0, 1, 2]
    history.lose("a")
    assert [turn_of(history.state, node) for node in ("b", "c")] == [0, 1]


def test_an_event_that_is_read_twice_changes_nothing() -> None:
    history = running("a", "b")
    before = history.state
    again = ev.Recorded(2, history.now_ms, history.events[1])
    assert evolve(before, again) == before


ANY_SETTINGS = replace(SETTINGS, on_stuck="restart")


class AnyRun(RuleBasedStateMachine):
    """Whatever nodes do, in whatever order: the laws hold after every decision."""

    def __init__(self) -> None:
        super().__init__()
        self.history = History(ANY_SETTINGS)
        self.count = 0

    def _joined(self) -> list[str]:
        return sorted(node.id for node in self.history.state.nodes.values() if node.status == "joined")

    def _busy(self) -> list[str]:
        state = self.history.state
        return [node.id for node in state.member_nodes if node.status == "joined" and node.settled_round < state.round]

    @rule()
    def a_node_joins(self) -> None:
        self.count += 1
        self.history.join(f"n{self.count}")

    @rule(duration_ms=st.sampled_from([1, 1_000, 5_000, 39_000]))
    def time_passes(self, duration_ms: int) -> None:
        self.history.wait(duration_ms)

    @precondition(lambda self: self._joined())
    @rule(data=st.data(), how=st.sampled_from(["lose", "leave"]))
    def a_node_goes(self, data: st.DataObject, how: str) -> None:
        getattr(self.history, how)(data.draw(st.sampled_from(self._joined())))

    @precondition(lambda self: self._busy())
    @rule(data=st.data())
    def workers_hang(self, data: st.DataObject) -> None:
        self.history.stick(data.draw(st.sampled_from(self._busy())))

    @precondition(lambda self: self._busy())
    @rule(data=st.data(), how=st.sampled_from(["drain", "fail", "finish", "drain", "drain"]))
    def workers_end(self, data: st.DataObject, how: str) -> None:
        if how == "drain" and not self.history.state.draining:
            return
        getattr(self.history, how)(data.draw(st.sampled_from(self._busy())))

    @rule()
    def somebody_decides(self) -> None:
        for _ in range(10):
            before = self.history.state
            decision = self.history.ask()
            if not decision:
                return
            self._check(before, decision)
        raise AssertionError("decisions without end")

    def _check(self, before: object, decision: tuple[object, ...]) -> None:
        history = self.history
        (data,) = decision
        assert before.outcome is None  # type: ignore[attr-defined]
        if isinstance(data, ev.WorldDecided):
            old = [member.node for member in before.members]  # type: ignore[attr-defined]
            new = [member.node for member in data.members]
            assert data.round == before.round + 1  # type: ignore[attr-defined]
            assert ANY_SETTINGS.min_nodes <= len(new) <= ANY_SETTINGS.max_nodes
            assert len(set(new)) == len(new)
            survivors = [node for node in old if node in new]
            assert new[: len(survivors)] == survivors
            nodes = before.nodes  # type: ignore[attr-defined]
            assert all(nodes[node].status == "joined" for node in new)
            assert all(nodes[node].settled_round >= nodes[node].last_round for node in new)
            assert data.master_addr == nodes[new[0]].host
            assert history.state.restarts_used <= ANY_SETTINGS.max_restarts
        if isinstance(data, ev.OutcomeDecided) and data.outcome == "completed":
            assert all(node.finished_round == before.round for node in before.member_nodes)  # type: ignore[attr-defined]

    @invariant()
    def enough_nodes_that_wait_are_not_left_waiting(self) -> None:
        state = self.history.state
        if state.outcome is not None or (state.round and not state.draining) or self._busy():
            return
        if len(next_nodes(state, ANY_SETTINGS)) >= ANY_SETTINGS.min_nodes:
            assert decide(state, ANY_SETTINGS, self.history.now_ms + ANY_SETTINGS.last_call_ms)


TestAnyRun = AnyRun.TestCase
TestAnyRun.settings = hypothesis_settings(max_examples=150, stateful_step_count=40, deadline=None)


@hypothesis_settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["read", "read some", "decide", "fact"])), max_size=60))
def test_nodes_that_decide_from_what_each_has_read_decide_one_history(moves: list[tuple[int, str]]) -> None:
    asyncio.run(_one_history(moves))


async def _one_history(moves: list[tuple[int, str]]) -> None:
    clock = VirtualClock()
    log = MemoryLog(clock)
    scope = Scope(tenant=RUN_TENANT, job="run", writer="decision")
    names = ["a", "b", "c"]
    facts = 0

    async def fact(data: ev.EventData) -> None:
        nonlocal facts
        facts += 1
        event = ev.Event(id=f"f{facts}", time_ms=1, tenant=RUN_TENANT, job="run", actor="test", data=data)
        await log.append([event])

    for name in names:
        await fact(ev.NodeJoined(node=name, attempt=name, provider="run", host=name, free_port=1, pid=1))
    states = [initial("run") for _ in names]
    for who, what in moves:
        state = states[who]
        if what.startswith("read"):
            through = state.sequence + 1 if what == "read some" else None
            async for recorded in log.read(after=state.sequence, through=through):
                states[who] = evolve(states[who], recorded)
        elif what == "decide":
            decision = decide(state, SETTINGS, clock.now_ms() + 600_000)
            if decision:
                events = decision_events(state, SETTINGS, decision, clock.now_ms() + 600_000)
                with contextlib.suppress(Conflict):
                    await log.append(events, expect=Expectation(scope, state.decision_sequence))
        elif state.round:
            await fact(ev.NodeDrained(node=names[who], round=state.round, last_step=1, clean=True, free_port=1))
    decided = [each.event async for each in log.read(scope=scope)]
    decisions = [event for event in decided if isinstance(event, ev.Event)]
    numbers = [event.basis.number for event in decisions if event.basis is not None]
    assert numbers == list(range(1, len(decisions) + 1))
    rounds = [event.data.round for event in decisions if isinstance(event.data, ev.WorldDecided)]
    assert rounds == list(range(1, len(rounds) + 1))
