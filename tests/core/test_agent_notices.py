"""The agent's state machine under notices, stuck workers, useless kills, and failures with a first cause."""

from __future__ import annotations

import pytest

from elasticgrid.core import agent_plan
from elasticgrid.core import agent_state as plan
from elasticgrid.core.events import (
    CheckpointRef,
    DrainDecided,
    Member,
    NodeDrained,
    NodeFailed,
    NodeLeft,
    NodePreemptionNotice,
    NodeReclassified,
    NodeStuck,
    WorldDecided,
)

NODE, OTHER = "a1-0", "a2-0"
NOW_MS = 1_750_000_000_000


class Agent:
    """A node in round 1 with workers 0 and 1; keeps what the machine said."""

    def __init__(self) -> None:
        self.state = agent_plan.initial(NODE, free_port=5000)
        self.said: list[plan.Instruction] = []
        self.sequence = 10
        self(plan.Joined(sequence=10))
        self.decide(
            WorldDecided(
                round=1,
                members=(Member(node=NODE, group_rank=0), Member(node=OTHER, group_rank=1)),
                nproc_per_node=2,
                master_addr="127.0.0.1",
                master_port=4000,
                resume=CheckpointRef(step=4, uri="/c/4"),
            )
        )
        self.said.clear()

    def __call__(self, *items: plan.AgentInput) -> list[plan.Instruction]:
        new: list[plan.Instruction] = []
        for item in items:
            self.state, instructions = agent_plan.evolve(self.state, item)
            new.extend(instructions)
        self.said.extend(new)
        return new

    def decide(self, data: WorldDecided | DrainDecided) -> list[plan.Instruction]:
        self.sequence += 1
        return self(plan.DecisionRead(sequence=self.sequence, event_id="e", correlation_id="job", data=data))

    @property
    def facts(self) -> list[plan.NodeFact]:
        return [said.data for said in self.said if isinstance(said, plan.Record)]

    @property
    def states(self) -> list[plan.WorkerState]:
        assert self.state.current is not None
        return [plan.worker_state(self.state.current, worker) for worker in self.state.current.workers]


@pytest.fixture
def agent() -> Agent:
    return Agent()


def notice(deadline_ms: int = NOW_MS + 120_000, *, at_ms: int = NOW_MS) -> plan.NoticeReceived:
    return plan.NoticeReceived(source="aws", deadline_ms=deadline_ms, text="terminate", time_ms=at_ms)


def exited(
    rank: int,
    code: int,
    *,
    at_ms: int = NOW_MS,
    message: str = "",
    fenced: bool = False,
    out_of_memory: bool = False,
) -> plan.WorkerExited:
    return plan.WorkerExited(
        round=1,
        rank=rank,
        code=code,
        last_lines="",
        free_port=6000,
        time_ms=at_ms,
        message=message,
        fenced=fenced,
        out_of_memory=out_of_memory,
    )


def stuck() -> plan.WorkersStuck:
    return plan.WorkersStuck(round=1, what="no_step", since_ms=NOW_MS - 300_000, detail="rank 0", stacks="here")


# Notices ------------------------------------------------------------------------------------------------------------


def test_a_notice_is_recorded_once_and_again_only_when_it_is_more_pressing(agent: Agent) -> None:
    agent(notice(0), notice(0), notice(NOW_MS + 120_000), notice(NOW_MS + 120_000), notice(NOW_MS + 30_000))
    told = [fact.deadline_ms for fact in agent.facts if isinstance(fact, NodePreemptionNotice)]
    assert told == [0, NOW_MS + 120_000, NOW_MS + 30_000]
    awaited = [said.deadline_ms for said in agent.said if isinstance(said, plan.AwaitDeadline)]
    assert awaited == told[1:]


def test_a_drain_for_a_notice_is_agreed_on_like_any_other_and_the_node_leaves(agent: Agent) -> None:
    agent(notice())
    said = agent.decide(DrainDecided(round=1, reason="preempted", leaving=(NODE,), grace_ms=100_000))
    assert [type(each) for each in said] == [plan.StartGrace, plan.AgreeOnStop]
    agent(plan.StopAgreed(round=1, step=9), plan.WorkerStopping(round=1, rank=0, step=9), exited(0, 0), exited(1, 0))
    assert agent.facts[-2:] == [
        NodeDrained(node=NODE, round=1, last_step=9, clean=True, free_port=6000),
        NodeLeft(node=NODE, reason="preempted"),
    ]


def test_a_notice_in_a_drain_brings_the_end_of_the_grace_nearer(agent: Agent) -> None:
    agent.decide(DrainDecided(round=1, reason="resize", grace_ms=120_000))
    said = agent.decide(DrainDecided(round=1, reason="preempted", leaving=(NODE,), grace_ms=20_000))
    assert said == [plan.StartGrace(round=1, grace_ms=20_000)]
    assert agent(plan.GraceOver(round=1)) == [plan.TerminateWorkers(round=1)]


def test_without_any_decision_the_node_leaves_by_itself_before_its_deadline(agent: Agent) -> None:
    agent(notice())
    assert agent(plan.EndRequested(reason="preempted", exit_code=0)) == [plan.TerminateWorkers(round=1)]
    agent(exited(0, -15), exited(1, -15))
    assert agent.facts[-1] == NodeLeft(node=NODE, reason="preempted")
    assert agent.said[-1] == plan.Leave(exit_code=0)


