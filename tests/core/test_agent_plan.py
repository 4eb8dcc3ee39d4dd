"""The node agent's state machine, in every order of events that a log, workers and other agents can bring about."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticgrid.core import agent_plan
from elasticgrid.core import agent_state as plan
from elasticgrid.core.events import (
    CheckpointRef,
    DrainDecided,
    Member,
    NodeCheckpointed,
    NodeDrained,
    NodeFailed,
    NodeFinished,
    NodeLeft,
    NodeStarted,
    OutcomeDecided,
    WorldDecided,
)

NODE = "a1-0"
OTHER = "a2-0"


def world(number: int, *members: str, nproc: int = 2, resume: int | None = None) -> WorldDecided:
    return WorldDecided(
        round=number,
        members=tuple(Member(node=node, group_rank=rank) for rank, node in enumerate(members or (NODE,))),
        nproc_per_node=nproc,
        master_addr="127.0.0.1",
        master_port=4000 + number,
        resume=None if resume is None else CheckpointRef(step=resume, uri=f"/c/{resume}"),
    )


def drain(number: int, reason: str = "resize", leaving: tuple[str, ...] = (), grace_ms: int = 10_000) -> DrainDecided:
    return DrainDecided(round=number, reason=reason, leaving=leaving, grace_ms=grace_ms)


class Driver:
    """Feeds a machine and keeps what it said."""

    def __init__(self) -> None:
        self.state = agent_plan.initial(NODE, free_port=5000)
        self.said: list[plan.Instruction] = []
        self.sequence = 10

    def __call__(self, *items: plan.AgentInput) -> list[plan.Instruction]:
        new: list[plan.Instruction] = []
        for item in items:
            self.state, instructions = agent_plan.evolve(self.state, item)
            new.extend(instructions)
        self.said.extend(new)
        return new

    def decide(self, data: WorldDecided | DrainDecided | OutcomeDecided) -> list[plan.Instruction]:
        self.sequence += 1
        return self(
            plan.DecisionRead(sequence=self.sequence, event_id=f"e{self.sequence}", correlation_id="job", data=data)
        )

    @property
    def facts(self) -> list[plan.NodeFact]:
        return [instruction.data for instruction in self.said if isinstance(instruction, plan.Record)]


@pytest.fixture
def agent() -> Driver:
    driver = Driver()
    driver(plan.Joined(sequence=10))
    return driver


def stepped(number: int, step: int, ranks: Iterable[int] = (0, 1)) -> list[plan.WorkerStepped]:
    return [plan.WorkerStepped(round=number, rank=rank, step=step) for rank in ranks]


def stopping(number: int, step: int, ranks: Iterable[int] = (0, 1)) -> list[plan.WorkerStopping]:
    return [plan.WorkerStopping(round=number, rank=rank, step=step) for rank in ranks]


def closed(number: int, step: int, ranks: Iterable[int] = (0, 1)) -> list[plan.WorkerClosed]:
    return [
        plan.WorkerClosed(round=number, rank=rank, step=step, samples_published=5, samples_dropped=1) for rank in ranks
    ]


def exited(number: int, code: int = 0, ranks: Iterable[int] = (0, 1), lines: str = "") -> list[plan.WorkerExited]:
    return [
        plan.WorkerExited(round=number, rank=rank, code=code, last_lines=lines, free_port=6000 + rank) for rank in ranks
    ]


def kinds(instructions: Iterable[plan.Instruction]) -> list[type[object]]:
    return [type(each) for each in instructions]


def test_a_world_with_this_node_starts_its_workers_at_its_place(agent: Driver) -> None:
    (start,) = agent.decide(world(1, OTHER, NODE))
    assert start == plan.StartWorkers(world=world(1, OTHER, NODE), group_rank=1)
    assert agent.state.current is not None
    assert [worker.rank for worker in agent.state.current.workers] == [2, 3]


def test_a_world_without_this_node_is_passed_over(agent: Driver) -> None:
    assert agent.decide(world(1, OTHER)) == []
    assert agent.state.current is None


def test_worlds_decided_before_the_node_joined_are_an_earlier_lifes() -> None:
    agent = Driver()
    agent(plan.Joined(sequence=50))
    assert kinds(agent.decide(world(1))) == [plan.Ignored]
    assert agent.state.current is None


def test_a_decision_read_twice_is_taken_once(agent: Driver) -> None:
    read = plan.DecisionRead(sequence=20, event_id="e", correlation_id="job", data=world(1))
    assert kinds(agent(read)) == [plan.StartWorkers]
    assert kinds(agent(read)) == [plan.Ignored]


def test_an_older_world_never_follows_a_newer_one(agent: Driver) -> None:
    agent.decide(world(3))
    assert kinds(agent.decide(world(2))) == [plan.Ignored]


def test_the_first_step_is_recorded_once_with_the_world_as_its_cause(agent: Driver) -> None:
    agent.decide(world(1, resume=40))
    assert agent(*stepped(1, 40)) == []
    (record,) = agent(*stepped(1, 41), *stepped(1, 42))
    assert record == plan.Record(
        data=NodeStarted(node=NODE, round=1, step=41), cause=plan.Cause(event_id="e11", correlation_id="job")
    )


def test_a_drain_of_healthy_workers_begins_with_an_agreement_and_a_grace_time(agent: Driver) -> None:
    agent.decide(world(1, NODE, OTHER))
    agent(*stepped(1, 5))
    assert agent.decide(drain(1)) == [
        plan.StartGrace(round=1, grace_ms=10_000),
        plan.AgreeOnStop(round=1, leads=True, members=(NODE, OTHER), patience_ms=5_000),
    ]


@pytest.mark.survive("N")
@pytest.mark.parametrize("grace_ms", [31_000, 120_000, 3_600_000])
def test_a_grace_of_any_length_is_the_time_until_workers_are_terminated(agent: Driver, grace_ms: int) -> None:
    agent.decide(world(1, NODE, OTHER))
    agent(*stepped(1, 5))
    told = agent.decide(drain(1, grace_ms=grace_ms))
    assert plan.StartGrace(round=1, grace_ms=grace_ms) in told
    assert plan.TerminateWorkers not in kinds([*told, *agent(plan.StopAgreed(round=1, step=9), *stepped(1, 8))])
    assert plan.TerminateWorkers in kinds(agent(plan.GraceOver(round=1)))


def test_workers_that_stopped_as_agreed_are_drained_cleanly_and_wait_for_the_next_world(agent: Driver) -> None:
    agent.decide(world(1))
    agent(*stepped(1, 5))
    agent.decide(drain(1))
    agent(plan.StopAgreed(round=1, step=9), *stopping(1, 9), *closed(1, 9))
    assert agent(*exited(1, ranks=[0])) == []
    (record,) = agent(*exited(1, ranks=[1]))
    assert isinstance(record, plan.Record)
    assert record.data == NodeDrained(
        node=NODE, round=1, last_step=9, clean=True, free_port=6001, samples_published=10, samples_dropped=2
    )
    assert record.cause.event_id == "e12"
    assert kinds(agent.decide(world(2, resume=9))) == [plan.StartWorkers]


def test_a_checkpoint_is_announced_before_the_drain_of_its_round_however_late_it_is_checked(agent: Driver) -> None:
    agent.decide(world(1))
    agent.decide(drain(1))
    agent(plan.StopAgreed(round=1, step=9), *stopping(1, 9))
    check = agent(plan.CheckpointNamed(round=1, step=9, uri="/c/9"))
    assert check == [plan.CheckCheckpoint(round=1, step=9, uri="/c/9")]
    assert agent(*exited(1)) == []
    agent(plan.CheckpointChecked(round=1, checkpoint=CheckpointRef(step=9, uri="/c/9")))
    assert [type(fact) for fact in agent.facts] == [NodeCheckpointed, NodeDrained]


def test_a_checkpoint_that_is_not_complete_is_never_announced(agent: Driver) -> None:
    agent.decide(world(1))
    agent(plan.CheckpointNamed(round=1, step=9, uri="/c/9"), plan.CheckpointChecked(round=1, checkpoint=None))
    assert agent.facts == []


def test_a_checkpoint_named_by_two_workers_is_checked_once(agent: Driver) -> None:
    agent.decide(world(1))
    named = plan.CheckpointNamed(round=1, step=9, uri="/c/9")
    assert kinds(agent(named, named)) == [plan.CheckCheckpoint, plan.Ignored]


def test_a_leaving_node_leaves_once_it_is_drained(agent: Driver) -> None:
    agent.decide(world(1, OTHER, NODE))
    agent.decide(drain(1, leaving=(NODE,)))
    agent(plan.StopAgreed(round=1, step=3), *stopping(1, 3, [2, 3]), *exited(1, ranks=[2, 3]))
    assert [type(fact) for fact in agent.facts] == [NodeDrained, NodeLeft]
    assert agent.said[-1] == plan.Leave(exit_code=0)


def test_a_drain_before_any_step_still_agrees_on_a_stop(agent: Driver) -> None:
    agent.decide(world(1))
    assert plan.AgreeOnStop in kinds(agent.decide(drain(1)))


def test_a_stop_agreed_before_the_drain_was_read_is_answered_when_it_is(agent: Driver) -> None:
    agent.decide(world(1, OTHER, NODE))
    agent(plan.StopAgreed(round=1, step=7), *stopping(1, 7, [2, 3]), *exited(1, ranks=[2, 3]))
    assert agent.facts == []
    agent.decide(drain(1))
    (fact,) = agent.facts
    assert isinstance(fact, NodeDrained)
    assert fact.clean


def test_a_drain_read_after_the_stop_was_agreed_does_not_agree_again(agent: Driver) -> None:
    agent.decide(world(1, OTHER, NODE))
    agent(plan.StopAgreed(round=1, step=7))
    assert kinds(agent.decide(drain(1))) == [plan.StartGrace]


@pytest.mark.parametrize("reason", ["failure", "node_lost", "failed"])
def test_a_broken_round_is_terminated_at_once(agent: Driver, reason: str) -> None:
    agent.decide(world(1))
    assert agent.decide(drain(1, reason)) == [plan.TerminateWorkers(round=1)]
    agent(*exited(1, code=-15))
    (fact,) = agent.facts
    assert isinstance(fact, NodeDrained)
    assert not fact.clean


def test_a_node_lost_during_a_drain_makes_it_a_termination(agent: Driver) -> None:
    agent.decide(world(1, NODE, OTHER))
    agent.decide(drain(1))
    assert agent.decide(drain(1, "node_lost")) == [plan.TerminateWorkers(round=1)]


def test_a_drain_without_grace_terminates_at_once(agent: Driver) -> None:
    agent.decide(world(1))
    assert agent.decide(drain(1, grace_ms=0)) == [plan.TerminateWorkers(round=1)]


@pytest.mark.parametrize("end", [plan.GraceOver(round=1), plan.AgreementFailed(round=1)])
def test_workers_that_do_not_stop_are_terminated_and_that_is_no_failure(agent: Driver, end: plan.AgentInput) -> None:
    agent.decide(world(1))
    agent.decide(drain(1))
    assert agent(end) == [plan.TerminateWorkers(round=1)]
    agent(*exited(1, code=-9))
    (fact,) = agent.facts
    assert isinstance(fact, NodeDrained)
    assert not fact.clean


def test_another_agents_word_alone_ends_no_round(agent: Driver) -> None:
    agent.decide(world(1))
    assert kinds(agent(plan.AgreementFailed(round=1))) == [plan.Ignored]


def test_the_grace_of_an_earlier_round_does_not_touch_the_next(agent: Driver) -> None:
    agent.decide(world(1))
    agent.decide(drain(1))
    agent(plan.StopAgreed(round=1, step=3), *stopping(1, 3), *exited(1))
    agent.decide(world(2, resume=3))
    assert agent(plan.GraceOver(round=1)) == []


def test_workers_that_are_done_are_finished(agent: Driver) -> None:
    agent.decide(world(1))
    agent(*stepped(1, 30), *closed(1, 30), *exited(1))
    assert agent.facts[-1] == NodeFinished(
        node=NODE, round=1, last_step=30, free_port=6001, samples_published=10, samples_dropped=2
    )


def test_workers_that_are_done_before_the_agreed_step_are_finished_which_answers_the_drain(agent: Driver) -> None:
    agent.decide(world(1))
    agent.decide(drain(1))
    agent(plan.StopAgreed(round=1, step=40), *closed(1, 30), *exited(1))
    assert [type(fact) for fact in agent.facts] == [NodeFinished]


def test_a_worker_that_ends_at_the_agreed_step_without_a_word_is_not_taken_for_done(agent: Driver) -> None:
    agent.decide(world(1))
    agent.decide(drain(1))
    agent(plan.StopAgreed(round=1, step=40), *stepped(1, 39), *exited(1))
    assert [type(fact) for fact in agent.facts if not isinstance(fact, NodeStarted)] == [NodeDrained]


def test_a_drain_of_a_finished_round_needs_no_answer(agent: Driver) -> None:
    agent.decide(world(1))
    agent(*exited(1))
    assert plan.Record not in kinds(agent.decide(drain(1)))
    assert isinstance(agent.facts[-1], NodeFinished)


def test_one_failed_worker_ends_the_others_and_is_named_first(agent: Driver) -> None:
    agent.decide(world(1))
    agent(*stepped(1, 4))
    assert agent(*exited(1, code=3, ranks=[1], lines="boom")) == [plan.TerminateWorkers(round=1)]
    agent(*exited(1, code=-15, ranks=[0]))
    fact = agent.facts[-1]
    assert isinstance(fact, NodeFailed)
    assert [(each.rank, each.code, each.last_lines) for each in fact.exits] == [(1, 3, "boom"), (0, -15, "")]
    assert [each.state for each in fact.exits] == ["FAILED", "STOPPED"]
    assert (fact.failure, fact.last_step) == ("app_failed", 4)


def test_exit_75_is_the_infrastructures(agent: Driver) -> None:
    agent.decide(world(1, nproc=1))
    agent(*exited(1, code=75, ranks=[0]))
    fact = agent.facts[-1]
    assert isinstance(fact, NodeFailed)
    assert fact.failure == "infra_failed"


def test_a_failed_node_has_answered_the_drain_and_takes_the_next_world(agent: Driver) -> None:
    agent.decide(world(1))
    agent(*exited(1, code=1))
    assert plan.Record not in kinds(agent.decide(drain(1, "failure")))
    assert isinstance(agent.facts[-1], NodeFailed)
    assert kinds(agent.decide(world(2))) == [plan.StartWorkers]


def test_a_failure_while_stopping_together_is_a_failure(agent: Driver) -> None:
    agent.decide(world(1))
    agent.decide(drain(1))
    agent(plan.StopAgreed(round=1, step=3), *stopping(1, 3), *exited(1, code=1, ranks=[0]), *exited(1, ranks=[1]))
    assert [type(fact) for fact in agent.facts] == [NodeFailed]


def test_a_world_while_workers_of_the_last_one_run_waits_until_they_are_gone(agent: Driver) -> None:
    agent.decide(world(1))
    assert agent.decide(world(2)) == [plan.TerminateWorkers(round=1)]
    agent(*exited(1, code=-15, ranks=[0]))
    assert kinds(agent(*exited(1, code=-15, ranks=[1]))) == [plan.Record, plan.StartWorkers]
    assert isinstance(agent.facts[-1], NodeDrained)


def test_a_world_while_draining_waits_for_the_drain(agent: Driver) -> None:
    agent.decide(world(1))
    agent.decide(drain(1))
    assert agent.decide(world(2)) == [plan.TerminateWorkers(round=1)]
    assert kinds(agent(*exited(1, code=-15))) == [plan.Record, plan.StartWorkers]


def test_a_world_without_this_node_ends_the_round_it_was_in(agent: Driver) -> None:
    agent.decide(world(1))
    assert agent.decide(world(2, OTHER)) == [plan.TerminateWorkers(round=1)]
    agent(*exited(1, code=-15))
    assert [type(fact) for fact in agent.facts] == [NodeDrained]


@pytest.mark.parametrize("number", [0, 7])
def test_a_node_that_is_told_to_leave_without_a_round_leaves(agent: Driver, number: int) -> None:
    assert kinds(agent.decide(drain(number, leaving=(NODE,)))) == [plan.Record, plan.Leave]


def test_the_end_of_the_job_ends_what_runs_and_the_agent(agent: Driver) -> None:
    agent.decide(world(1))
    assert agent.decide(OutcomeDecided(outcome="cancelled", reason="asked")) == [plan.TerminateWorkers(round=1)]
    agent(*exited(1, code=-15))
    assert [type(fact) for fact in agent.facts] == [NodeDrained, NodeLeft]
    assert agent.said[-1] == plan.Leave(exit_code=0)


def test_the_end_of_the_job_ends_an_idle_agent(agent: Driver) -> None:
    assert kinds(agent.decide(OutcomeDecided(outcome="completed", reason="done"))) == [plan.Record, plan.Leave]


def test_a_signal_ends_the_workers_and_leaves_without_a_drain_nobody_decided(agent: Driver) -> None:
    agent.decide(world(1))
    assert agent(plan.EndRequested(reason="terminated", exit_code=143)) == [plan.TerminateWorkers(round=1)]
    agent(*exited(1, code=-15))
    assert agent.facts == [NodeLeft(node=NODE, reason="terminated")]
    assert agent.said[-1] == plan.Leave(exit_code=143)


def test_nothing_matters_after_leaving(agent: Driver) -> None:
    agent(plan.EndRequested(reason="terminated", exit_code=143))
    assert kinds(agent.decide(world(1))) == [plan.Ignored]


def test_words_of_another_round_or_rank_are_ignored(agent: Driver) -> None:
    agent.decide(world(2))
    heard = agent(
        *stepped(1, 99),
        *stepped(2, 99, [7]),
        *stopping(1, 9),
        *closed(3, 9),
        *exited(1),
        plan.CheckpointNamed(round=1, step=9, uri="/c/9"),
        plan.CheckpointChecked(round=2, checkpoint=None),
        plan.StopAgreed(round=1, step=3),
    )
    assert set(kinds(heard)) == {plan.Ignored}
    assert agent.state.current is not None
    assert agent.state.current.last_step == 0


ROUND = st.integers(0, 3)
RANK = st.integers(0, 2)
STEP = st.integers(0, 20)
DECISION = st.one_of(
    st.builds(world, ROUND, st.sampled_from([NODE, OTHER]), nproc=st.integers(1, 2)),
    st.builds(
        drain,
        ROUND,
        st.sampled_from(["resize", "failure"]),
        st.sampled_from([(), (), (NODE,)]),
        st.sampled_from([0, 5_000]),
    ),
    st.just(OutcomeDecided(outcome="completed", reason="done")),
)
INPUT = st.one_of(
    st.builds(plan.WorkerStepped, round=ROUND, rank=RANK, step=STEP),
    st.builds(plan.WorkerStopping, round=ROUND, rank=RANK, step=STEP),
    st.builds(plan.WorkerClosed, round=ROUND, rank=RANK, step=STEP, samples_published=STEP, samples_dropped=STEP),
    st.builds(plan.CheckpointNamed, round=ROUND, step=STEP, uri=st.just("/c")),
    st.builds(plan.CheckpointChecked, round=ROUND, checkpoint=st.none()),
    st.builds(plan.StopAgreed, round=ROUND, step=STEP),
    st.builds(plan.AgreementFailed, round=ROUND),
    st.builds(plan.GraceOver, round=ROUND),
    st.builds(
        plan.WorkerExited,
        round=ROUND,
        rank=RANK,
        code=st.sampled_from([0, 1, -15, 75]),
        last_lines=st.just(""),
        free_port=st.just(1),
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(DECISION, INPUT), max_size=40))
def test_in_any_order_rounds_do_not_overlap_and_each_end_is_recorded_once(items: list[object]) -> None:
    agent = Driver()
    agent(plan.Joined(sequence=10))
    started: list[int] = []
    for item in items:
        decided = isinstance(item, WorldDecided | DrainDecided | OutcomeDecided)
        said = agent.decide(item) if decided else agent(item)  # type: ignore[arg-type] # strategies mix both unions
        for start in said:
            if isinstance(start, plan.StartWorkers):
                ends = [fact.round for fact in agent.facts if isinstance(fact, NodeDrained | NodeFinished | NodeFailed)]
                assert set(started) <= set(ends)
                started.append(start.world.round)
    assert started == sorted(set(started))
    said_of = [(type(fact), getattr(fact, "round", 0)) for fact in agent.facts]
    assert len(said_of) == len(set(said_of))
    if NodeLeft in [type(fact) for fact in agent.facts]:
        assert isinstance(agent.facts[-1], NodeLeft)
        assert agent.state.current is None or not agent.state.current.running
