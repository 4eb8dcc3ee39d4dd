"""What failures cost a job: its two budgets, the pause before the next round, and the time in which a blame may change.

All of it is a fold over recorded events and their times, so leaving, rejoining or a restart of anything resets nothing.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec.structs import replace

from elasticgrid.core import events as ev
from elasticgrid.core.job import CountedFailure, JobState, NodeState

#: A notice, or the loss of a node, this long after an exit shows that the infrastructure is to blame for it.
DISRUPTION_MS: Final = 60_000
#: So much time in which all members train gives one infrastructure failure back.
REFUND_MS: Final = 600_000
#: The pause before the round that follows the second infrastructure failure; each further one doubles it.
PAUSE_FIRST_MS: Final = 10_000
PAUSE_MOST_MS: Final = 600_000

#: Hardware that breaks on so many nodes of one job within this time is broken by the job.
DEVICE_ERRORS: Final = 3
DEVICE_ERRORS_WITHIN_MS: Final = 3_600_000

Blame = Literal["app_failed", "infra_failed"]


def charged(state: JobState, blame: Blame, *, at_ms: int, text: str, open_to_notice: bool = False) -> JobState:
    """The job after a failure of its round.

    Args:
        at_ms: when it was recorded.
        text: what happened, for people.
        open_to_notice: whether an application's failure may still turn out to be the infrastructure's, so that the job
            is not to be ended for it before that time is over.
    """
    state = health_counted(state, at_ms)
    settled_ms = at_ms + DISRUPTION_MS if open_to_notice and blame == "app_failed" else at_ms
    failure = CountedFailure(round=state.round, at_ms=at_ms, blame=blame, settled_ms=settled_ms)
    if blame == "app_failed":
        return replace(state, app_failures=state.app_failures + 1, failure_text=text, last_failure=failure)
    return replace(
        state,
        infra_failures=state.infra_failures + 1,
        infra_charged=state.infra_charged + 1,
        failure_text=text,
        last_failure=failure,
    )


def device_failed(state: JobState, node: NodeState, *, at_ms: int, text: str) -> JobState:
    """The job after the hardware of one of its nodes failed.

    The node is to be replaced, as one that gave notice is, and the job is charged nothing: the node may break one job
    after the other. When it happens to node after node of this job in a short time, the job is what breaks them.
    """
    lately = {each: when for each, when in state.device_errors.items() if at_ms - when < DEVICE_ERRORS_WITHIN_MS}
    errors = {**lately, node.id: at_ms}
    nodes = state.nodes.with_part(node.id, replace(node, notice_ms=node.notice_ms or at_ms))
    state = replace(state, device_errors=errors, nodes=nodes)
    if len(errors) >= DEVICE_ERRORS:
        text = f"{text}; {len(errors)} nodes of this job had an error of their hardware"
        return charged(state, "app_failed", at_ms=at_ms, text=text)
    return replace(health_counted(state, at_ms), failure_text=text)


def reclassified(state: JobState, round_number: int, *, at_ms: int, text: str) -> JobState:
    """The job after evidence that the infrastructure is to blame for what failed in a round; the same if there is none.

    Args:
        at_ms: when the evidence was recorded; later than `DISRUPTION_MS` after the failure it changes nothing.
    """
    failure = state.last_failure
    if failure is None or failure.blame != "app_failed" or failure.round != round_number:
        return state
    if at_ms - failure.at_ms > DISRUPTION_MS:
        return state
    return replace(
        state,
        app_failures=state.app_failures - 1,
        infra_failures=state.infra_failures + 1,
        infra_charged=state.infra_charged + 1,
        failure_text=f"{state.failure_text}; {text}" if state.failure_text else text,
        last_failure=replace(failure, blame="infra_failed", settled_ms=failure.at_ms),
    )


def health_counted(state: JobState, until_ms: int) -> JobState:
    """The job with the time its round was healthy until `until_ms` taken in; once for each round."""
    if not state.round_active_ms or state.healthy_round == state.round:
        return state
    healthy_ms = state.healthy_ms + max(until_ms - state.round_active_ms, 0)
    return replace(
        state,
        healthy_round=state.round,
        healthy_ms=healthy_ms % REFUND_MS,
        infra_charged=max(state.infra_charged - healthy_ms // REFUND_MS, 0),
    )


def budget_spent(state: JobState) -> str:
    """Which budget is used up, as a sentence; empty while neither is."""
    assert state.spec is not None
    if state.app_failures > state.spec.max_restarts:
        return f"failures of the application: {state.app_failures}, restarts allowed: {state.spec.max_restarts}"
    if state.infra_charged > state.spec.max_infra_restarts:
        allowed = state.spec.max_infra_restarts
        return f"failures of the infrastructure: {state.infra_charged}, restarts allowed: {allowed}"
    return ""


def settled_at_ms(state: JobState) -> int:
    """From when on the last failure's blame is final; 0 when there was none."""
    return state.last_failure.settled_ms if state.last_failure is not None else 0


def restart_at_ms(state: JobState) -> int:
    """From when on a round may begin again after a failure of the infrastructure; 0 when at once."""
    failure = state.last_failure
    if failure is None or failure.blame != "infra_failed" or state.infra_charged < 2:
        return 0
    return failure.at_ms + min(PAUSE_FIRST_MS << min(state.infra_charged - 2, 16), PAUSE_MOST_MS)


def is_ambiguous(failed: ev.NodeFailed, *, on_spot: bool) -> bool:
    """Whether a notice that is still on its way may explain a failure that is the application's so far.

    A signal is what a machine that is taken away ends workers with; on spot any exit may be its consequence.
    """
    first = failed.exits[0].code if failed.exits else 0
    return failed.failure == "app_failed" and (on_spot or first < 0 or 128 < first <= 128 + 64)
