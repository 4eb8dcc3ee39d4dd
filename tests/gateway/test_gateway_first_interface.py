"""Clients of the service's first interface go on working: what they send, and the fields and codes they read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from callers import JOB, asking, new_key, submitted, tenant

from elasticgrid.core import events as ev
from elasticgrid.gateway.service import GatewayService
from elasticgrid.log.memory import MemoryLog

#: What such a client reads of a job.
FIELDS: dict[str, type] = {
    "job_id": str,
    "tenant_id": str,
    "name": str,
    "command": str,
    "state": str,
    "nodes": int,
    "step": int,
    "idempotency_key": str,
    "workdir": str,
    "checkpoint_dir": str,
    "log_file": str,
    "created_at": str,
    "updated_at": str,
    "error": str,
    "metadata": dict,
}
STATES = {"queued", "provisioning", "running", "preempted", "resuming", "succeeded", "failed", "cancelled"}
SUBMIT: dict[str, Any] = {"name": "My Job", "command": "python train.py --epochs 3", "nodes": 2}


def assert_job(found: dict[str, Any]) -> None:
    assert {name: type(found[name]) for name in FIELDS} == FIELDS
    assert found["state"] in STATES


async def test_the_documented_session_of_such_a_client_goes_as_it_always_did(
    client: httpx.AsyncClient, gateway: GatewayService
) -> None:
    await tenant(client, "acme")
    async with asking(gateway, await new_key(client, tenant="acme", scope="submit")) as own:
        made = await own.post("/jobs", json=SUBMIT | {"idempotency_key": "run-1", "metadata": {"team": "nlp", "n": 1}})
        assert made.status_code == 201
        job = made.json()
        assert_job(job)
        assert (job["name"], job["command"], job["nodes"]) == ("My Job", "python train.py --epochs 3", 2)
        assert (job["state"], job["tenant_id"], job["metadata"]) == ("queued", "acme", {"team": "nlp", "n": 1})
        assert job["job"]["id"] == job["job_id"]

        again = await own.post("/jobs", json=SUBMIT | {"idempotency_key": "run-1", "metadata": {"team": "nlp", "n": 1}})
        assert (again.status_code, again.json()["job_id"]) == (201, job["job_id"])

        listed = (await own.get("/jobs")).json()
        assert [each["job_id"] for each in listed] == [job["job_id"]]
        assert_job(listed[0])
        assert [each["job_id"] for each in (await own.get("/jobs", params={"state": "queued"})).json()] == [
            job["job_id"]
        ]
        assert (await own.get("/jobs", params={"state": "running"})).json() == []
        assert (await own.get("/jobs", params={"state": "preempted"})).json() == []

        shown = (await own.get(f"/jobs/{job['job_id']}")).json()
        assert_job(shown)
        assert {name: shown[name] for name in FIELDS} == {name: job[name] for name in FIELDS}

        logs = (await own.get(f"/jobs/{job['job_id']}/logs", params={"lines": 200})).json()
        assert (logs["job_id"], logs["log"]) == (job["job_id"], "")
        assert (await own.get(f"/jobs/{job['job_id']}/artifacts")).json()["artifacts"] == []

        # Its program is not waited for at length when the job is cancelled.
        state = gateway.jobs.state("acme", job["job_id"])
        assert state.spec is not None
        assert state.spec.grace_ms == 10_000
        cancelled = await own.delete(f"/jobs/{job['job_id']}")
        assert cancelled.status_code == 200
        assert_job(cancelled.json())


async def test_what_such_a_client_submits_is_run_by_the_shell_with_that_many_nodes(
    client: httpx.AsyncClient, gateway: GatewayService
) -> None:
    made = (await client.post("/jobs", json=SUBMIT | {"workdir": "work", "checkpoint_dir": "/srv/ckpt"})).json()
    spec = gateway.jobs.state("default", made["job_id"]).spec
    assert spec is not None
    assert spec.command == ("sh", "-c", "python train.py --epochs 3")
    assert (spec.name, spec.min_nodes, spec.max_nodes) == ("my-job", 2, 2)
    assert (spec.workdir, spec.checkpoint_dir) == (str(Path.cwd() / "work"), "/srv/ckpt")


async def test_the_codes_mean_what_they_meant(
    client: httpx.AsyncClient, gateway: GatewayService, log: MemoryLog
) -> None:
    async with asking(gateway, "wrong") as nobody:
        answer = await nobody.get("/jobs")
        assert (answer.status_code, bool(answer.json()["detail"])) == (401, True)
    assert (await client.get("/jobs/job-0000")).status_code == 404
    assert (await client.delete("/jobs/job-0000")).status_code == 404
    await client.put("/quotas/default", json={"jobs": 1})
    job = (await client.post("/jobs", json=SUBMIT)).json()["job_id"]
    assert (await client.post("/jobs", json=SUBMIT)).status_code == 429
    over: tuple[ev.EventData, ...] = (
        ev.DrainDecided(round=0, reason="completed"),
        ev.OutcomeDecided(outcome="completed", reason=""),
    )
    for number, data in enumerate(over):
        await log.append([ev.Event(id=str(number), time_ms=1, tenant="default", job=job, actor="x", data=data)])
    await gateway.caught_up()
    assert (await client.get(f"/jobs/{job}")).json()["state"] == "succeeded"
    answer = await client.delete(f"/jobs/{job}")
    assert (answer.status_code, bool(answer.json()["detail"])) == (409, True)


async def test_a_key_used_for_another_job_is_a_conflict(client: httpx.AsyncClient) -> None:
    assert (await client.post("/jobs", json=SUBMIT | {"idempotency_key": "k"})).status_code == 201
    for other in ({"name": "Other"}, {"command": "true"}, {"nodes": 1}, {"metadata": {"a": 1}}):
        assert (await client.post("/jobs", json=SUBMIT | {"idempotency_key": "k"} | other)).status_code == 409


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        ({"name": ""}, "name"),
        ({"command": " "}, "command"),
        ({"nodes": 0}, "nodes"),
        ({"nodes": "two"}, "nodes"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"x": "y" * 20_000}}, "metadata"),
    ],
)
async def test_what_such_a_client_cannot_mean_is_refused(
    client: httpx.AsyncClient, asked: dict[str, Any], where: str
) -> None:
    answer = await client.post("/jobs", json=SUBMIT | asked)
    assert (answer.status_code, answer.json()["where"]) == (422, where)


async def test_both_kinds_of_clients_read_each_others_jobs(client: httpx.AsyncClient) -> None:
    ours = await submitted(client)
    theirs = (await client.post("/jobs", json=SUBMIT)).json()["job_id"]
    assert {each["job_id"]: each["command"] for each in (await client.get("/jobs")).json()} == {
        ours: " ".join(JOB["command"]),
        theirs: SUBMIT["command"],
    }
    page = (await client.get("/jobs", params={"limit": 10})).json()
    assert {each["id"] for each in page["items"]} == {ours, theirs}
    plain = (await client.get(f"/jobs/{theirs}")).json()
    assert (plain["nodes"], plain["node_views"]) == (2, [])
    shown = (await client.get(f"/jobs/{theirs}", params={"tenant": "default"})).json()
    assert (shown["nodes"], "node_views" in shown) == ([], False)
    assert (await client.get(f"/jobs/{ours}")).json()["nodes"] == []
