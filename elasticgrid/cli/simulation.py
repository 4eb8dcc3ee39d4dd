"""One decision about the size with no server: a window from a file of steps, and the rules asked about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from elasticgrid.core.errors import InvalidInput, NotFound
from elasticgrid.core.events import RuleCheck, Signals
from elasticgrid.core.samples import SAMPLE_VERSION, SampleBatch, StepSample, admit
from elasticgrid.core.scaling import Ruling, Situation, rule_on
from elasticgrid.core.spec import ScalingPolicy
from elasticgrid.core.window import Window, observe, open_window, signals_of

_S: Final = 1_000_000
_MAX_BYTES: Final = 64 * 1024 * 1024
_ACTIONS: Final = {"up": "scale_up", "down": "scale_down", "hold": "hold"}

_Finite = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step in the file; what else is not given is 0, and `nodes` the size that is asked about."""

    duration_s: _Positive
    step: int = 0
    queue_s: _Finite = 0.0
    data_wait_s: _Finite = 0.0
    nodes: int | None = None
    tokens: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0


class WindowView(msgspec.Struct, frozen=True, kw_only=True):
    """The window, in the units people think in.

    Attributes:
        samples: steps that count; `dropped` were taken at another size and say nothing of this one.
        mean_active_s: of a step, without waiting for a worker.
        median_step_s, median_queue_s: what the rules go by.
    """

    samples: int
    nodes: int
    mean_step_s: float
    mean_queue_s: float
    mean_active_s: float
    queue_fraction: float
    throughput_tokens_per_s: float
    median_step_s: float
    median_queue_s: float
    dropped: int
    clamped: int


class DecisionView(msgspec.Struct, frozen=True, kw_only=True):
    """What would be decided: the rule that spoke, its reason, and every rule that was asked."""

    action: str
    current_nodes: int
    target_nodes: int
    reason: str
    rule: str
    signals: dict[str, float]
    checks: tuple[RuleCheck, ...]


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """The window and the decision."""

    window: WindowView
    decision: DecisionView


def read_steps(path: Path) -> tuple[Step, ...]:
    """The steps in a JSON file: a list of `{"step", "duration_s", "queue_s", "nodes", "tokens"}`.

    Raises:
        NotFound: there is no such file.
        InvalidInput: it is no such list.
    """
    try:
        with path.open("rb") as file:
            source = file.read(_MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFound("there is no such file", where=str(path)) from error
    except OSError as error:
        raise InvalidInput(f"the file cannot be read: {error.strerror}", where=str(path)) from error
    if len(source) > _MAX_BYTES:
        raise InvalidInput(f"the file has more than {_MAX_BYTES:,} bytes", where=str(path))
    try:
        return tuple(msgspec.json.decode(source, type=list[Step]))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(
            f"this is no list of steps: {_why_no_steps(source, error)}",
            where=str(path),
            hint='[{"step": 1, "duration_s": 2.5, "queue_s": 0.4, "nodes": 8}, ...]',
        ) from error


def _why_no_steps(source: bytes, error: Exception) -> str:
    """What is wrong with it as JSON, before what is wrong with what the JSON says."""
    try:
        msgspec.json.decode(source)
    except (msgspec.MsgspecError, ValueError, RecursionError) as no_json:
        return "the JSON is cut short" if "truncated" in str(no_json) else str(no_json)
    return str(error)


def simulate_decision(
    steps: tuple[Step, ...],
    *,
    nodes: int,
    min_nodes: int,
    max_nodes: int,
    cooldown_s: float,
    target_step_s: float | None,
    window_steps: int,
) -> Simulated:
    """Ask the rules what they would decide after these steps.

    The steps are all the evidence there is, so none is left out for warming up and no time span is asked for. No change
    went before, so that no cooldown holds anything back.

    Args:
        steps: in order.
        nodes: the size now.
        min_nodes, max_nodes: the bounds.
        cooldown_s: of the policy, shown with the signals.
        target_step_s: what is fast enough; None never shrinks.
        window_steps: the last so many steps count.

    Raises:
        InvalidInput: a number cannot be meant.
    """
    if not 1 <= min_nodes <= max_nodes:
        raise InvalidInput(f"{min_nodes} to {max_nodes} are no bounds", where="--min-nodes", hint="1 or more, in order")
    policy = ScalingPolicy(
        min_evidence_ms=0,
        warmup_steps=0,
        window_steps=window_steps,
        cooldown_up_ms=round(cooldown_s * 1000),
        cooldown_down_ms=round(cooldown_s * 1000),
        target_step_us=round(target_step_s * _S) if target_step_s is not None else None,
    )
    window, at_ms = _window(steps, nodes, policy)
    signals = signals_of(window)
    situation = Situation(
        current_nodes=nodes, min_nodes=min_nodes, max_nodes=max_nodes, start_nodes=nodes, round=window.round
    )
    ruling = rule_on(situation, signals, policy, at_ms)
    return Simulated(window=_window_view(signals), decision=_decision_view(ruling, nodes, signals, cooldown_s))


def _window(steps: tuple[Step, ...], nodes: int, policy: ScalingPolicy) -> tuple[Window, int]:
    """The window after all steps, in a time in which they follow each other at once."""
    window = open_window(1, nodes, 1, policy)
    at_ms = 0.0
    for seq, step in enumerate(steps):
        sample = StepSample(
            seq=seq,
            step=seq + 1,
            duration_s=step.duration_s,
            queue_s=step.queue_s,
            data_wait_s=step.data_wait_s,
            tokens=step.tokens,
            nodes=step.nodes if step.nodes is not None else nodes,
            time_ms=0,
        )
        batch = SampleBatch(version=SAMPLE_VERSION, round=1, rank=0, samples=[sample])
        admitted = admit(batch, sample)
        if isinstance(admitted, str):
            raise InvalidInput(f"this step cannot be: {admitted.replace('_', ' ')}", where=f"--samples [{seq}]")
        at_ms += step.duration_s * 1000
        window = observe(window, (admitted,), round(at_ms))
    return window, round(at_ms)


def _window_view(signals: Signals) -> WindowView:
    step_s, queue_s = signals.step_mean_us / _S, signals.queue_mean_us / _S
    return WindowView(
        samples=signals.steps,
        nodes=signals.nodes if signals.steps else 0,
        mean_step_s=step_s,
        mean_queue_s=queue_s,
        mean_active_s=max(step_s - queue_s, 0.0),
        queue_fraction=queue_s / step_s if step_s else 0.0,
        throughput_tokens_per_s=signals.tokens * _S / signals.window_us if signals.window_us else 0.0,
        median_step_s=signals.step_us / _S,
        median_queue_s=signals.queue_us / _S,
        dropped=signals.dropped,
        clamped=signals.clamped,
    )


def _decision_view(ruling: Ruling, nodes: int, signals: Signals, cooldown_s: float) -> DecisionView:
    view = _window_view(signals)
    told: dict[str, Any] = {
        "samples": view.samples,
        "queue_fraction": view.queue_fraction,
        "mean_step_s": view.mean_step_s,
        "mean_queue_s": view.mean_queue_s,
        "nodes": view.nodes or nodes,
        "cooldown_s": cooldown_s,
    }
    return DecisionView(
        action=_ACTIONS[ruling.action],
        current_nodes=nodes,
        target_nodes=ruling.target_nodes,
        reason=ruling.reason,
        rule=ruling.rule,
        signals=told,
        checks=ruling.checks,
    )
