"""The how-to for publishing: its example with no SDK runs as it is printed, and it names every call there is."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import pytest
from nats.aio.client import Client

import elasticgrid
from elasticgrid import environment as env
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.bus.follower import Follower
from elasticgrid.bus.subjects import SAMPLES_STREAM, sample_subject
from elasticgrid.core.samples import AdmittedSample, SampleBatch, StepSample, admit, decode_batch
from elasticgrid.testing.bus import launch_address

HOW_TO = (Path(__file__).parents[2] / "docs/how-to/publish.md").read_text(encoding="utf-8")


def test_every_public_call_and_every_field_of_a_sample_is_in_the_how_to() -> None:
    for name in vars(elasticgrid.Publisher):
        assert name.startswith("_") or f"pub.{name}" in HOW_TO, name
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", HOW_TO, flags=re.MULTILINE)
    assert rows == [(str(place), name) for place, name in enumerate(StepSample.__struct_fields__)]


@pytest.mark.server
@pytest.mark.process
async def test_the_example_with_no_sdk_stores_a_sample_that_is_let_in(
    embedded_server: EmbeddedServer, bus_client: Client
) -> None:
    (example,) = (text for text in re.findall(r"```python\n(.*?)```", HOW_TO, flags=re.DOTALL) if "HPUB" in text)
    address = await launch_address(embedded_server, "acme", "lm")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-S",  # no installed package at all
        "-c",
        example,
        env={
            **os.environ,
            env.NATS_URL: address.url,
            env.CREDENTIALS: address.credentials,
            env.TENANT: "acme",
            env.JOB: "lm",
            env.ROUND: "3",
            env.RESUME_STEP: "40",
            "RANK": "1",
            "GROUP_WORLD_SIZE": "2",
        },
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(30):
        printed, _ = await process.communicate()
    assert json.loads(printed)["stream"] == SAMPLES_STREAM
    async with Follower(bus_client, SAMPLES_STREAM, sample_subject("acme", "lm", 1), lossy=True) as follower:
        async for message in follower:
            batch = decode_batch(message.data)
            assert isinstance(batch, SampleBatch)
            (sample,) = batch.samples
            admitted = admit(batch, sample)
            assert isinstance(admitted, AdmittedSample)
            assert (admitted.round, admitted.rank, admitted.step, admitted.nodes) == (3, 1, 41, 2)
            assert (admitted.duration_us, admitted.queue_us, admitted.tokens) == (1_030_000, 200_000, 16_384)
            break
