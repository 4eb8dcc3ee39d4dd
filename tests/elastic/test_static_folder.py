"""The nodes of a static world find one folder for their run, whatever an earlier run left where they look."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import msgspec
import pytest

from elasticgrid.core.errors import InvalidInput, RendezvousTimedOut
from elasticgrid.elastic.config import LaunchConfig, checked
from elasticgrid.elastic.static_folder import StaticFolder
from elasticgrid.testing.processes import until


def config(folder: Path | None, rank: int, nodes: int = 3, **fields: float) -> LaunchConfig:
    made = LaunchConfig(
        min_nodes=nodes, max_nodes=nodes, node_rank=rank, master_addr="node0", master_port=29_500, shared_dir=folder
    )
    return checked(msgspec.structs.replace(made, **fields))


async def one_run(shared: Path) -> set[Path]:
    """The folders that the nodes of one run found, the others before node 0."""
    others = [asyncio.create_task(StaticFolder(config(shared, rank), shared).found()) for rank in (1, 2)]
    await asyncio.sleep(0)
    zero = StaticFolder(config(shared, 0), shared)
    answering = asyncio.create_task(zero.answer())
    try:
        return {await zero.found(), *(await asyncio.gather(*others))}
    finally:
        answering.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await answering


def left_over_question(shared: Path) -> Path:
    """Put a question of node 2 there that nobody waits for any more; where its answer will be."""
    (meeting,) = shared.glob(".meeting-*")
    (meeting / "2-ofthelastrun.question").touch()
    return meeting / "2-ofthelastrun.answer"


async def test_all_nodes_of_a_run_find_one_folder_and_the_next_run_finds_another(tmp_path: Path) -> None:
    (first,), (second,) = await one_run(tmp_path), await one_run(tmp_path)
    assert first != second
    assert {first.parent, second.parent} == {tmp_path}


async def test_node_0_waits_for_every_other_node_and_takes_no_left_over_question_for_one(tmp_path: Path) -> None:
    await one_run(tmp_path)
    answer = left_over_question(tmp_path)
    zero = StaticFolder(config(tmp_path, 0), tmp_path)
    answering, end = asyncio.create_task(zero.answer()), asyncio.create_task(zero.answered())
    folder = await zero.found()
    try:
        assert await StaticFolder(config(tmp_path, 1), tmp_path).found() == folder
        await until(answer.exists)
        assert not end.done()
        assert await StaticFolder(config(tmp_path, 2), tmp_path).found() == folder
        await end
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
    in_vain = StaticFolder(config(tmp_path, 0, join_timeout_s=0.2), tmp_path)
    await in_vain.answered()


async def test_a_node_that_waits_for_node_0_in_vain_says_where(tmp_path: Path) -> None:
    with pytest.raises(RendezvousTimedOut, match="node 0 of the run static did not answer") as late:
        await StaticFolder(config(tmp_path, 1, join_timeout_s=0.2), tmp_path).found()
    assert late.value.where == str(tmp_path)
    assert not any(path.is_file() for path in await asyncio.to_thread(lambda: list(tmp_path.rglob("*"))))


async def test_a_node_alone_or_with_a_folder_of_its_own_waits_for_nobody(tmp_path: Path) -> None:
    for alone in (config(tmp_path, 0, nodes=1), config(None, 2)):
        found = {await StaticFolder(alone, tmp_path).found() for _ in range(2)}
        assert len(found) == 2
        await StaticFolder(alone, tmp_path).answer()


async def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="--shared-dir"):
        await StaticFolder(config(tmp_path / "file", 1), tmp_path / "file").found()
