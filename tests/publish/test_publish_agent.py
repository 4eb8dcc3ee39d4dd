"""The hook and its node's agent: where training stands, at which step it stops, and lost or stuck sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import elasticgrid
from elasticgrid import environment as env
from elasticgrid.publish import channel

if TYPE_CHECKING:
    from conftest import AgentEnd


def environ(path: Path, **more: str) -> dict[str, str]:
    return {"RANK": "1", "WORLD_SIZE": "2", env.ROUND: "4", env.RESUME_STEP: "100", env.AGENT_SOCKET: str(path), **more}


@pytest.fixture
async def pub(agent: AgentEnd) -> AsyncGenerator[elasticgrid.Publisher]:
    hook = elasticgrid.publisher(environ(agent.path))
    yield hook
    await asyncio.to_thread(hook.close, 1.0)


def step(pub: elasticgrid.Publisher, times: int = 1) -> None:
    for _ in range(times):
        with pub.step(tokens=1):
            pass


async def test_a_worker_says_who_it_is_and_how_far_it_got(pub: elasticgrid.Publisher, agent: AgentEnd) -> None:
    step(pub, 3)
    await agent.hears(lambda m: m == channel.At(step=103))
    assert agent.heard[0] == channel.Hello(rank=1, round=4, pid=os.getpid())


async def test_where_is_answered_at_once(pub: elasticgrid.Publisher, agent: AgentEnd) -> None:
    step(pub)
    await agent.hears(lambda m: m == channel.At(step=101))
    agent.say(channel.Where())
    assert await agent.next_message() == channel.At(step=101)


async def test_should_stop_is_true_from_the_agreed_step_on_and_says_so_once(
    pub: elasticgrid.Publisher, agent: AgentEnd
) -> None:
    step(pub)
    await agent.hears(lambda m: m == channel.At(step=101))
    await agent.is_heard(channel.StopAt(step=103))
    answers = []
    for _ in range(4):
        step(pub)
        answers.append(pub.should_stop())
    assert answers == [False, True, True, True]
    await agent.hears(lambda m: m == channel.Stopping(step=103))
    assert pub.should_stop()
    await asyncio.to_thread(pub.close)
    await agent.hears(lambda m: isinstance(m, channel.Closed))
    assert sum(isinstance(m, channel.Stopping) for m in agent.heard) == 1


async def test_checkpoints_and_the_last_word_arrive_in_order(pub: elasticgrid.Publisher, agent: AgentEnd) -> None:
    step(pub, 2)
    pub.checkpointed(102, Path("/checkpoints/102"))
    assert await asyncio.to_thread(pub.flush, 5.0)
    await asyncio.to_thread(pub.close)
    await agent.hears(lambda m: isinstance(m, channel.Closed))
    assert agent.heard[-2:] == [
        channel.Checkpointed(step=102, uri="/checkpoints/102"),
        channel.Closed(step=102, samples_published=0, samples_dropped=0),
    ]


@pytest.mark.parametrize("attempt", range(5))
async def test_a_checkpoint_is_told_though_the_hook_is_closed_as_soon_as_it_was_opened(
    agent: AgentEnd, attempt: int
) -> None:
    hook = elasticgrid.publisher(environ(agent.path))
    hook.checkpointed(100, f"/checkpoints/{attempt}")
    await asyncio.to_thread(hook.close)
    await agent.hears(lambda m: isinstance(m, channel.Closed))
    assert channel.Checkpointed(step=100, uri=f"/checkpoints/{attempt}") in agent.heard


async def test_a_checkpoint_block_tells_where_it_was_committed_and_of_which_step(
    pub: elasticgrid.Publisher, agent: AgentEnd
) -> None:
    step(pub, 2)
    with pub.checkpoint() as saving:
        saving.uri = f"/checkpoints/{saving.step}"
    await agent.hears(lambda m: m == channel.Checkpointed(step=102, uri="/checkpoints/102"))


async def test_a_lost_socket_is_opened_again_and_told_the_checkpoint_again(
    pub: elasticgrid.Publisher, agent: AgentEnd
) -> None:
    step(pub)
    pub.checkpointed(101, "/checkpoints/101")
    await agent.hears(lambda m: isinstance(m, channel.Checkpointed))
    agent.heard.clear()
    agent.hang_up()
    await agent.hears(lambda m: m == channel.Checkpointed(step=101, uri="/checkpoints/101"))
    step(pub)
    await agent.hears(lambda m: m == channel.At(step=102))
    assert pub.stats.reconnects == 1


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"type":"stop_at","step":"x"}\n', b"\xff\n", b"[]\n"])
async def test_a_line_that_is_no_message_is_ignored(pub: elasticgrid.Publisher, agent: AgentEnd, line: bytes) -> None:
    step(pub)
    await agent.hears(lambda m: m == channel.At(step=101))
    agent.say_raw(line)
    await agent.is_heard(channel.StopAt(step=101))
    assert pub.should_stop()
    assert "not a message" in pub.stats.problem


async def test_a_line_without_end_costs_the_connection_and_nothing_else(
    pub: elasticgrid.Publisher, agent: AgentEnd
) -> None:
    step(pub)
    await agent.hears(lambda m: m == channel.At(step=101))
    agent.heard.clear()
    agent.say_raw(b"x" * 200_000)
    await agent.hears(lambda m: m == channel.At(step=101))
    await agent.is_heard(channel.StopAt(step=101))
    assert pub.should_stop()


async def test_an_agent_that_comes_later_is_found(late_agent: AgentEnd) -> None:
    pub = elasticgrid.publisher(environ(late_agent.path))
    step(pub, 5)
    await late_agent.start()
    await late_agent.hears(lambda m: m == channel.At(step=105))
    await asyncio.to_thread(pub.close)
    await late_agent.hears(lambda m: isinstance(m, channel.Closed))


def test_an_agent_that_reads_nothing_costs_a_step_nothing_and_an_exit_little(tmp_path: Path) -> None:
    path = tmp_path / "stuck.sock"
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.bind(str(path))
        stuck.listen(1)  # the kernel accepts; nobody ever reads
        pub = elasticgrid.publisher(environ(path))
        began = time.perf_counter()
        for number in range(20_000):
            step(pub)
            pub.checkpointed(100 + number, "/checkpoints/" + "x" * 100)
            pub.should_stop()
        per_step_s = (time.perf_counter() - began) / 20_000
        began = time.perf_counter()
        pub.close(1.0)
        assert time.perf_counter() - began < 2.0
    assert per_step_s < 0.001
    assert pub.steps_completed == 20_100
