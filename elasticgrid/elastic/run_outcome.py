"""What became of a run, as one of its nodes saw it: a result, or the error that says why there is none."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NoReturn

import msgspec

from elasticgrid.core import errors
from elasticgrid.core.run_plan import Verdict, WorkerFailure, failures_of
from elasticgrid.core.run_state import RunState
from elasticgrid.elastic.config import LaunchConfig

#: Why a node ends that has no workers left and no bus.
BUS_LOST: Final = "bus_lost"

_ERRORS: Final[dict[str, type[errors.RendezvousError]]] = {
    "closed": errors.RendezvousClosed,
    "timed_out": errors.RendezvousTimedOut,
    "connection": errors.RendezvousConnectionFailed,
    "state": errors.RendezvousStateInvalid,
    "graceful_exit": errors.RendezvousGracefulExit,
    "exhausted": errors.RendezvousExhausted,
}
_HINTS: Final[dict[str, str]] = {
    "closed": "start again under another name",
    "timed_out": "start the other nodes, ask for fewer, or wait longer",
    "connection": "start the node again; it joins as a new one",
    "state": "give every node the same settings, or start under another name",
    "exhausted": "raise the most nodes, or wait longer",
}


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a run, as one of its nodes saw it.

    Attributes:
        outcome: `completed`; `left` when this node was made to leave before the end; `finished` when its workers were
            done and what became of the run is not known, because the bus did not come back.
        rounds: how many worlds there were; `nodes` in the last one, `ranks` of this node in it.
        restarts: rounds that failed by themselves.
        last_step: steps that are known to be done.
        log_dir: where this node's output is.
        shared_dir: the run's folder that all its nodes see; empty when it never had a round.
    """

    run_id: str
    node: str
    outcome: Literal["completed", "left", "finished"]
    rounds: int
    nodes: int
    ranks: tuple[int, ...]
    restarts: int
    last_step: int
    log_dir: str
    shared_dir: str = ""


class RunFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no result, for programs.

    Attributes:
        outcome: `failed`, or `interrupted` when a signal ended this node's part.
        code: the kind of the error.
        reason: what happened, in one line.
        failures: the workers that failed, root cause first.
    """

    run_id: str
    outcome: Literal["failed", "interrupted"]
    code: str
    reason: str
    failures: tuple[WorkerFailure, ...] = ()


def failure_of(run_id: str, error: errors.ElasticGridError) -> RunFailure:
    """What an error of a run says, for programs."""
    return RunFailure(
        run_id=run_id,
        outcome="interrupted" if isinstance(error, errors.RunInterrupted) else "failed",
        code=error.code,
        reason=error.what,
        failures=tuple(error.failures) if isinstance(error, errors.WorkersFailed) else (),
    )


def ranks_of(state: RunState, node: str, nproc_per_node: int) -> tuple[int, ...]:
    """The workers of the last round on a node."""
    for member in state.members:
        if member.node == node:
            first = member.group_rank * nproc_per_node
            return tuple(range(first, first + nproc_per_node))
    return ()


def refuse(found: Verdict, run_id: str) -> NoReturn:
    """Say why a node cannot take part, or not any more.

    Raises:
        RendezvousError: of the verdict's kind.
    """
    raise _ERRORS[found.kind](found.why, where=run_id, hint=_HINTS.get(found.kind, ""))


def result_of(
    config: LaunchConfig,
    state: RunState,
    node: str,
    found: Verdict | None,
    *,
    departure: str,
    exit_code: int,
    folder: Path,
    shared_dir: Path | None = None,
) -> RunResult:
    """The result of a node whose agent has ended.

    Args:
        config: the run's.
        state: the run as the node read it last.
        node: the node.
        found: what was found to end its part, if anything was.
        departure, exit_code: why its agent ended, in one word, and with what.
        folder: where its output is.
        shared_dir: the run's folder that all its nodes see; None when it never had a round.

    Raises:
        RendezvousError: it did not come to train with the others; its kind says why.
        WorkersFailed: workers failed, and no restart was left.
        RunFailed: a worker did not end.
        RunInterrupted: a signal ended it.
    """
    run_id = config.run_id
    if found is not None and departure != "terminated":
        refuse(found, run_id)
    if departure == "terminated":
        name = signal.Signals(exit_code - 128).name if exit_code > 128 else str(exit_code)
        raise errors.RunInterrupted(f"this node's part ended with {name}", where=run_id, exit_code=exit_code)
    if departure == "orphaned":
        raise errors.RendezvousConnectionFailed(
            f"the bus was away for {config.orphan_timeout_s:g} s, so this node ended itself",
            where=config.bus_url,
            hint="what was committed is kept; start the bus and the nodes again",
        )
    if departure == BUS_LOST and exit_code:
        raise errors.RendezvousConnectionFailed(
            f"no worker runs here, and the bus was away for {config.bus_timeout_s:g} s",
            where=config.bus_url,
            hint="what was committed is kept; start the bus and the nodes again",
        )
    if departure == "fenced":
        raise errors.RunFailed("a worker did not end although it was killed", where=run_id)
    if state.outcome == "failed":
        raise _workers_failed(run_id, state, folder)
    return RunResult(
        run_id=run_id,
        node=node,
        outcome="completed" if state.outcome == "completed" else "finished" if departure == BUS_LOST else "left",
        rounds=state.round,
        nodes=len(state.members),
        ranks=ranks_of(state, node, config.nproc_per_node),
        restarts=state.restarts_used,
        last_step=state.last_step,
        log_dir=str(folder),
        shared_dir=str(shared_dir) if shared_dir is not None else "",
    )


def _workers_failed(run_id: str, state: RunState, folder: Path) -> errors.WorkersFailed:
    failures = failures_of(state)
    return errors.WorkersFailed(
        state.outcome_reason,
        where=run_id,
        hint=f"the output of this node's workers is in {folder}",
        story=_story(failures, state.stuck.stacks if state.stuck is not None else ""),
        failures=failures,
    )


def _story(failures: Sequence[WorkerFailure], stacks: str) -> list[str]:
    """The root cause with all that was said of it, and one line for each other failure."""
    if not failures:
        return [f"  {line}" for line in stacks.splitlines()]
    root, *others = failures
    lines = ["root cause:", f"  {root.summary}", *(f"    {line}" for line in root.traceback.splitlines())]
    if others:
        lines += ["then:", *(f"  {other.summary}" for other in others)]
    return lines
