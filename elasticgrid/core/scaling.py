"""How big a job should be: an ordered tuple of small rules, of which the first that speaks decides.

Reading `RULES` is reading the policy. Every rule is a pure function of the job's situation, the signals and the time;
it returns what it compared, and a verdict if it has one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from elasticgrid.core.events import RuleCheck, ScaleAction, Signals
from elasticgrid.core.spec import PPM, ScalingPolicy

POLICY_NAME = "elasticgrid"
POLICY_VERSION = 2
HOUR_MS = 3_600_000
US_IN_S = 1_000_000
#: Signals older than this many steps (and than 30 s) say nothing of now.
STALE_STEPS = 10
STALE_MS = 30_000


class AppliedChange(msgspec.Struct, frozen=True, gc=False):
    """A change of size that took effect.

    Attributes:
        applied_ms: when every node of the new world had taken its first step.
        restart_ms: from the drain being asked to then.
        voluntary: decided by a rule; not the answer to a loss.
    """

    applied_ms: int
    from_nodes: int
    to_nodes: int
    restart_ms: int
    voluntary: bool


class Measured(msgspec.Struct, frozen=True, gc=False):
    """What a size was last seen to do. Throughput is tokens / window_us, capacity tokens / busy_us."""

    step_us: int
    tokens: int
    window_us: int
    busy_us: int
    queue_bound: bool


class Situation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the rules need to know of a job besides its signals.

    Attributes:
        current_nodes: the size that was last decided on, 0 before the first.
        round: the round that trains now, 0 before the first.
        paused: why no decision is wanted, empty when one is.
        in_flight_since_ms, in_flight: since when which change is under way.
        changes: applied changes, oldest first.
        measured: what each size did, by nodes.
        restart_ms: what a change costs this job: the median of what changes cost so far.
        rules_version: the version of the rules that are asked.
    """

    current_nodes: int
    min_nodes: int
    max_nodes: int
    start_nodes: int
    quantum: int = 1
    round: int = 0
    paused: str = ""
    in_flight_since_ms: int | None = None
    in_flight: str = ""
    changes: tuple[AppliedChange, ...] = ()
    measured: dict[int, Measured] = {}
    restart_ms: int = 0
    deadline_ms: int | None = None
    rules_version: int = POLICY_VERSION


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What a rule wants: a size and, for a hold, when time alone may end it."""

    target_nodes: int
    reason: str
    until_ms: int | None = None


class Ruling(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer of the whole policy."""

    action: ScaleAction
    target_nodes: int
    rule: str
    reason: str
    checks: tuple[RuleCheck, ...]
    until_ms: int | None


Numbers = dict[str, int]
Rule = Callable[[Situation, Signals, ScalingPolicy, int], tuple[Verdict | None, Numbers]]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.0f} s"


def paused(job: Situation, signals: Signals, policy: ScalingPolicy, as_of_ms: int) -> tuple[Verdict | None, Numbers]:
    """A paused job keeps its size."""
    if not job.paused:
        return None, {}
    return Verdict(job.current_nodes, f"{job.paused}; hold the current size"), {}


def bounds(job: Situation, signals: Signals, policy: ScalingPolicy, as_of_ms: int) -> tuple[Verdict | None, Numbers]:
    """A size outside the bounds goes to the nearest bound at once, with no evidence and no cooldown."""
    numbers = {"current_nodes": job.current_nodes, "min_nodes": job.min_nodes, "max_nodes": job.max_nodes}
    if job.current_nodes == 0:
        start = min(max(job.start_nodes, job.min_nodes), job.max_nodes)
        return Verdict(start, f"the job starts with {start} nodes"), numbers
    if job.current_nodes < job.min_nodes:
        return Verdict(job.min_nodes, f"{job.current_nodes} nodes are below the floor of {job.min_nodes}"), numbers
    if job.current_nodes > job.max_nodes:
        return Verdict(job.max_nodes, f"{job.current_nodes} nodes are above the ceiling of {job.max_nodes}"), numbers
    return None, numbers


