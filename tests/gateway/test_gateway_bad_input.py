"""Whatever is sent, the answer says what is wrong with it and where; the gateway goes on."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticgrid.gateway.bodies import MAX_BODY_BYTES

JOB: dict[str, Any] = {"name": "train", "command": ["python"], "workdir": "/srv", "max_nodes": 4}


def problem(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["Content-Type"] == "application/problem+json", answer.text
    found: dict[str, Any] = answer.json()
    assert found["status"] == answer.status_code
    assert found["type"] == f"urn:elasticgrid:problem:{found['code']}"
    assert found["detail"]
    assert found["hint"]
    return found


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"nonsense",
        b'{"name": "a"',
        b"\xff\xfe\x00",
        b'{"name": "\xff"}',
        b"[" * 100_000,
        b'{"scaling":' * 5_000,
        b'{"name": "\\ud800", "command": ["a"]}',
        b'{"a": NaN}',
    ],
)
async def test_a_body_that_is_no_json_is_refused(client: httpx.AsyncClient, body: bytes) -> None:
    answer = await client.post("/jobs", content=body)
    assert answer.status_code == 400
    assert problem(answer)["where"] == "body"


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"name": 7}, "name"),
        ({"name": "Not A Name"}, "name"),
        ({"command": []}, "command"),
        ({"command": "python"}, "command"),
        ({"command": ["python", 3]}, "command[1]"),
        ({"command": ["a\0b"]}, "command"),
        ({"command": [""]}, "command"),
        ({"min_nodes": "2"}, "min_nodes"),
        ({"min_nodes": 2.5}, "min_nodes"),
        ({"min_nodes": True}, "min_nodes"),
        ({"min_nodes": 0}, "min_nodes"),
        ({"min_nodes": 5}, "nodes.min"),
        ({"max_nodes": 10**9}, "max_nodes"),
        ({"max_nodes": 10**400}, "max_nodes"),
        ({"initial_nodes": 9}, "nodes.initial"),
        ({"quantum": 3}, "nodes.min"),
        ({"nproc_per_node": 5_000}, "nproc_per_node"),
        ({"grace_ms": 2**60}, "grace_ms"),
        ({"band": "huge"}, "band"),
        ({"workdir": "relative"}, "workdir"),
        ({"checkpoint_dir": "relative"}, "checkpoint_dir"),
        ({"env": {"A=B": "c"}}, "env.A=B"),
        ({"env": {"ELASTICGRID_JOB": "x"}}, "env.ELASTICGRID_JOB"),
        ({"env": {"A": 3}}, "env[...]"),
        ({"secrets": {"A": "not/absolute"}}, "secrets.A"),
        ({"secrets": {"A": "/a\0b"}}, "secrets.A"),
        ({"secrets": {"RANK": "/a"}}, "secrets.RANK"),
        ({"secrets": {"A": "/a"}, "env": {"A": "b"}}, "secrets.A"),
        ({"max_node": 3}, "max_node"),
        ({"scaling": {"window_steps": 2}}, "scaling.window_steps"),
        ({"scaling": {"windowsteps": 9}}, "scaling.windowsteps"),
        ({"scaling": {"min_evidence_ms": 10**30}}, "scaling.min_evidence_ms"),
        ({"scaling": []}, "scaling"),
        ({"placement": {"prefer": "luck"}}, "placement.prefer"),
        ({"placement": {"spot": "require", "max_spot_ppm": 5}}, "placement.max_spot_share"),
    ],
)
async def test_a_job_that_is_wrong_is_refused_with_the_path_of_the_field(
    client: httpx.AsyncClient, fields: dict[str, Any], where: str
) -> None:
    answer = await client.post("/jobs", json=JOB | fields)
    assert answer.status_code == 422
    found = problem(answer)
    assert (found["code"], found["where"]) == ("invalid_job", where)


async def test_a_secret_in_the_place_of_its_path_is_not_repeated(client: httpx.AsyncClient) -> None:
    for value in ("sesame-open-0123456789", ["sesame-open-0123456789"]):
        answer = await client.post("/jobs", json=JOB | {"secrets": {"A": value}})
        assert answer.status_code == 422
        assert "sesame" not in answer.text


@pytest.mark.parametrize("body", [b"[]", b"3", b'"x"', b"null", b"{}", b""])
async def test_json_that_is_no_job_is_refused(client: httpx.AsyncClient, body: bytes) -> None:
    answer = await client.post("/jobs", content=body)
    assert answer.status_code == 422
    assert problem(answer)["code"] == "invalid_job"


async def test_a_body_that_is_too_large_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("/jobs", json=JOB | {"env": {"A": "x" * MAX_BODY_BYTES}})
    assert answer.status_code == 413
    assert f"{MAX_BODY_BYTES:,} bytes" in problem(answer)["detail"]


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/jobs?limit=0", "limit"),
        ("/jobs?limit=10000", "limit"),
        ("/jobs?limit=many", "limit"),
        ("/jobs/x?tenant=NoName", "tenant"),
        ("/events?after=-1", "after"),
        ("/events?after=1.5", "after"),
        ("/events?after=99999999999999999999999999", "after"),
        ("/cost?by=moon", "by"),
        ("/cost?since_ms=x", "since_ms"),
        ("/events/stream?after=1000", "after"),
    ],
)
async def test_a_parameter_that_is_wrong_is_refused_by_name(client: httpx.AsyncClient, path: str, where: str) -> None:
    answer = await client.get(path)
    assert answer.status_code == 400
    assert problem(answer)["where"] == where


@pytest.mark.parametrize(
    ("path", "where", "hint"),
    [
        ("/jobs?phase=bogus", "phase", "submitted, starting, running"),
        ("/jobs?state=bogus", "state", "queued, provisioning, running"),
        ("/events?type=lauch", "type", "launch"),
        ("/events?type=bogus", "type", "decision, job, key, launch"),
        ("/events?order=desc&type=job.bogus", "type", "job"),
        ("/timeline?type=bogus", "type", "decision, job, key, launch"),
        ("/decisions?action=bogus", "action", "up, down, hold"),
        ("/jobs?limit=2&stat=running", "stat", "state"),
        ("/decisions?bogus=1", "bogus", "action, cursor, job, limit, rule, tenant"),
    ],
)
async def test_a_filter_that_can_never_match_is_refused_with_what_there_is(
    client: httpx.AsyncClient, path: str, where: str, hint: str
) -> None:
    answer = await client.get(path)
    assert answer.status_code == 400
    found = problem(answer)
    assert found["where"] == where
    assert hint in found["hint"]


@pytest.mark.parametrize(
    "state", ["queued", "provisioning", "running", "preempted", "resuming", "succeeded", "failed", "cancelled", ""]
)
async def test_every_state_of_the_first_interface_is_a_filter(client: httpx.AsyncClient, state: str) -> None:
    answer = await client.get("/jobs", params={"state": state})
    assert (answer.status_code, answer.json()) == (200, [])


@pytest.mark.parametrize(
    ("method", "path", "body", "hint"),
    [
        ("POST", "/jobs", {"name": "a"}, "command"),
        ("POST", "/keys", {"scope": "read", "tenant": "default", "ttl_s": "x"}, "int"),
        ("POST", "/keys", {"scope": "read"}, "tenant"),
        ("PUT", "/quotas/default", {"period": "year"}, "/v1/openapi"),
        ("POST", "/jobs/x/resize", {"min_nodes": []}, "int"),
        ("POST", "/providers/none/cordon", {}, "list"),
        ("DELETE", "/keys/none", None, "list"),
    ],
)
async def test_a_wrong_body_is_refused_with_what_belongs_there(
    client: httpx.AsyncClient, method: str, path: str, body: Any, hint: str
) -> None:
    answer = await client.request(method, path, json=body)
    assert answer.is_client_error
    assert hint in problem(answer)["hint"]


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "9" * 400, "\u0663"])
async def test_an_id_of_an_event_that_is_none_is_refused(client: httpx.AsyncClient, last: str) -> None:
    answer = await client.get("/events/stream", headers={b"Last-Event-ID": last.encode()})
    assert answer.status_code == 400
    problem(answer)


@pytest.mark.parametrize("idempotency_key", ["x" * 201, "caf\u00e9"])
async def test_an_idempotency_key_that_is_none_is_refused(client: httpx.AsyncClient, idempotency_key: str) -> None:
    answer = await client.post("/jobs", json=JOB, headers={b"Idempotency-Key": idempotency_key.encode()})
    assert answer.status_code == 400
    assert problem(answer)["where"] == "Idempotency-Key"


@pytest.mark.parametrize("tenant", ["_grid", "A", "a.b", "", "a*"])
async def test_a_tenant_that_is_none_is_refused(client: httpx.AsyncClient, tenant: str) -> None:
    answer = await client.post("/jobs", json=JOB, params={"tenant": tenant})
    assert answer.status_code == 400
    assert problem(answer)["where"] == "tenant"


async def test_unknown_paths_and_methods_are_problems_too(client: httpx.AsyncClient) -> None:
    assert problem(await client.get("/nothing"))["status"] == 404
    refused = await client.put("/jobs")
    assert problem(refused)["status"] == 405
    assert set(refused.headers["Allow"].split(", ")) >= {"GET", "POST"}
    assert "GET, OPTIONS, POST" in refused.json()["hint"]
    assert problem(await client.post("/jobs/x/explode"))["status"] == 404


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = ("name", "command", "workdir", "env", "min_nodes", "max_nodes", "band", "scaling", "placement", "deadline_ms")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.dictionaries(st.sampled_from(_FIELDS) | st.text(max_size=10), _anything, max_size=4))
async def test_no_body_is_an_error_of_the_gateway(client: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    answer = await client.post("/jobs", json=JOB | fields)
    assert answer.status_code in (201, 400, 422)
    if answer.status_code != 201:
        problem(answer)
