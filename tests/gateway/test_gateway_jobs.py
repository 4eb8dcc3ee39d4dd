"""Jobs over HTTP: what is asked becomes exactly one fact, and the answer contains it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest
from callers import tenant

from elasticgrid.core import events as ev
from elasticgrid.core.names import is_name
from elasticgrid.core.spec import JobSpec
from elasticgrid.gateway.service import GatewayService
from elasticgrid.log.memory import MemoryLog

JOB: dict[str, Any] = {"name": "train", "command": ["python", "train.py"], "workdir": "/srv/train", "max_nodes": 4}


async def facts(log: MemoryLog) -> list[ev.Event]:
    """What was asked about jobs, in order."""
    return [
        each.event
        async for each in log.read()
        if isinstance(each.event, ev.Event) and ev.type_of(each.event.data).startswith("job.")
    ]


async def submit(client: httpx.AsyncClient, **fields: Any) -> str:
    answer = await client.post("/jobs", json=JOB | fields)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["job"]["id"])


async def end_job(log: MemoryLog, job: str) -> None:
    """Let the job be over, as the decider would."""
    end: list[ev.EventData] = [
        ev.DrainDecided(round=0, reason="cancelled"),
        ev.OutcomeDecided(outcome="cancelled", reason="test"),
    ]
    for number, data in enumerate(end, 1):
        basis = ev.Basis(
            number=number,
            as_of_ms=0,
            events_through=0,
            samples_through=0,
            policy="p",
            policy_version=1,
            config_digest="",
        )
        await log.append(
            [
                ev.Event(
                    id=f"{job}{number}", time_ms=0, tenant="default", job=job, actor="decider", basis=basis, data=data
                )
            ]
        )


async def test_a_submitted_job_is_in_the_log_and_in_every_answer_after(
    client: httpx.AsyncClient, log: MemoryLog, gateway: GatewayService
) -> None:
    answer = await client.post("/jobs", json=JOB)
    assert answer.status_code == 201
    job = answer.json()["job"]
    assert is_name(job["id"])
    assert job["id"].startswith("train-")
    assert (job["phase"], job["max_nodes"], job["tenant"]) == ("submitted", 4, "default")
    assert answer.headers["Location"] == f"/v1/jobs/{job['id']}?tenant=default"
    (event,) = await facts(log)
    assert event.data == ev.JobSubmitted(spec=msgspec.convert(JOB, JobSpec))
    assert event.actor == f"key:{gateway.key.prefix}"
    assert (await client.get("/jobs?limit=9")).json()["items"] == [job]
    shown = (await client.get(f"/jobs/{job['id']}")).json()
    assert shown["job"] == job
    assert shown["facts"]["spec"]["command"] == ["python", "train.py"]


async def test_the_same_key_with_the_same_job_is_the_same_job(client: httpx.AsyncClient, log: MemoryLog) -> None:
    headers = {"Idempotency-Key": "once"}
    first = await client.post("/jobs", json=JOB, headers=headers)
    again = await client.post("/jobs", json=JOB, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["job"]["id"] == again.json()["job"]["id"]
    assert len(await facts(log)) == 1


async def test_many_tries_at_once_with_one_key_make_one_job(client: httpx.AsyncClient, log: MemoryLog) -> None:
    answers = await asyncio.gather(
        *(client.post("/jobs", json=JOB, headers={"Idempotency-Key": "at once"}) for _ in range(20))
    )
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
    assert len({answer.json()["job"]["id"] for answer in answers}) == 1
    assert len(await facts(log)) == 1


@pytest.mark.parametrize("other", [JOB | {"max_nodes": 3}, JOB | {"name": "other"}])
async def test_the_same_key_with_another_job_is_a_conflict(client: httpx.AsyncClient, other: dict[str, Any]) -> None:
    headers = {"Idempotency-Key": "once"}
    await client.post("/jobs", json=JOB, headers=headers)
    answer = await client.post("/jobs", json=other, headers=headers)
    assert (answer.status_code, answer.json()["where"]) == (409, "Idempotency-Key")


async def test_the_same_key_of_another_tenant_is_another_job(client: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "once"}
    for name in ("one", "two"):
        await tenant(client, name)
    first = await client.post("/jobs?tenant=one", json=JOB, headers=headers)
    second = await client.post("/jobs?tenant=two", json=JOB, headers=headers)
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["job"]["id"] != second.json()["job"]["id"]
    assert (await client.get("/jobs", params={"tenant": "one"})).json()["items"] == [first.json()["job"]]


@pytest.mark.parametrize("dry_run", ["true", "false"])
async def test_a_tenant_that_nobody_created_has_no_jobs_and_the_answer_says_how_to_create_it(
    client: httpx.AsyncClient, log: MemoryLog, dry_run: str
) -> None:
    await tenant(client, "research")
    before = await log.last_sequence()
    answer = await client.post("/jobs", json=JOB, params={"tenant": "reserch", "dry_run": dry_run})
    assert (answer.status_code, answer.json()["where"]) == (404, "tenant")
    assert "elasticgrid tenants create reserch" in answer.json()["hint"]
    assert await log.last_sequence() == before
    for name in ("research", "default"):
        answer = await client.post("/jobs", json=JOB, params={"tenant": name, "dry_run": dry_run})
        assert answer.status_code in (200, 201)


async def test_what_looks_like_a_secret_is_warned_of_with_what_to_do_instead(client: httpx.AsyncClient) -> None:
    token = "hf_" + "a1" * 17
    careless = JOB | {"env": {"HF_TOKEN": token, "DEBUG": "1"}}
    for answer in (await client.post("/jobs?dry_run=true", json=careless), await client.post("/jobs", json=careless)):
        (warning,) = answer.json()["warnings"]
        assert warning.startswith("env.HF_TOKEN looks like a secret: ")
        assert warning.endswith("secrets: {HF_TOKEN: ./FILE}")
        assert token not in warning
    careful = JOB | {"secrets": {"HF_TOKEN": "/run/secrets/hf"}}
    assert (await client.post("/jobs", json=careful)).json()["warnings"] == []


async def test_a_dry_run_checks_everything_and_submits_nothing(client: httpx.AsyncClient, log: MemoryLog) -> None:
    answer = await client.post("/jobs?dry_run=true", json=JOB)
    assert (answer.status_code, answer.json()) == (
        200,
        {"accepted": True, "dry_run": True, "job": None, "warnings": []},
    )
    impossible = await client.post("/jobs?dry_run=true", json=JOB | {"min_nodes": 100, "max_nodes": 100})
    assert (impossible.status_code, impossible.json()["code"]) == (422, "cannot_place")
    assert await facts(log) == []


async def test_a_job_that_no_state_of_the_grid_could_run_is_refused_with_the_reason(
    client: httpx.AsyncClient, log: MemoryLog
) -> None:
    answer = await client.post("/jobs", json=JOB | {"placement": {"providers": ["smal"]}})
    problem = answer.json()
    assert answer.status_code == 422
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert problem["code"] == "cannot_place"
    assert "smal" in problem["detail"] + problem["hint"]
    assert await facts(log) == []


async def test_cancelling_twice_asks_once(client: httpx.AsyncClient, log: MemoryLog) -> None:
    job = await submit(client)
    first = await client.delete(f"/jobs/{job}", params={"reason": "too slow"})
    again = await client.delete(f"/jobs/{job}")
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["cancel_requested"] is True
    _, cancelled = await facts(log)
    assert cancelled.data == ev.JobCancelRequested(reason="too slow")
    assert cancelled.correlation_id == (await facts(log))[0].id


async def test_a_job_that_is_over_cannot_be_changed(
    client: httpx.AsyncClient, log: MemoryLog, gateway: GatewayService
) -> None:
    job = await submit(client)
    await end_job(log, job)
    await gateway.caught_up()
    assert (await client.get(f"/jobs/{job}")).json()["job"]["phase"] == "cancelled"
    answers = [
        await client.delete(f"/jobs/{job}"),
        await client.post(f"/jobs/{job}/pause"),
        await client.post(f"/jobs/{job}/resume"),
        await client.post(f"/jobs/{job}/resize", json={"max_nodes": 2}),
    ]
    assert [(each.status_code, each.json()["code"]) for each in answers] == [(409, "conflict")] * 4


async def test_pause_and_resume_are_facts_and_a_repetition_is_none(client: httpx.AsyncClient, log: MemoryLog) -> None:
    job = await submit(client)
    paused = await client.post(f"/jobs/{job}/pause", json={"reason": "maintenance"})
    await client.post(f"/jobs/{job}/pause")
    assert paused.json()["paused"] == "maintenance"
    resumed = await client.post(f"/jobs/{job}/resume")
    await client.post(f"/jobs/{job}/resume")
    assert resumed.json()["paused"] == ""
    assert [ev.type_of(each.data) for each in await facts(log)] == [
        "job.submitted",
        "job.pause_requested",
        "job.resume_requested",
    ]


async def test_a_bound_that_is_not_given_stays(client: httpx.AsyncClient, log: MemoryLog) -> None:
    job = await submit(client, min_nodes=2, initial_nodes=3)
    answer = await client.post(f"/jobs/{job}/resize", json={"max_nodes": 8, "reason": "more"})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["min_nodes"], answer.json()["max_nodes"]) == (2, 8)
    assert (await facts(log))[-1].data == ev.JobResizeRequested(min_nodes=2, max_nodes=8, reason="more")


@pytest.mark.parametrize(
    ("bounds", "status", "where"),
    [
        ({}, 400, "max_nodes"),
        ({"min_nodes": 5}, 400, "min_nodes"),
        ({"max_nodes": 0}, 400, "max_nodes"),
        ({"max_nodes": 10**30}, 400, "max_nodes"),
        ({"max_nodes": "3"}, 400, "max_nodes"),
        ({"max_nodes": 3, "maxnodes": 3}, 400, "maxnodes"),
        ({"min_nodes": 9, "max_nodes": 9}, 422, "min_nodes"),
    ],
)
async def test_bounds_that_cannot_be_are_refused(
    client: httpx.AsyncClient, bounds: dict[str, Any], status: int, where: str
) -> None:
    job = await submit(client)
    answer = await client.post(f"/jobs/{job}/resize", json=bounds)
    assert (answer.status_code, answer.json()["where"]) == (status, where)


async def test_requests_at_once_are_all_answered_and_none_is_lost(client: httpx.AsyncClient, log: MemoryLog) -> None:
    job = await submit(client)
    answers = await asyncio.gather(
        *(client.post(f"/jobs/{job}/resize", json={"max_nodes": nodes}) for nodes in (5, 6, 7))
    )
    assert {answer.status_code for answer in answers} == {200}
    asked = [each.data.max_nodes for each in await facts(log) if isinstance(each.data, ev.JobResizeRequested)]
    assert sorted(asked) == [5, 6, 7]
    assert (await client.get(f"/jobs/{job}")).json()["job"]["max_nodes"] == asked[-1]


@pytest.mark.parametrize("job", ["nothing-abcdef", "...", "a%00b", "A", "%E2%82%AC", "x" * 200])
async def test_a_job_that_is_not_there_is_not_found(client: httpx.AsyncClient, job: str) -> None:
    answers = [
        await client.get(f"/jobs/{job}"),
        await client.delete(f"/jobs/{job}"),
        await client.post(f"/jobs/{job}/pause"),
        await client.get(f"/jobs/{job}/decisions"),
    ]
    assert {answer.status_code for answer in answers} <= {404, 405}
    assert all(answer.headers["Content-Type"] == "application/problem+json" for answer in answers)


async def test_a_job_of_another_tenant_is_not_found(client: httpx.AsyncClient) -> None:
    job = await submit(client)
    assert (await client.get(f"/jobs/{job}", params={"tenant": "other"})).status_code == 404
    assert (await client.delete(f"/jobs/{job}", params={"tenant": "other"})).status_code == 404


async def test_the_longest_name_makes_an_id_that_is_a_name(client: httpx.AsyncClient) -> None:
    job = await submit(client, name="n" * 63)
    assert is_name(job)
    assert len(job) == 63


async def test_a_job_with_a_cursor_that_is_none_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.get("/jobs", params={"cursor": "W10"})
    assert (answer.status_code, answer.json()["where"]) == (400, "cursor")
