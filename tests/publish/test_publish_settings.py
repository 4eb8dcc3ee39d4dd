"""The hook's environment: what it reads, and that nothing in it can break a trainer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import elasticgrid
from elasticgrid import environment as env

NAMES = (
    "RANK",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    env.ROUND,
    env.RESUME_STEP,
    env.RESUME_URI,
    env.CHECKPOINT_DIR,
    env.TENANT,
    env.JOB,
)


def test_a_worker_knows_its_place_and_where_it_resumes() -> None:
    pub = elasticgrid.publisher(
        {
            "RANK": "3",
            "WORLD_SIZE": "8",
            env.ROUND: "2",
            env.RESUME_STEP: "120",
            env.RESUME_URI: "/checkpoints/step-120",
            env.CHECKPOINT_DIR: "/checkpoints",
        }
    )
    assert (pub.rank, pub.world_size, pub.round, pub.resume_step) == (3, 8, 2, 120)
    assert (pub.resume_uri, pub.checkpoint_dir) == ("/checkpoints/step-120", "/checkpoints")
    with pub.step(tokens=1):
        pass
    assert pub.steps_completed == 121


def test_outside_the_grid_the_hook_counts_steps_and_does_nothing_else() -> None:
    pub = elasticgrid.publisher({})
    assert (pub.rank, pub.world_size, pub.round, pub.resume_step) == (0, 1, 0, 0)
    assert (pub.resume_uri, pub.checkpoint_dir, pub.active) == (None, None, False)
    for item in pub.data([1, 2, 3]):
        with pub.step(tokens=item) as step:
            step.loss = 1.0
        assert not pub.should_stop()
    pub.checkpointed(3, "/nowhere")
    assert pub.flush(0.0)
    pub.close()
    pub.close()
    assert pub.stats == elasticgrid.PublisherStats(
        published=0, dropped=0, refused=0, buffered=0, reconnects=0, problem=""
    )
    assert pub.steps_completed == 3


@pytest.mark.parametrize(("name", "value"), [("RANK", "first"), ("WORLD_SIZE", "0"), (env.RESUME_STEP, "-1")])
def test_an_environment_that_cannot_be_read_makes_the_hook_silent_and_says_why(name: str, value: str) -> None:
    pub = elasticgrid.publisher({name: value, env.AGENT_SOCKET: "/nowhere", env.JOB: "j"})
    assert not pub.active
    assert name in pub.stats.problem
    with pub.step():
        pass
    assert not pub.should_stop()


@given(st.dictionaries(st.sampled_from(NAMES), st.text()))
def test_no_environment_makes_the_hook_raise(environ: dict[str, str]) -> None:
    pub = elasticgrid.publisher(environ)
    with pub.step(tokens=1):
        pass
    assert pub.steps_completed == pub.resume_step + 1
