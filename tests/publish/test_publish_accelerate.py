"""The tracker for Accelerate, with a real `Accelerator` on the processor."""

from __future__ import annotations

from typing import Any

import pytest

import elasticgrid
from elasticgrid import environment as env
from elasticgrid.core.errors import InvalidInput

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed: it is in the extra `frameworks`")

pytestmark = pytest.mark.torch

UNREACHABLE = {env.NATS_URL: "nats://127.0.0.1:9", env.TENANT: "t", env.JOB: "j"}


def train(tracker: Any, logs: list[tuple[dict[str, Any], int | None]]) -> None:
    accelerator = accelerate.Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("training", config={"lr": 0.1})
    for values, step in logs:
        accelerator.log(values, step=step)
    accelerator.end_training()


def tracker_for(environ: dict[str, str], **more: Any) -> Any:
    from elasticgrid.publish.accelerate_tracker import ElasticGridTracker

    return ElasticGridTracker(elasticgrid.publisher(environ), **more)


def test_every_step_that_is_logged_is_reported_once() -> None:
    tracker = tracker_for(UNREACHABLE)
    pub = tracker.tracker
    try:
        logs = [({"loss": 1.0, "tokens": 64, "data_wait_s": 0.0, "other": "x"}, step) for step in range(1, 6)]
        train(tracker, [*logs, ({"accuracy": 0.5}, 5), ({"loss": 0.5}, None)])
        assert (pub.steps_completed, pub.stats.buffered, pub.stats.refused) == (6, 6, 0)
    finally:
        pub.close(0.0)


def test_logs_every_so_many_steps_count_as_those_steps_and_bad_values_do_not_raise() -> None:
    tracker = tracker_for(UNREACHABLE, steps_per_log=10)
    pub = tracker.tracker
    try:
        train(tracker, [({"loss": torch.tensor(1.0)}, 10), ({"loss": "low", "checkpoint_s": "long"}, 20)])
        assert pub.steps_completed == 20
        assert pub.stats.buffered == 10
    finally:
        pub.close(0.0)


def test_fewer_than_one_step_between_two_logs_is_refused() -> None:
    with pytest.raises(InvalidInput):
        tracker_for({}, steps_per_log=0)
