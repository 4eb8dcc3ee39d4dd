"""How workers ended: who failed, who was only stopped, and what is told as the reason."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elasticgrid.core.agent_state import Cause, Round, Worker, exit_state
from elasticgrid.core.events import ExitState, Member, WorkerExit, WorldDecided
from elasticgrid.core.worker_exits import exits_text, message_of

TRACEBACK = """\
step 3 of 10
Traceback (most recent call last):
  File "/srv/train.py", line 7, in <module>
    train()
  File "/srv/train.py", line 3, in train
    raise ValueError("no such data")
ValueError: no such data
destroying the process group
bye"""
CHAINED = """\
Traceback (most recent call last):
  File "a.py", line 1, in f
    {}["x"]
    ~~^^^^^
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in <module>
    raise RuntimeError("lost")
RuntimeError: lost"""


def told(code: int = 1, **fields: Any) -> WorkerExit:
    return WorkerExit(rank=0, code=code, **fields)


def ended(rank: int, code: int, *, first: int | None = 0, terminating: bool = False, **fields: Any) -> ExitState:
    """How the agent says that a worker of a round ended in which rank `first` had failed first."""
    member = Member(node="n", group_rank=0)
    world = WorldDecided(round=1, members=(member,), nproc_per_node=2, master_addr="h", master_port=1, resume=None)
    worker = Worker(rank=rank, step=3, code=code, **fields)
    current = Round(
        world=world,
        group_rank=0,
        cause=Cause(),
        workers=(worker,),
        first_failure=first,
        terminating=terminating,
    )
    return exit_state(current, worker, code)


# What is told as the reason -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last_lines", "message"),
    [
        (TRACEBACK, "ValueError: no such data"),
        # Only the end of a deep one was kept.
        ("\n".join(TRACEBACK.splitlines()[4:]), "ValueError: no such data"),
        (CHAINED, "RuntimeError: lost"),
        ("\n".join(f"[rank0]: {line}" for line in TRACEBACK.splitlines()), "ValueError: no such data"),
    ],
)
def test_the_error_of_a_traceback_is_the_reason_whatever_was_written_after_it(last_lines: str, message: str) -> None:
    assert message_of(told(last_lines=last_lines, state="FAILED")) == message


@pytest.mark.parametrize(
    ("last_lines", "message"),
    [
        ("step 3 of 10\n", "last output: step 3 of 10"),
        ("Traceback (most recent call last):", "last output: Traceback (most recent call last):"),
        ('  File "a.py", line 1, in f\n    cut', "last output: cut"),
        ("", ""),
        (" \n", ""),
    ],
)
def test_a_line_that_need_not_be_the_reason_is_told_as_the_last_one(last_lines: str, message: str) -> None:
    assert message_of(told(last_lines=last_lines)) == message
    assert message_of(told(-9, last_lines=last_lines, state="FAILED")) == message


def test_an_error_file_says_the_reason_before_all_output() -> None:
    assert message_of(told(message="Traceback\n  line 3\nKeyError: 'x'\n", last_lines=TRACEBACK)) == "KeyError: 'x'"


def test_what_a_stopped_worker_wrote_last_is_no_reason() -> None:
    assert message_of(told(-15, last_lines="step 3 of 10", state="STOPPED")) == ""


def test_those_that_were_stopped_are_told_apart_from_the_one_that_failed() -> None:
    exits = [WorkerExit(rank=1, code=3, state="FAILED")]
    exits += [WorkerExit(rank=rank, code=-15, state="STOPPED") for rank in (2, 0)]
    assert exits_text(exits) == "rank 1: 3, ranks 0, 2 were stopped because of it"
    assert exits_text(exits[:2]) == "rank 1: 3, rank 2 was stopped because of it"
    # As agents wrote it that said nothing of that.
    assert exits_text([told(3), WorkerExit(rank=1, code=-15)]) == "rank 0: 3, rank 1: -15"


# Who failed ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [-15, -9, 143, 137])
def test_a_worker_that_the_agent_ended_for_another_was_stopped(code: int) -> None:
    assert ended(1, code) == "STOPPED"
    assert ended(0, code) == "FAILED"
    assert ended(1, code, first=None, terminating=True) == "STOPPED"


@pytest.mark.parametrize(("code", "message"), [(1, ""), (-11, ""), (134, ""), (-15, "RuntimeError: lost")])
def test_a_worker_that_broke_by_itself_failed_although_another_one_did_first(code: int, message: str) -> None:
    assert ended(1, code, message=message) == "FAILED"


def test_a_worker_that_ended_with_success_did_not_fail() -> None:
    assert ended(1, 0) == "SUCCEEDED"
    assert ended(1, 0, stopping=True) == "STOPPED"


def test_an_end_that_was_recorded_without_its_state_is_still_read() -> None:
    old = msgspec.json.decode(b'{"rank":1,"code":-15}', type=WorkerExit)
    assert old.state is None
    assert b"state" not in msgspec.json.encode(old)
