"""Each event in a sentence, for people."""

from __future__ import annotations

from elasticgrid.core import events as ev
from elasticgrid.core.gaps import cause_text
from elasticgrid.core.quotas import quota_text
from elasticgrid.core.worker_exits import exits_text


def event_text(event: ev.Event | ev.UnknownEvent) -> str:
    """What the event says, without its time, job and type."""
    if isinstance(event, ev.UnknownEvent):
        return f"a type this version does not know, version {event.schema_version}"
    return _text(event.data)


def placement_text(data: ev.PlacementDecided) -> str:
    """What a placement adds, drops and waits for."""
    changes = [
        f"{'+' if line.action == 'add' else '-'}{line.nodes} {line.provider}"
        for line in data.assignments
        if line.action != "keep"
    ]
    parts = [", ".join(changes) or "no change", data.waiting, data.policy_broken]
    return "; ".join(part for part in parts if part)


def _text(data: ev.EventData) -> str:
    match data:
        case (
            ev.JobSubmitted()
            | ev.JobCancelRequested()
            | ev.JobPauseRequested()
            | ev.JobResumeRequested()
            | ev.JobResizeRequested()
            | ev.JobPriorityRequested()
            | ev.JobInterruptRequested()
        ):
            return _request(data)
        case ev.TenantCreated() | ev.KeyCreated() | ev.KeyRevoked() | ev.QuotaSet():
            return _access(data)
        case ev.ProviderDeclared() | ev.ProviderWithdrawn() | ev.ProviderCordoned() | ev.ProviderUncordoned():
            return _provider(data)
        case (
            ev.ScaleDecided()
            | ev.PlacementDecided()
            | ev.DrainDecided()
            | ev.WorldDecided()
            | ev.OutcomeDecided()
            | ev.GapDecided()
        ):
            return _decision(data)
        case (
            ev.LaunchRequested()
            | ev.LaunchStarted()
            | ev.LaunchFailed()
            | ev.LaunchStopRequested()
            | ev.LaunchStopped()
            | ev.NodeLost()
        ):
            return _launch(data)
        case _:
            return _node(data)


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _request(
    data: ev.JobSubmitted
    | ev.JobCancelRequested
    | ev.JobPauseRequested
    | ev.JobResumeRequested
    | ev.JobResizeRequested
    | ev.JobPriorityRequested
    | ev.JobInterruptRequested,
) -> str:
    match data:
        case ev.JobSubmitted():
            return f"{data.spec.name}, {data.spec.min_nodes} to {data.spec.max_nodes} nodes"
        case ev.JobCancelRequested():
            return f"cancel{_because(data.reason)}"
        case ev.JobPauseRequested():
            return f"pause{_because(data.reason)}"
        case ev.JobResumeRequested():
            return f"resume{_because(data.reason)}"
        case ev.JobResizeRequested():
            return f"{data.min_nodes} to {data.max_nodes} nodes{_because(data.reason)}"
        case ev.JobPriorityRequested():
            return f"band {data.band}{_because(data.reason)}"
        case ev.JobInterruptRequested():
            return f"{', '.join(data.nodes)} at {data.provider} will be taken away{_because(data.reason)}"


def _access(data: ev.TenantCreated | ev.KeyCreated | ev.KeyRevoked | ev.QuotaSet) -> str:
    match data:
        case ev.TenantCreated():
            return f"tenant {data.name}{_because(data.note)}"
        case ev.KeyCreated():
            return f"key {data.prefix} of {data.tenant or 'the grid'} may {data.scope}{_because(data.label)}"
        case ev.KeyRevoked():
            return f"key {data.prefix} is revoked{_because(data.reason)}"
        case ev.QuotaSet():
            return f"{data.tenant} may have {quota_text(data.quota)}{_because(data.reason)}"


