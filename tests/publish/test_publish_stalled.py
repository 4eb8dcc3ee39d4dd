"""A server that is stopped in its tracks: connections stay open and nothing is answered. Nobody in training waits."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest
from nats.aio.client import Client

from elasticgrid import environment as env
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.testing.bus import launch_address

pytestmark = [pytest.mark.server, pytest.mark.process]

#: The interpreter is told to switch threads only where a call lets go of its lock, so every time the training thread
#: gives up the processor is a call that blocked.
TRAINER = """
import elasticgrid, resource, sys, time
pub = elasticgrid.publisher()

def steps():
    for _ in pub.data(range(2_000)):
        with pub.step(tokens=1) as step:
            step.loss = 1.0
        with pub.checkpoint():
            pass
        pub.should_stop()
        pub.report(duration_s=1.0)

def blocked(call):
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    call()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before

steps()
assert pub.flush(10.0), pub.stats
print("ready", flush=True)
sys.stdin.readline()
sys.setswitchinterval(60.0)
time.sleep(0.1)  # whoever waits for the interpreter now waits with the new interval
calls = 0
for _ in range(20):
    calls += blocked(steps)
    time.sleep(0.02)
would_be_seen = blocked(lambda: pub.flush(0.05)) > 0
print(calls, would_be_seen, pub.stats.buffered > 0, flush=True)
"""


@asynccontextmanager
async def stalled(server: EmbeddedServer) -> AsyncGenerator[None]:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@pytest.mark.survive("S")
async def test_no_call_of_a_step_blocks_while_the_bus_is_stalled_and_the_exit_is_soon(
    embedded_server: EmbeddedServer, bus_client: Client
) -> None:
    address = await launch_address(embedded_server, "acme", "lm")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        TRAINER,
        env={
            **os.environ,
            env.NATS_URL: address.url,
            env.CREDENTIALS: address.credentials,
            env.TENANT: "acme",
            env.JOB: "lm",
        },
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"ready\n"
            async with stalled(embedded_server):
                process.stdin.write(b"go\n")
                printed = await process.stdout.readline()
                ended = time.monotonic()
                assert await process.wait() == 0
                exit_s = time.monotonic() - ended
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
    assert printed == b"0 True True\n"
    assert exit_s < 2.5
