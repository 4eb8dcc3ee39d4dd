"""The two streams: made once, kept as configured, never mistaken for somebody else's."""

from __future__ import annotations

import msgspec
import pytest
from nats.aio.client import Client

from elasticgrid.bus import api
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.bus.streams import ensure_streams, events_config, samples_config
from elasticgrid.bus.subjects import EVENTS_STREAM, SAMPLES_STREAM
from elasticgrid.core.errors import BusError
from elasticgrid.testing.bus import connection

pytestmark = pytest.mark.server


class _Raw(api.ApiReply, frozen=True, kw_only=True):
    config: dict[str, object] = msgspec.field(default_factory=dict)


async def test_streams_are_configured_as_written(bus_client: Client) -> None:
    for wanted in (events_config(), samples_config()):
        found = (await api.call(bus_client, f"STREAM.INFO.{wanted['name']}", {}, _Raw)).config
        assert {key: found.get(key) for key in wanted} == wanted


async def test_ensuring_again_changes_nothing_and_repairs_what_may_be_repaired(bus_client: Client) -> None:
    await bus_client.request("grid.events.a.b.node.left", b"{}", timeout=2)
    await ensure_streams(bus_client)
    changed = samples_config(max_age_s=60)
    await api.call(bus_client, f"STREAM.UPDATE.{SAMPLES_STREAM}", changed, api.StreamInfo)
    await ensure_streams(bus_client)
    found = (await api.call(bus_client, f"STREAM.INFO.{SAMPLES_STREAM}", {}, _Raw)).config
    assert found["max_age"] == samples_config()["max_age"]
    assert (await api.stream_info(bus_client, EVENTS_STREAM)).state.last_seq == 1


@pytest.mark.parametrize(
    "foreign",
    [
        {"name": EVENTS_STREAM, "subjects": ["orders.>"], "storage": "file"},
        {"name": EVENTS_STREAM, "subjects": ["grid.events.>"], "storage": "memory"},
        {"name": "OTHER", "subjects": ["grid.events.acme.>"], "storage": "file"},
    ],
    ids=["other subjects", "in memory", "our subjects taken"],
)
async def test_a_foreign_stream_is_left_alone_and_named(
    embedded_server: EmbeddedServer, foreign: dict[str, object]
) -> None:
    async with connection(embedded_server.address) as client:
        await api.call(client, f"STREAM.CREATE.{foreign['name']}", foreign, api.StreamInfo)
        with pytest.raises(BusError, match=EVENTS_STREAM):
            await ensure_streams(client)
        kept = await api.stream_info(client, str(foreign["name"]))
        assert kept.config is not None
        assert kept.config.subjects == foreign["subjects"]