@pytest.mark.parametrize(("after_ms", "reclassified"), [(20_000, True), (60_000, True), (60_001, False)])
def test_a_notice_soon_after_a_failure_reclassifies_it(agent: Agent, after_ms: int, reclassified: bool) -> None:
    agent(exited(0, 1), exited(1, -15, at_ms=NOW_MS + 100))
    assert [fact.failure for fact in agent.facts if isinstance(fact, NodeFailed)] == ["app_failed"]
    agent(notice(at_ms=NOW_MS + after_ms))
    again = [fact for fact in agent.facts if isinstance(fact, NodeReclassified)]
    assert [(fact.round, fact.failure) for fact in again] == ([(1, "infra_failed")] if reclassified else [])


def test_a_failure_after_a_notice_is_the_infrastructures_at_once(agent: Agent) -> None:
    agent(notice(), exited(0, 1, at_ms=NOW_MS + 90_000), exited(1, -15, at_ms=NOW_MS + 90_001))
    (failed,) = [fact for fact in agent.facts if isinstance(fact, NodeFailed)]
    assert failed.failure == "infra_failed"


# Results ------------------------------------------------------------------------------------------------------------


def test_the_failure_that_came_first_by_its_own_file_is_the_first_cause(agent: Agent) -> None:
    agent(
        exited(1, 1, at_ms=NOW_MS + 900, message="connection closed by peer"),
        exited(0, -15, at_ms=NOW_MS + 100, message="KeyError: 'loss'"),
    )
    (failed,) = [fact for fact in agent.facts if isinstance(fact, NodeFailed)]
    assert [(each.rank, each.message) for each in failed.exits] == [
        (0, "KeyError: 'loss'"),
        (1, "connection closed by peer"),
    ]


def test_a_worker_that_was_ended_for_another_is_never_the_first_cause(agent: Agent) -> None:
    agent(exited(1, 3, at_ms=NOW_MS + 900), exited(0, -15, at_ms=NOW_MS + 100))
    (failed,) = [fact for fact in agent.facts if isinstance(fact, NodeFailed)]
    assert [(each.rank, each.code) for each in failed.exits] == [(1, 3), (0, -15)]


def test_memory_used_up_is_the_applications_even_after_a_notice(agent: Agent) -> None:
    agent(notice(), exited(0, -9, out_of_memory=True), exited(1, -15))
    (failed,) = [fact for fact in agent.facts if isinstance(fact, NodeFailed)]
    assert failed.failure == "app_failed"


def test_exit_75_is_the_infrastructures(agent: Agent) -> None:
    agent(exited(0, 75), exited(1, -15))
    (failed,) = [fact for fact in agent.facts if isinstance(fact, NodeFailed)]
    assert failed.failure == "infra_failed"


def test_every_worker_has_a_state_from_its_start_to_its_end(agent: Agent) -> None:
    assert agent.states == ["INIT", "INIT"]
    agent(plan.WorkerStepped(round=1, rank=0, step=4), plan.WorkerStepped(round=1, rank=1, step=5))
    assert agent.states == ["HEALTHY", "HEALTHY"]
    agent(stuck())
    assert agent.states == ["UNHEALTHY", "UNHEALTHY"]
    agent(plan.WorkerStepped(round=1, rank=1, step=6))
    assert agent.states == ["HEALTHY", "HEALTHY"]
    agent(exited(0, 0))
    assert agent.states == ["SUCCEEDED", "HEALTHY"]
    agent(exited(1, 2))
    assert agent.states == ["SUCCEEDED", "FAILED"]


def test_workers_that_end_because_they_were_to_are_stopped(agent: Agent) -> None:
    agent.decide(DrainDecided(round=1, reason="resize", grace_ms=10_000))
    agent(plan.StopAgreed(round=1, step=9), plan.WorkerStopping(round=1, rank=0, step=9), exited(0, 0))
    agent(plan.GraceOver(round=1), exited(1, -15))
    assert agent.states == ["STOPPED", "STOPPED"]


# Stuck and unkillable workers ---------------------------------------------------------------------------------------


def test_stuck_workers_are_told_once_until_they_get_on(agent: Agent) -> None:
    agent(plan.WorkerStepped(round=1, rank=0, step=7), stuck(), stuck())
    agent(plan.WorkerStepped(round=1, rank=0, step=8), stuck())
    told = [fact for fact in agent.facts if isinstance(fact, NodeStuck)]
    assert [(fact.last_step, fact.stacks) for fact in told] == [(7, "here"), (8, "here")]


def test_workers_that_are_being_stopped_are_not_stuck(agent: Agent) -> None:
    agent.decide(DrainDecided(round=1, reason="resize", grace_ms=10_000))
    assert agent(stuck()) == [plan.Ignored(what="repeated or foreign stuck workers")]


def test_a_stuck_round_is_ended_without_an_agreement(agent: Agent) -> None:
    agent(stuck())
    assert agent.decide(DrainDecided(round=1, reason="stuck")) == [plan.TerminateWorkers(round=1)]


@pytest.mark.parametrize("fails", [False, True], ids=["in a drain", "beside a failure"])
def test_a_worker_that_no_kill_ends_is_named_and_the_node_leaves(agent: Agent, fails: bool) -> None:
    if fails:
        agent(exited(1, 1))
    else:
        agent.decide(DrainDecided(round=1, reason="resize", grace_ms=0))
        agent(exited(1, -15))
    agent(exited(0, -9, fenced=True))
    *_, ended, left = agent.facts
    assert isinstance(ended, NodeFailed if fails else NodeDrained)
    assert ended.fenced == (0,)
    assert left == NodeLeft(node=NODE, reason="fenced")
    assert agent.said[-1] == plan.Leave(exit_code=1)
