"""What a launch on the launcher's own machine works in: its folder or a copy, what was set up, and what is kept."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest
from launcher_bench import Bench, eventually, running

from elasticgrid.core import events as ev

pytestmark = pytest.mark.process

#: Says where it is and what is there, and waits.
LOOKING_AGENT = (
    *(sys.executable, "-S", "-c"),
    "import os, sys, time; print(os.getcwd(), sorted(os.listdir())); sys.stdout.flush(); time.sleep(600)",
)


def launches(bench: Bench) -> Path:
    return bench.folder / "data" / "launches"


@pytest.fixture
def work(bench: Bench) -> Path:
    work = bench.folder / "work"
    work.mkdir()
    (work / "train.py").write_text("x")
    (work / ".env").write_text("TOKEN=x")
    return work


async def said(bench: Bench, handle: str) -> str:
    log = launches(bench) / handle / "logs" / "rank_0.log"
    await eventually(lambda: log.exists() and log.read_text().endswith("\n"))
    return log.read_text().strip()


async def test_a_job_works_in_its_own_folder_unless_it_wants_a_copy(bench: Bench, work: Path) -> None:
    await bench.provider()
    await bench.submit("plain", workdir=str(work))
    await bench.submit("copied", workdir=str(work), bundle=True)
    async with running(bench.launcher(agent_command=LOOKING_AGENT)):
        await bench.place(job="plain")
        await bench.place(job="copied")
        plain, copied = await bench.handle("plain"), await bench.handle("copied")
        (in_place,) = await bench.until(ev.LaunchStarted, job="plain")
        assert in_place.bundle_sha256 == ""
        assert await said(bench, plain) == f"{work} ['.env', 'train.py']"
        assert await said(bench, copied) == f"{launches(bench) / copied / 'workspace'} ['train.py']"


async def test_a_node_that_comes_later_works_in_what_the_first_ones_had(bench: Bench, work: Path) -> None:
    await bench.provider()
    await bench.submit(workdir=str(work), bundle=True)
    async with running(bench.launcher(agent_command=LOOKING_AGENT)):
        await bench.place()
        await bench.handle()
        (work / "later.py").write_text("x")
        await bench.place("p2a1")
        first, later = await bench.until(ev.LaunchStarted, 2)
        archive = bench.folder / "data" / "bundles" / f"{first.bundle_sha256}.tar.gz"
        assert first.bundle_sha256 == later.bundle_sha256 == hashlib.sha256(archive.read_bytes()).hexdigest()
        assert (await said(bench, later.handle)).endswith("['train.py']")


async def test_mounts_are_put_into_a_copy_and_the_folder_stays_as_it_was(bench: Bench, work: Path) -> None:
    (bench.folder / "words.txt").write_text("w")
    await bench.provider()
    await bench.submit(workdir=str(work), file_mounts={"data/words.txt": str(bench.folder / "words.txt")})
    async with running(bench.launcher(agent_command=LOOKING_AGENT)):
        await bench.place()
        handle = await bench.handle()
        assert (await said(bench, handle)).endswith("['data', 'train.py']")
    assert not (work / "data").exists()


async def test_setup_runs_once_before_the_nodes_and_fills_caches_that_the_next_launch_has(
    bench: Bench, work: Path
) -> None:
    setup = (
        "echo set up by $ELASTICGRID_JOB\n"
        'test -e "$ELASTICGRID_CACHE_DIR/venv/.ready" && exit\n'
        'echo x >> "$ELASTICGRID_CACHE_DIR/venv/made"; touch set-up'
    )
    await bench.provider()
    await bench.submit(workdir=str(work), bundle=True, setup=setup, caches=("venv",))
    async with running(bench.launcher(agent_command=LOOKING_AGENT)):
        await bench.place(nodes=2)
        handle = await bench.handle()
        assert (await said(bench, handle)).endswith("['set-up', 'train.py']")
        await bench.place("p2a1")
        await bench.until(ev.LaunchStarted, 2)
    assert (launches(bench) / handle / "logs" / "setup.log").read_text() == "set up by j1\n"
    assert (bench.folder / "data" / "caches" / "venv" / "made").read_text() == "x\n"


@pytest.mark.parametrize(("code", "failure"), [(3, "invalid"), (75, "transient")])
async def test_a_setup_that_fails_is_the_jobs_unless_it_says_that_another_try_may_help(
    bench: Bench, work: Path, code: int, failure: str
) -> None:
    setup = f'echo x > "$ELASTICGRID_CACHE_DIR/venv/half"; echo no permission denied here; exit {code}'
    await bench.provider()
    await bench.submit(workdir=str(work), setup=setup, caches=("venv",))
    await bench.place()
    async with running(bench.launcher()):
        (failed,) = await bench.until(ev.LaunchFailed)
    assert failed.failure == failure
    assert failed.text == f"the setup command ended with {code}: no permission denied here"
    assert not (bench.folder / "data" / "caches" / "venv" / ".ready").exists()
    assert bench.processes() == []


async def test_a_folder_that_cannot_be_bundled_is_the_jobs_fault_and_creates_nothing(bench: Bench, work: Path) -> None:
    (work / "out").symlink_to("/etc")
    await bench.provider()
    await bench.submit(workdir=str(work), bundle=True)
    await bench.place()
    async with running(bench.launcher()):
        (failed,) = await bench.until(ev.LaunchFailed)
    assert failed.failure == "invalid"
    assert failed.text.startswith(f"{work}/out: the link leads out of the folder, to /etc")


async def test_a_bundle_has_the_size_that_the_launcher_allows(bench: Bench, work: Path) -> None:
    (work / "big.bin").write_bytes(b"x" * 2_000)
    await bench.provider()
    await bench.submit(workdir=str(work), bundle=True)
    await bench.place()
    async with running(bench.launcher(bundle_limit_bytes=1_000)):
        (failed,) = await bench.until(ev.LaunchFailed)
    assert failed.failure == "invalid"
    assert "big.bin (2,000 bytes)" in failed.text


async def test_agents_that_never_join_are_a_failed_boot_with_their_last_words(bench: Bench) -> None:
    await bench.provider()
    await bench.submit(join_timeout_ms=1)
    await bench.place(nodes=2)
    async with running(bench.launcher(agent_command=LOOKING_AGENT)):
        handle = await bench.handle()
        words = await said(bench, handle)
        await bench.drop("p1a1", "p1a1-0", "p1a1-1")
        (failed,) = await bench.until(ev.LaunchFailed)
    assert failed.failure == "boot_failed"
    assert failed.text.startswith("its agents did not join in 0.001 s\n")
    assert words in failed.text
    assert await bench.kinds() == ["requested", "started", "stop_requested", "failed"]
    assert bench.processes() == []


async def test_agents_that_were_given_no_time_to_join_are_no_failure_of_their_provider(bench: Bench) -> None:
    await bench.provider()
    await bench.submit(join_timeout_ms=600_000)
    await bench.place()
    async with running(bench.launcher()):
        await bench.handle()
        await bench.drop("p1a1", "p1a1-0")
        await bench.until(ev.LaunchStopped)
    assert "failed" not in await bench.kinds()
