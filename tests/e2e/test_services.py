"""The services as processes of their own, by the commands of compose.yaml: jobs run through them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncGenerator, Iterator

import httpx
import pytest
from deployment import QUICK, TENANT, Deployment, deployment, job_file, trainer, up_and_down

from elasticgrid.bus.subjects import EVENTS_ROOT, SAMPLES_ROOT
from elasticgrid.core import events as ev
from elasticgrid.core.samples import SAMPLE_VERSION, SampleBatch, StepSample, encode_batch

pytestmark = [pytest.mark.server, pytest.mark.process]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployment(tmp_path_factory.mktemp("services")) as running:
        yield running


@pytest.fixture
async def grid(services: Deployment) -> AsyncGenerator[Deployment]:
    async with services.connected():
        yield services


async def test_a_job_that_is_waited_for_grows_with_its_load_shrinks_after_it_and_verifies(grid: Deployment) -> None:
    path = job_file(
        grid.box.folder,
        "load",
        up_and_down(),
        nodes={"min": 2, "max": 4, "initial": 2},
        scaling=QUICK,
    )
    answer = grid.box.run("submit", path, "--wait", "--json", timeout_s=150)
    assert answer.returncode == 0, answer.stderr
    summary, report = await grid.review(json.loads(answer.stdout)["job"]["id"])
    assert summary.worlds[:2] == (2, 4)
    assert summary.worlds[-1] == 2
    assert (summary.duplicate_steps, summary.lost_steps) == (0, 0)
    assert report.from_samples > 0
    assert set(summary.nodes_by_provider) == {"here", "beside"}


async def test_a_killed_worker_costs_the_steps_since_the_last_checkpoint_and_no_step_counts_twice(
    grid: Deployment,
) -> None:
    path = job_file(grid.box.folder, "worker", trainer(120, every=40), restarts={"application": 1})
    job = grid.submit(path)
    await grid.checkpoint(job, 40)
    await grid.step(job, 50, ranks=2)
    os.kill(grid.workers(job)[0], signal.SIGKILL)
    assert (await grid.outcome(job)).outcome == "completed"
    first, second = await grid.worlds(job)
    assert second.resume is not None
    assert second.resume.step == 40
    assert [member.node for member in first.members] == [member.node for member in second.members]
    summary, _ = await grid.review(job)
    assert (summary.steps, summary.duplicate_steps) == (120, 0)
    assert summary.lost_steps is not None
    assert 10 <= summary.lost_steps < 40
    state = await grid.state(job)
    assert (state.app_failures, state.infra_failures) == (1, 0)


async def test_a_node_whose_agent_is_killed_is_lost_and_replaced_and_the_job_ends_well(grid: Deployment) -> None:
    job = grid.submit(job_file(grid.box.folder, "agent", trainer(70)))
    await grid.checkpoint(job, 20)
    os.kill(grid.agents(job)[0], signal.SIGKILL)
    lost = await grid.event(job, lambda event: isinstance(event.data, ev.NodeLost))
    assert (await grid.outcome(job)).outcome == "completed"
    summary, _ = await grid.review(job)
    assert (summary.worlds, summary.nodes_lost) == ((2, 2), 1)
    assert (summary.steps, summary.duplicate_steps) == (70, 0)
    first, second = await grid.worlds(job)
    assert isinstance(lost.event, ev.Event)
    assert isinstance(lost.event.data, ev.NodeLost)
    gone = lost.event.data.node
    assert gone in {member.node for member in first.members}
    assert gone not in {member.node for member in second.members}


async def test_a_job_whose_program_fails_without_a_budget_fails_with_its_last_words(grid: Deployment) -> None:
    program = "import sys; print('reading the data'); sys.exit('ValueError: no such column: price')"
    path = job_file(grid.box.folder, "failing", ["python", "-c", program])
    answer = grid.box.run("submit", path, "--wait")
    assert answer.returncode == 1
    assert "ValueError: no such column: price" in answer.stdout
    assert "exit code 1" in answer.stdout


def strays(grid: Deployment) -> float:
    """Messages among the events that were none, as the gateway tells Prometheus."""
    key = (grid.data("gateway") / "admin.key").read_text().strip()
    answer = httpx.get(f"http://127.0.0.1:{grid.http_port}/metrics", headers={"X-API-Key": key}, trust_env=False)
    (line,) = [line for line in answer.text.splitlines() if line.startswith("elasticgrid_log_strays_total ")]
    return float(line.split()[1])


async def test_garbage_and_foreign_messages_are_counted_said_once_and_stop_nothing(grid: Deployment) -> None:
    before = strays(grid)
    job = grid.submit(job_file(grid.box.folder, "garbage", trainer(80)))
    await grid.checkpoint(job, 20)
    alive = {service: process.poll() for service, process in grid.processes.items()}
    sample = StepSample(0, 30, float("nan"), 0.0, 0.0, 1, 2, 0)
    stale = StepSample(0, 1, 0.1, 0.0, 0.0, 1, 2, 0)
    samples = [
        b"",
        b"\xff garbage",
        b"\x94\x01" * 60_000,
        encode_batch(SampleBatch(SAMPLE_VERSION, 1, 0, [sample])),
        encode_batch(SampleBatch(SAMPLE_VERSION + 8, 1, 0, [])),
        encode_batch(SampleBatch(SAMPLE_VERSION, 77, 10**9, [stale])),
        encode_batch(SampleBatch(SAMPLE_VERSION, 0, 0, [stale])),
    ]
    for _ in range(20):
        for data in samples:
            await grid.client.publish(f"{SAMPLES_ROOT}.{TENANT}.{job}.0", data)
        await grid.client.publish(f"{SAMPLES_ROOT}.{TENANT}.nobody.0", samples[3])
        await grid.client.publish(f"{SAMPLES_ROOT}.odd", b"odd")
    for subject in ("default.nobody.node.joined", f"{TENANT}.{job}.node.joined", "odd", "_grid.fleet.job.what"):
        await grid.client.publish(f"{EVENTS_ROOT}.{subject}", b"\xff garbage")
        await grid.client.publish(f"{EVENTS_ROOT}.{subject}", b'{"type": "node.exploded"}')
    await grid.client.flush()

    assert (await grid.outcome(job)).outcome == "completed"
    assert {service: process.poll() for service, process in grid.processes.items()} == alive
    told = [line for line in grid.output("decider").splitlines() if '"samples refused"' in line and job in line]
    assert 1 <= len(told) <= len(samples)
    assert strays(grid) - before == 8
    for service in ("decider", "gateway"):
        assert grid.output(service).count("a message on an event subject is not an event") == 1
    answer = grid.box.run("jobs", "show", job, "--json")
    assert json.loads(answer.stdout)["job"]["phase"] == "completed"
    next_job = grid.submit(job_file(grid.box.folder, "afterwards", trainer(20)))
    assert (await grid.outcome(next_job)).outcome == "completed"
    await grid.review(next_job)