def _provider(
    data: ev.ProviderDeclared | ev.ProviderWithdrawn | ev.ProviderCordoned | ev.ProviderUncordoned,
) -> str:
    match data:
        case ev.ProviderDeclared():
            spec = data.provider
            price = f"{spec.price_microdollars_per_hour / 1_000_000:g}"
            return f"{spec.name}: up to {spec.max_nodes} nodes of {spec.engine} at ${price}/h each"
        case ev.ProviderWithdrawn():
            return f"{data.name} left the configuration"
        case ev.ProviderCordoned():
            return f"{data.name} takes no new nodes{_because(data.reason)}"
        case ev.ProviderUncordoned():
            return f"{data.name} takes nodes again"


def _decision(data: ev.DecisionData) -> str:
    match data:
        case ev.ScaleDecided():
            sizes = f"{data.current_nodes} -> {data.target_nodes}"
            return f"{data.action} {sizes} by {data.rule}{_because(data.reason)}"
        case ev.PlacementDecided():
            return f"{data.placed_nodes} of {data.demand_nodes} nodes: {placement_text(data)}"
        case ev.DrainDecided():
            leaving = f", {', '.join(data.leaving)} leave" if data.leaving else ""
            return f"round {data.round} ends{_because(data.reason)}{leaving}"
        case ev.WorldDecided():
            start = f"step {data.resume.step}" if data.resume is not None else "the beginning"
            return f"round {data.round} of {len(data.members)} nodes from {start}"
        case ev.OutcomeDecided():
            return f"{data.outcome} after step {data.last_step}{_because(data.reason)}"
        case ev.GapDecided():
            silent_s = (data.until_ms - data.from_ms) / 1000
            return f"no sample of round {data.round} for {silent_s:.0f} s, {data.cause}: {cause_text(data)}"


def _launch(
    data: ev.LaunchRequested
    | ev.LaunchStarted
    | ev.LaunchFailed
    | ev.LaunchStopRequested
    | ev.LaunchStopped
    | ev.NodeLost,
) -> str:
    match data:
        case ev.LaunchRequested():
            return f"{data.attempt}: {data.nodes} nodes of {data.provider}"
        case ev.LaunchStarted():
            code = f" with bundle {data.bundle_sha256[:12]}" if data.bundle_sha256 else ""
            return f"{data.attempt} runs as {data.handle}{code}"
        case ev.LaunchFailed():
            return f"{data.attempt}: {data.failure}{_because(data.text)}"
        case ev.LaunchStopRequested():
            return f"{data.attempt} will be stopped{_because(data.reason)}"
        case ev.LaunchStopped():
            return f"{data.attempt} is stopped{_because(data.reason)}"
        case ev.NodeLost():
            return f"{data.node} is gone, {data.evidence}{_because(data.text)}"


def _node(
    data: ev.NodeJoined
    | ev.NodeStarted
    | ev.NodeCheckpointed
    | ev.NodeDrained
    | ev.NodeFinished
    | ev.NodeFailed
    | ev.NodeLeft
    | ev.NodePreemptionNotice
    | ev.NodeStuck
    | ev.NodeReclassified,
) -> str:
    match data:
        case ev.NodeJoined():
            return f"{data.node} of {data.provider} at {data.host}"
        case ev.NodeStarted():
            return f"{data.node} took step {data.step} of round {data.round}"
        case ev.NodeCheckpointed():
            return f"step {data.checkpoint.step} by {data.node}"
        case ev.NodeDrained():
            how = "stopped" if data.clean else "was terminated"
            return f"{data.node} {how} after step {data.last_step} of round {data.round}"
        case ev.NodeFinished():
            return f"{data.node} is done after step {data.last_step}"
        case ev.NodeFailed():
            return f"{data.node} failed in round {data.round}, {data.failure}; {exits_text(data.exits)}"
        case ev.NodeLeft():
            return f"{data.node} ends{_because(data.reason)}"
        case ev.NodePreemptionNotice():
            return f"{data.node} will be taken away, says {data.source}{_because(data.text)}"
        case ev.NodeStuck():
            return f"{data.node} is stuck after step {data.last_step} of round {data.round}{_because(data.detail)}"
        case ev.NodeReclassified():
            return f"{data.node}'s failure in round {data.round} is {data.failure} after all{_because(data.text)}"
