"""Fixtures of the log's tests."""

from __future__ import annotations

import pytest
from nats.aio.client import Client

from elasticgrid.log.jetstream import JetStreamLog


@pytest.fixture
def jetstream_log(bus_client: Client) -> JetStreamLog:
    """A log on a server of the test's own."""
    return JetStreamLog(bus_client)
