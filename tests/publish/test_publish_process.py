"""The hook and the life of its process: exits are bounded, forks are silent, a forgotten hook is closed."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from elasticgrid import environment as env
from elasticgrid.publish import channel

if TYPE_CHECKING:
    from conftest import AgentEnd

pytestmark = pytest.mark.process

BUS = {env.TENANT: "t", env.JOB: "j"}


def run(script: str, environ: dict[str, str], *, timeout_s: float = 30.0) -> tuple[str, float]:
    """Run a trainer; returns what it printed and how long its end took, from the time it printed last."""
    process = subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True
    )
    try:
        printed, _ = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
        process.wait()
    ended = time.time()
    assert process.returncode == 0
    *text, last_print = printed.split()
    return " ".join(text), ended - float(last_print)


@asynccontextmanager
async def trainer(script: str, agent: AgentEnd) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A trainer that has this agent; it has ended after the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        env={**os.environ, env.AGENT_SOCKET: str(agent.path)},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


FORGETFUL = """
import elasticgrid, time
pub = elasticgrid.publisher()
for _ in range(200):
    with pub.step(tokens=1):
        pass
time.sleep(0.3)
print(pub.steps_completed, time.time(), flush=True)
"""


@pytest.mark.survive("S")
def test_a_trainer_that_cannot_reach_the_bus_ends_soon() -> None:
    printed, exit_s = run(FORGETFUL, {**BUS, env.NATS_URL: "nats://127.0.0.1:9"})
    assert printed == "200"
    assert exit_s < 2.5


@pytest.mark.survive("S")
def test_a_bus_that_takes_connections_and_says_nothing_holds_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        printed, exit_s = run(FORGETFUL, {**BUS, env.NATS_URL: f"nats://127.0.0.1:{port}"})
    assert printed == "200"
    assert exit_s < 2.5


def test_a_name_server_that_does_not_answer_holds_nobody() -> None:
    never_answers = """
import socket, threading
real = socket.getaddrinfo
def getaddrinfo(host, *args, **kwargs):
    if "bus.example" in str(host):
        threading.Event().wait()
    return real(host, *args, **kwargs)
socket.getaddrinfo = getaddrinfo
"""
    printed, exit_s = run(never_answers + FORGETFUL, {**BUS, env.NATS_URL: "nats://bus.example:4222"})
    assert printed == "200"
    assert exit_s < 2.5


@pytest.mark.parametrize("url", ["nonsense", "http://127.0.0.1:9", "nats://[", "nats://127.0.0.1:99999999"])
def test_an_address_that_is_none_is_a_problem_and_no_more(url: str) -> None:
    script = FORGETFUL.replace("print(", "print(bool(pub.stats.problem), ")
    printed, _ = run(script, {**BUS, env.NATS_URL: url})
    assert printed == "True 200"


async def test_a_forgotten_hook_says_goodbye_at_the_exit_of_its_process(agent: AgentEnd) -> None:
    async with trainer(FORGETFUL, agent):
        await agent.hears(lambda m: isinstance(m, channel.Closed) and m.step == 200)


async def test_a_hook_that_is_dropped_ends_its_thread(agent: AgentEnd) -> None:
    script = """
import elasticgrid, gc, threading
pub = elasticgrid.publisher()
with pub.step(tokens=1):
    pass
pub.flush(5.0)
del pub
gc.collect()
for thread in threading.enumerate():
    if thread is not threading.current_thread():
        thread.join(5.0)
print(threading.active_count(), flush=True)
"""
    async with trainer(script, agent) as process:
        await agent.hears(lambda m: isinstance(m, channel.Closed))
        async with asyncio.timeout(20):
            printed, _ = await process.communicate()
    assert printed == b"1\n"


async def test_a_forked_child_is_silent_and_its_parent_goes_on(agent: AgentEnd, tmp_path: Path) -> None:
    child_says = tmp_path / "child"
    script = f"""
import elasticgrid, gc, os, pathlib, sys
pub = elasticgrid.publisher()
with pub.step(tokens=1):
    pass
pub.flush(5.0)
child = os.fork()
if child == 0:
    for _ in range(100):
        with pub.step(tokens=1):
            pass
    pub.checkpointed(50, "/not/mine")
    said = [pub.active, pub.should_stop(), pub.flush(0.1), pub.stats.buffered, pub.steps_completed]
    pub.close()
    del pub
    gc.collect()
    pathlib.Path({str(child_says)!r}).write_text(repr(said))
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0
with pub.step(tokens=1):
    pass
"""
    async with trainer(script, agent) as process:
        await agent.hears(lambda m: isinstance(m, channel.Closed))
    assert child_says.read_text() == "[False, False, True, 0, 101]"
    assert [m for m in agent.heard if isinstance(m, channel.Hello)] == [channel.Hello(rank=0, round=0, pid=process.pid)]
    assert agent.heard[-1] == channel.Closed(step=2, samples_published=0, samples_dropped=0)
    assert not any(isinstance(m, channel.Checkpointed) for m in agent.heard)