def in_flight(job: Situation, signals: Signals, policy: ScalingPolicy, as_of_ms: int) -> tuple[Verdict | None, Numbers]:
    """While a change is under way no other is begun, until it has had its time."""
    if job.in_flight_since_ms is None:
        return None, {}
    numbers = {"since_ms": as_of_ms - job.in_flight_since_ms, "timeout_ms": policy.in_flight_timeout_ms}
    until = job.in_flight_since_ms + policy.in_flight_timeout_ms
    if as_of_ms >= until:
        return None, numbers
    return Verdict(job.current_nodes, f"a change is under way: {job.in_flight}", until), numbers


def evidence(job: Situation, signals: Signals, policy: ScalingPolicy, as_of_ms: int) -> tuple[Verdict | None, Numbers]:
    """Thin, foreign or stale evidence decides nothing."""
    here = signals.round == job.round
    steps = signals.round_steps if here else 0
    span_ms = signals.evidence_ms if here else 0
    numbers = {
        "steps": steps,
        "min_steps": policy.min_samples,
        "evidence_ms": span_ms,
        "min_evidence_ms": policy.min_evidence_ms,
    }
    where = "since the gap in the samples" if here and signals.gap_until_ms else "in this world"
    if steps < policy.min_samples or signals.step_us <= 0:
        return Verdict(job.current_nodes, f"{steps} of {policy.min_samples} steps seen {where}"), numbers
    if span_ms < policy.min_evidence_ms:
        reason = f"{_seconds(span_ms)} of {_seconds(policy.min_evidence_ms)} of evidence seen {where}"
        return Verdict(job.current_nodes, reason), numbers
    stale_ms = max(STALE_MS, STALE_STEPS * signals.step_us // 1000)
    age_ms = as_of_ms - signals.last_sample_ms
    numbers |= {"age_ms": age_ms, "max_age_ms": stale_ms}
    if age_ms > stale_ms:
        return Verdict(job.current_nodes, f"no step has been reported for {_seconds(age_ms)}"), numbers
    return None, numbers


def no_time(job: Situation, signals: Signals, policy: ScalingPolicy, as_of_ms: int) -> tuple[Verdict | None, Numbers]:
    """With less time left than a change costs, none is begun."""
    if job.deadline_ms is None:
        return None, {}
    left_ms = job.deadline_ms - as_of_ms
    numbers = {"time_left_ms": left_ms, "restart_ms": job.restart_ms}
    if left_ms >= job.restart_ms:
        return None, numbers
    reason = f"{_seconds(max(left_ms, 0))} are left and a change costs {_seconds(job.restart_ms)}"
    return Verdict(job.current_nodes, reason), numbers


def cooldown(job: Situation, signals: Signals, policy: ScalingPolicy, as_of_ms: int) -> tuple[Verdict | None, Numbers]:
    """A change that is wanted too soon after the last one waits.

    It asks the rules behind it what they want, so that a hold names the change it holds back.
    """
    wanted = _wanted(job, signals, policy, as_of_ms)
    changes = [change for change in job.changes if change.voluntary]
    if wanted is None or not changes:
        return None, {}
    last = changes[-1]
    up = wanted.target_nodes > job.current_nodes
    direction = "up" if up else "down"
    wait_ms = policy.cooldown_up_ms if up else policy.cooldown_down_ms
    since_ms = as_of_ms - last.applied_ms
    numbers = {"since_change_ms": since_ms, f"cooldown_{direction}_ms": wait_ms}
    what = f"{direction} {job.current_nodes} -> {wanted.target_nodes}"

    def hold(reason: str, until_ms: int) -> tuple[Verdict, Numbers]:
        return Verdict(job.current_nodes, f"{what} waits: {reason}", until_ms), numbers

    if since_ms < wait_ms:
        return hold(
            f"the last change was {_seconds(since_ms)} ago, cooldown {_seconds(wait_ms)}",
            last.applied_ms + wait_ms,
        )
    if (last.to_nodes > last.from_nodes) != up and since_ms < policy.reversal_ms:
        gain, needed = _reversal_gain(job, signals, policy, wanted)
        numbers |= {"reversal_ms": policy.reversal_ms, "gain_ppm": gain, "needed_gain_ppm": needed}
        if gain < needed:
            return hold(
                f"it reverses a change of {_seconds(since_ms)} ago and gains {_percent(gain, PPM)},"
                f" needed {_percent(needed, PPM)}",
                last.applied_ms + policy.reversal_ms,
            )
    hour = [change for change in changes if as_of_ms - change.applied_ms < HOUR_MS]
    numbers |= {"changes_in_hour": len(hour), "max_changes_per_hour": policy.max_changes_per_hour}
    if len(hour) >= policy.max_changes_per_hour:
        return hold(f"{len(hour)} changes in the last hour", hour[-policy.max_changes_per_hour].applied_ms + HOUR_MS)
    budget_ms = policy.max_restart_ppm * HOUR_MS // PPM
    spent_ms = sum(change.restart_ms for change in hour)
    numbers |= {
        "restarts_in_hour_ms": spent_ms,
        "next_restart_ms": job.restart_ms,
        "restart_budget_ms": budget_ms,
    }
    if hour and spent_ms + job.restart_ms > budget_ms:
        return hold(
            f"changes took {_seconds(spent_ms)} of the last hour, of {_seconds(budget_ms)} allowed",
            hour[0].applied_ms + HOUR_MS,
        )
    return None, numbers


def _wanted(job: Situation, signals: Signals, policy: ScalingPolicy, as_of_ms: int) -> Verdict | None:
    for rule in (queue_bound, idle):
        verdict, _ = rule(job, signals, policy, as_of_ms)
        if verdict is not None:
            return verdict if verdict.target_nodes != job.current_nodes else None
    return None


def _reversal_gain(job: Situation, signals: Signals, policy: ScalingPolicy, wanted: Verdict) -> tuple[int, int]:
    """Gain and twice the gain that is normally needed: of growth the queue share, of shrinking the headroom left."""
    if wanted.target_nodes > job.current_nodes:
        return signals.queue_us * PPM // signals.step_us, min(2 * policy.target_queue_ppm, PPM)
    load = _load_ppm(job, signals, wanted.target_nodes)
    return max(PPM - load, 0), min(2 * (PPM - policy.shrink_margin_ppm), PPM)


def queue_bound(
    job: Situation, signals: Signals, policy: ScalingPolicy, as_of_ms: int
) -> tuple[Verdict | None, Numbers]:
    """Steps that wait for a worker want more workers, as long as more workers have been worth it."""
    numbers = {
        "queue_us": signals.queue_us,
        "step_us": signals.step_us,
        "target_queue_ppm": policy.target_queue_ppm,
    }
    nodes = job.current_nodes
    if signals.step_us <= 0 or signals.queue_us * PPM < policy.target_queue_ppm * signals.step_us:
        return None, numbers
    share = _percent(signals.queue_us, signals.step_us)
    if nodes >= job.max_nodes:
        return Verdict(nodes, f"{share} of the step was spent waiting for a worker, at the ceiling of {nodes}"), numbers
    efficiency = _last_growth_efficiency_ppm(job, signals)
    if efficiency is not None:
        numbers |= {"last_growth_efficiency_ppm": efficiency, "min_efficiency_ppm": policy.min_efficiency_ppm}
        if efficiency < policy.min_efficiency_ppm:
            brought = f"but the last growth brought {_percent(efficiency, PPM)} of what its nodes promised"
            if not signals.tokens and job.rules_version > 1:
                brought += ", by how long steps take, since no tokens are reported"
            return Verdict(nodes, f"{share} of the step was spent waiting for a worker, {brought}"), numbers
    largest = max([nodes, *job.measured])
    target = max(nodes + 1, -(-nodes * policy.grow_factor_ppm // PPM))
    target = min(target, 2 * largest)
    target = min(-(-target // job.quantum) * job.quantum, job.max_nodes // job.quantum * job.quantum)
    numbers |= {"largest_measured_nodes": largest}
    if target <= nodes:
        return Verdict(nodes, f"{share} of the step was spent waiting for a worker; no larger size is allowed"), numbers
    return Verdict(target, f"{share} of the step was spent waiting for a worker; {nodes} -> {target}"), numbers


def _last_growth_efficiency_ppm(job: Situation, signals: Signals) -> int | None:
    """Relative gain in throughput over relative gain in nodes of the growth that led to the current size.

    Throughput is tokens by the time they took. Where they are not known of both sizes it is steps: growth that makes no
    step shorter is then taken for growth that does not pay, because nothing says that it does more work in each.
    Version 1 of the rules knew tokens only.
    """
    growths = [change for change in job.changes if change.voluntary and change.to_nodes > change.from_nodes]
    if not growths or growths[-1].to_nodes != job.current_nodes:
        return None
    before = job.measured.get(growths[-1].from_nodes)
    if before is None or not before.window_us or not signals.window_us:
        return None
    if job.rules_version == 1 and not before.tokens:
        return None
    if job.rules_version == 1 or (before.tokens and signals.tokens):
        gain = signals.tokens * before.window_us * PPM // (before.tokens * signals.window_us) - PPM
    else:
        gain = before.step_us * PPM // signals.step_us - PPM
    nodes_gain = job.current_nodes * PPM // growths[-1].from_nodes - PPM
    return gain * PPM // nodes_gain


def idle(job: Situation, signals: Signals, policy: ScalingPolicy, as_of_ms: int) -> tuple[Verdict | None, Numbers]:
    """A job that is comfortably faster than it needs to be, and would still be with fewer nodes, gives some back.

    Without a target nobody has said what fast enough is, and the size stays.
    """
    numbers = {
        "queue_us": signals.queue_us,
        "step_us": signals.step_us,
        "idle_queue_ppm": policy.idle_queue_ppm,
    }
    nodes = job.current_nodes
    if policy.target_step_us is None and policy.target_tokens_per_s is None:
        return None, numbers
    if signals.step_us <= 0 or signals.queue_us * PPM > policy.idle_queue_ppm * signals.step_us:
        return None, numbers
    target = min(nodes - 1, nodes * policy.shrink_factor_ppm // PPM) // job.quantum * job.quantum
    target = max(target, job.min_nodes)
    if target >= nodes:
        return None, numbers
    margin = policy.shrink_margin_ppm
    predicted_us = _predicted_step_us(job, signals, target)
    numbers |= {"smaller_nodes": target, "predicted_step_us": predicted_us, "shrink_margin_ppm": margin}
    enough = []
    if policy.target_step_us is not None:
        numbers["target_step_us"] = policy.target_step_us
        if predicted_us * PPM > policy.target_step_us * margin:
            return None, numbers
        allowed_us = policy.target_step_us * margin // PPM
        took = f"{predicted_us / US_IN_S:.3g} s of {allowed_us / US_IN_S:.3g} s allowed"
        enough.append(f"a step of {target} nodes would take {took}")
    if policy.target_tokens_per_s is not None:
        tokens, busy_us = _capacity(job, signals, target)
        capacity = tokens * US_IN_S // busy_us if busy_us else 0
        numbers |= {"predicted_tokens_per_s": capacity, "target_tokens_per_s": policy.target_tokens_per_s}
        if capacity * margin < policy.target_tokens_per_s * PPM:
            return None, numbers
        needed = -(-policy.target_tokens_per_s * PPM // margin)
        enough.append(f"{target} nodes would do {capacity:,} tokens/s of {needed:,} needed")
    # The load says something only where some of the capacity was seen to be free, or once not to be enough.
    if signals.data_wait_us > 0 or any(size.queue_bound for size in job.measured.values()):
        load = _load_ppm(job, signals, target)
        numbers["predicted_load_ppm"] = load
        if load > margin:
            return None, numbers
        enough = [f"{target} nodes would be loaded to {_percent(load, PPM)}"]
    elif job.rules_version == 1:  # which named the load also where it had not been asked
        enough = [f"{target} nodes would be loaded to {_percent(_load_ppm(job, signals, target), PPM)}"]
    share = _percent(signals.queue_us, signals.step_us)
    reason = f"{share} of the step was spent waiting for a worker and {' and '.join(enough)}; {nodes} -> {target}"
    return Verdict(target, reason), numbers


def _capacity(job: Situation, signals: Signals, nodes: int) -> tuple[int, int]:
    """(tokens, busy microseconds) that `nodes` nodes can do: measured, else in proportion from the current size.

    Proportion errs to the safe side when shrinking: with fewer nodes each one is at least as effective.
    """
    seen = job.measured.get(nodes)
    if seen is not None and seen.tokens and seen.busy_us:
        return seen.tokens, seen.busy_us
    return signals.tokens * nodes, signals.busy_us * job.current_nodes


def _predicted_step_us(job: Situation, signals: Signals, nodes: int) -> int:
    """How long a step's work takes with `nodes` nodes."""
    busy_us = signals.busy_us // max(signals.steps, 1)
    return busy_us * job.current_nodes // nodes


def _load_ppm(job: Situation, signals: Signals, nodes: int) -> int:
    """Today's demand as a share of what `nodes` nodes can do."""
    tokens, busy_us = _capacity(job, signals, nodes)
    if not tokens or not signals.window_us:
        return PPM
    return signals.tokens * busy_us * PPM // (tokens * signals.window_us)


def balanced(job: Situation, signals: Signals, policy: ScalingPolicy, as_of_ms: int) -> tuple[Verdict | None, Numbers]:
    """Nothing speaks for a change."""
    return Verdict(job.current_nodes, "the step is balanced; hold the current size"), {}


RuleName = Literal[
    "paused", "bounds", "in_flight", "evidence", "no_time", "cooldown", "queue_bound", "idle", "balanced"
]

#: The policy: asked in this order, the first that speaks decides.
RULES: tuple[tuple[RuleName, Rule], ...] = (
    ("paused", paused),
    ("bounds", bounds),
    ("in_flight", in_flight),
    ("evidence", evidence),
    ("no_time", no_time),
    ("cooldown", cooldown),
    ("queue_bound", queue_bound),
    ("idle", idle),
    ("balanced", balanced),
)


def rule_on(job: Situation, signals: Signals, policy: ScalingPolicy, as_of_ms: int) -> Ruling:
    """Ask the rules in order and return what the first that speaks says, with everything that was compared."""
    checks: list[RuleCheck] = []
    for name, rule in RULES:
        verdict, numbers = rule(job, signals, policy, as_of_ms)
        if verdict is None:
            checks.append(RuleCheck(rule=name, spoke=False, numbers=numbers))
            continue
        checks.append(RuleCheck(rule=name, spoke=True, numbers=numbers, says=verdict.reason))
        difference = verdict.target_nodes - job.current_nodes
        action: ScaleAction = "up" if difference > 0 else "down" if difference < 0 else "hold"
        return Ruling(
            action=action,
            target_nodes=verdict.target_nodes,
            rule=name,
            reason=verdict.reason,
            checks=tuple(checks),
            until_ms=verdict.until_ms,
        )
    raise AssertionError("the last rule always speaks")
