"""The publisher for trainers in other languages: lines in, samples out, answers only when asked."""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

import elasticgrid
from elasticgrid import environment as env
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.bus.follower import Follower
from elasticgrid.bus.subjects import SAMPLES_STREAM, sample_subject
from elasticgrid.core.samples import SampleBatch, StepSample, decode_batch
from elasticgrid.publish import channel
from elasticgrid.publish.stdin import serve
from elasticgrid.testing.bus import launch_address

if TYPE_CHECKING:
    from conftest import AgentEnd


def serve_lines(pub: elasticgrid.Publisher, lines: bytes) -> tuple[int, bytes]:
    answers = io.BytesIO()
    return serve(io.BytesIO(lines), answers, pub), answers.getvalue()


def test_steps_are_counted_and_only_a_question_is_answered() -> None:
    pub = elasticgrid.publisher({env.RESUME_STEP: "10"})
    step = b'{"type":"step","duration_s":0.5}\n'
    bad, answers = serve_lines(pub, step * 3 + b'{"type":"should_stop"}\n\n' + step + b'{"type":"should_stop"}')
    assert bad == 0
    assert [json.loads(line) for line in answers.splitlines()] == [
        {"should_stop": False, "steps_completed": 13},
        {"should_stop": False, "steps_completed": 14},
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"[]",
        b"{}",
        b'{"type":"step"}',
        b'{"type":"step","duration_s":"long"}',
        b'{"type":"other"}',
        b'{"type":"checkpointed","step":1}',
        b"\xff\xfe",
        b"[" * 10_000,
        b"x" * 200_000,
    ],
)
def test_a_line_that_is_none_is_counted_and_the_next_one_is_read(
    line: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    pub = elasticgrid.publisher({})
    assert serve_lines(pub, line + b"\n" + line + b'\n{"type":"step","duration_s":1}\n') == (2, b"")
    assert pub.steps_completed == 1
    assert capsys.readouterr().err.count("ignored") == 1


@given(st.binary(max_size=300))
def test_no_input_makes_it_raise(lines: bytes) -> None:
    serve_lines(elasticgrid.publisher({}), lines)


@asynccontextmanager
async def publisher_process(environ: dict[str, str]) -> AsyncGenerator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "elasticgrid.publish.stdin",
        env={**os.environ, **environ},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@pytest.mark.process
@pytest.mark.server
@pytest.mark.parametrize("how", ["end of input", "terminated"])
async def test_what_was_read_is_stored_before_it_ends(
    embedded_server: EmbeddedServer, bus_client: Client, how: str
) -> None:
    address = await launch_address(embedded_server, "acme", "lm")
    environ = {env.NATS_URL: address.url, env.CREDENTIALS: address.credentials, env.TENANT: "acme", env.JOB: "lm"}
    full = {
        "type": "step",
        "duration_s": 2.0,
        "tokens": 64,
        "queue_s": 0.5,
        "data_wait_s": 0.25,
        "compute_s": 1.5,
        "checkpoint_s": 3.0,
        "loss": 1.25,
    }
    async with publisher_process({**environ, "RANK": "2", "GROUP_WORLD_SIZE": "4"}) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in (full, {"type": "step", "duration_s": 1.0}, {"type": "should_stop"}):
            process.stdin.write(json.dumps(line).encode() + b"\n")
        assert json.loads(await process.stdout.readline()) == {"should_stop": False, "steps_completed": 2}
        if how == "terminated":
            process.send_signal(signal.SIGTERM)
        else:
            process.stdin.close()
        assert await process.wait() == (128 + signal.SIGTERM if how == "terminated" else 0)

    samples: list[StepSample] = []
    async with (
        asyncio.timeout(30),
        Follower(bus_client, SAMPLES_STREAM, sample_subject("acme", "lm", 2), lossy=True) as follower,
    ):
        async for message in follower:
            batch = decode_batch(message.data)
            assert isinstance(batch, SampleBatch)
            samples += batch.samples
            if len(samples) == 2:
                break
    first, second = samples
    assert (first.step, first.duration_s, first.tokens, first.nodes, first.queue_s) == (1, 2.0, 64, 4, 0.5)
    assert (first.data_wait_s, first.compute_s, first.checkpoint_s, first.loss) == (0.25, 1.5, 3.0, 1.25)
    assert (second.step, second.duration_s, second.compute_s, second.checkpoint_s) == (2, 1.0, 1.0, 0.0)
    assert math.isnan(second.loss)


@pytest.mark.process
async def test_it_passes_on_where_to_stop_and_what_was_committed(agent: AgentEnd) -> None:
    async with publisher_process({env.AGENT_SOCKET: str(agent.path)}) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        step = b'{"type":"step","duration_s":0.5}\n'
        process.stdin.write(step)
        await agent.hears(lambda m: m == channel.At(step=1))
        await agent.is_heard(channel.StopAt(step=2))
        process.stdin.write(step + b'{"type":"should_stop"}\n')
        assert json.loads(await process.stdout.readline()) == {"should_stop": True, "steps_completed": 2}
        process.stdin.write(b'{"type":"checkpointed","step":2,"uri":"/checkpoints/2"}\n')
        await agent.hears(lambda m: m == channel.Checkpointed(step=2, uri="/checkpoints/2"))
        process.stdin.close()
        await agent.hears(lambda m: isinstance(m, channel.Closed))
        assert await process.wait() == 0


@pytest.mark.process
def test_answers_that_nobody_reads_any_more_end_it_without_an_error() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        process = subprocess.run(
            [sys.executable, "-m", "elasticgrid.publish.stdin"],
            input=b'{"type":"should_stop"}\n' * 3,
            stdout=write,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(write)
    assert process.returncode == 0
    assert b"Traceback" not in process.stderr
