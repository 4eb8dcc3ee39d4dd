"""The interface is what its document says: generated requests, right ones and wrong ones, on every operation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import schemathesis
from callers import JOB, PROVIDERS
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from elasticgrid.core.rate import RateLimit
from elasticgrid.gateway.server import serve_gateway
from elasticgrid.gateway.service import open_gateway
from elasticgrid.log.memory import MemoryLog
from elasticgrid.testing.clock import VirtualClock

#: Without an end, not JSON, or in need of a bus: looked at by tests of their own.
LEFT_OUT = r"/(stream|export|import|metrics|artifacts/.+|ui/.+|openapi.*|watchers)$|^/$"
EXAMPLES = 8


class Served:
    """A gateway in a thread of its own, since generated requests are made one by one and wait."""

    def __init__(self, folder: Path) -> None:
        self.url = self.key = self.job = ""
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()), name="served")

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        clock = VirtualClock()
        unlimited = RateLimit(1_000_000, 1_000_000)
        async with (
            open_gateway(MemoryLog(clock), self._folder, providers=PROVIDERS, clock=clock, limit=unlimited) as service,
            await serve_gateway(service) as running,
        ):
            self.url, self.key = running.url, service.key_file.read_text().strip()
            self._ready.set()
            await self._over.wait()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served")) as gateway:
        with httpx.Client(base_url=gateway.url, headers={"X-API-Key": gateway.key}) as http:
            gateway.job = http.post("/v1/jobs", json=JOB).json()["job"]["id"]
            assert http.post("/v1/tenants", json={"name": "research"}).status_code == 201
        yield gateway


@pytest.fixture(scope="module")
def schema(served: Served) -> Any:
    found = schemathesis.openapi.from_url(f"{served.url}/v1/openapi/openapi.json")
    return found.exclude(path_regex=LEFT_OUT)


def operations(schema: Any) -> list[Any]:
    return [result.ok() for result in schema.get_all_operations()]


def test_the_document_tells_of_every_operation_that_is_tried(schema: Any) -> None:
    assert len(operations(schema)) > 40


@pytest.mark.parametrize("names_what_there_is", [True, False])
def test_no_request_ends_in_a_server_error_or_in_an_answer_that_the_document_does_not_have(
    served: Served, schema: Any, names_what_there_is: bool
) -> None:
    known = {"job": served.job, "provider": "small", "tenant": "research", "sequence": 1}
    for operation in operations(schema):

        @seed(2_026)
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            if names_what_there_is:
                for name in set(case.path_parameters or ()) & known.keys():
                    case.path_parameters[name] = known[name]
            case.call_and_validate(
                base_url=served.url,
                headers={"X-API-Key": served.key},
                checks=[
                    not_a_server_error,
                    status_code_conformance,
                    content_type_conformance,
                    response_schema_conformance,
                ],
            )

        ask()


@settings(max_examples=30, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(path=st.text(max_size=40), method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH"]))
def test_no_path_ends_in_a_server_error(served: Served, path: str, method: str) -> None:
    with httpx.Client(base_url=served.url, headers={"X-API-Key": served.key}) as http:
        for prefix in ("/v1/", "/v1/jobs/", "/v1/keys/", "/"):
            answer = http.request(method, f"{prefix}{quote(path, safe='')}")
            assert answer.status_code < 500
