"""A job and providers that the simulated logs of these tests are made of."""

from __future__ import annotations

from typing import Any

import msgspec

from elasticgrid.core.spec import JobSpec, ProviderSpec, ScalingPolicy

QUICK = ScalingPolicy(
    cooldown_up_ms=30_000,
    cooldown_down_ms=60_000,
    reversal_ms=60_000,
    target_tokens_per_s=5_000,
    default_restart_ms=10_000,
    min_evidence_ms=10_000,
    max_restart_ppm=1_000_000,
    max_changes_per_hour=30,
)


def job(name: str = "train", **changes: Any) -> JobSpec:
    spec = JobSpec(
        name=name,
        command=("python", "train.py"),
        min_nodes=1,
        max_nodes=4,
        max_restarts=1,
        grace_ms=5_000,
        join_timeout_ms=60_000,
        scaling=QUICK,
    )
    return msgspec.structs.replace(spec, **changes)


def providers() -> tuple[ProviderSpec, ...]:
    return (
        ProviderSpec(name="spot", max_nodes=2, market="spot", price_microdollars_per_hour=500_000),
        ProviderSpec(name="dear", max_nodes=6, price_microdollars_per_hour=2_000_000),
    )
