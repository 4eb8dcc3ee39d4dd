"""What a what-if changes: the policies of jobs, and the grid they run on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from elasticgrid.config.policy_file import setting_values
from elasticgrid.core import events as ev
from elasticgrid.core.spec import JobSpec, PlacementPolicy, ProviderSpec, ScalingPolicy

#: Which rules read a setting of the scaling policy, by the names that a job file has.
READ_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "min_samples": ("evidence",),
    "min_evidence_s": ("evidence",),
    "warmup_steps": ("evidence",),
    "window_steps": ("evidence", "queue_bound", "idle"),
    "target_queue_share": ("queue_bound",),
    "idle_queue_share": ("idle",),
    "grow_factor": ("queue_bound",),
    "shrink_factor": ("idle",),
    "cooldown_up_s": ("cooldown",),
    "cooldown_down_s": ("cooldown",),
    "reversal_s": ("cooldown",),
    "max_changes_per_hour": ("cooldown",),
    "max_restart_share": ("cooldown",),
    "min_efficiency": ("queue_bound",),
    "shrink_margin": ("idle",),
    "in_flight_timeout_s": ("in_flight",),
    "default_restart_s": ("cooldown", "no_time"),
    "target_step_s": ("idle",),
    "target_tokens_per_s": ("idle",),
}


class ChangedSetting(msgspec.Struct, frozen=True):
    """One setting of a job's policy: its path and both values in a job file's names and units; empty for none."""

    setting: str
    recorded: str
    what_if: str


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What is different.

    Attributes:
        scaling, placement: whole policies that stand instead of the jobs' own; None keeps those.
        scaling_values, placement_values: single fields that are set on top of that.
        providers: the grid instead of the recorded one; None keeps that.
        job: only this job's policy changes, as (tenant, job); all jobs' when None.
    """

    scaling: ScalingPolicy | None = None
    placement: PlacementPolicy | None = None
    scaling_values: dict[str, Any] = {}
    placement_values: dict[str, Any] = {}
    providers: tuple[ProviderSpec, ...] | None = None
    job: tuple[str, str] | None = None

    def spec(self, tenant: str, job: str, spec: JobSpec) -> JobSpec:
        """The job's specification under the other policy."""
        if self.job is not None and self.job != (tenant, job):
            return spec
        return msgspec.structs.replace(
            spec,
            scaling=msgspec.structs.replace(self.scaling or spec.scaling, **self.scaling_values),
            placement=msgspec.structs.replace(self.placement or spec.placement, **self.placement_values),
        )

    def event(self, event: ev.Event) -> ev.Event | None:
        """The event as it would have been; None for one about a provider that another grid does not have."""
        data = event.data
        if isinstance(data, ev.JobSubmitted):
            spec = self.spec(event.tenant, event.job, data.spec)
            return msgspec.structs.replace(event, data=msgspec.structs.replace(data, spec=spec))
        if self.providers is None:
            return event
        if isinstance(data, ev.ProviderDeclared | ev.ProviderWithdrawn):
            return None
        if isinstance(data, ev.ProviderCordoned | ev.ProviderUncordoned):
            return event if any(each.name == data.name for each in self.providers) else None
        return event

    def settings(self, tenant: str, job: str, spec: JobSpec) -> tuple[ChangedSetting, ...]:
        """What is different for a job, setting by setting."""
        other = self.spec(tenant, job, spec)
        found = []
        for section in ("scaling", "placement"):
            before, after = setting_values(getattr(spec, section)), setting_values(getattr(other, section))
            found += [
                ChangedSetting(f"{section}.{name}", value, after[name])
                for name, value in before.items()
                if value != after[name]
            ]
        return tuple(found)
