"""A job's secrets: files that travel as private files, are in no document, and go with their launch."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest
from launcher_bench import Bench, eventually, running

from elasticgrid import environment
from elasticgrid.core import events as ev
from elasticgrid.core.errors import InvalidJob
from elasticgrid.launcher.secret_files import (
    MAX_SECRET_BYTES,
    bring_secrets,
    brought_secrets,
    forget_secrets,
    read_secret,
)

SECRET = "a-secret-of-this-test-0123456789"
#: Says what the agent was given, and waits.
ASKING_AGENT = (
    *(sys.executable, "-S", "-c"),
    "import os, sys, time\n"
    f"folder = os.environ['{environment.SECRETS_DIR}']\n"
    f"print(sorted(os.listdir(folder)), any('{SECRET[:12]}' in each for each in os.environ.values()), flush=True)\n"
    "time.sleep(600)",
)


def secret_file(folder: Path, text: str | bytes = f"{SECRET}\n", mode: int = 0o600) -> Path:
    path = folder / "hf.token"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


def launch_folder(bench: Bench, handle: str) -> Path:
    return bench.folder / "data" / "launches" / handle


@pytest.mark.process
async def test_a_launch_has_private_copies_that_end_with_it_and_no_document_has_what_is_in_them(bench: Bench) -> None:
    token = secret_file(bench.folder)
    await bench.provider()
    await bench.submit(secrets={"HF_TOKEN": str(token), "OTHER": str(token)})
    async with running(bench.launcher(agent_command=ASKING_AGENT)):
        await bench.place()
        folder = launch_folder(bench, await bench.handle())
        log = folder / "logs" / "rank_0.log"
        await eventually(lambda: log.exists() and log.read_text().endswith("\n"))
        assert log.read_text() == "['HF_TOKEN', 'OTHER'] False\n"
        copies = sorted((folder / "secrets").iterdir())
        assert [path.read_text() for path in copies] == [f"{SECRET}\n"] * 2
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder / "secrets", *copies)]
        assert modes == [0o700, 0o600, 0o600]
        others = [path for path in folder.parent.parent.rglob("*") if path.is_file() and path not in copies]
        assert [path for path in others if SECRET.encode() in path.read_bytes()] == []
        assert any(str(token) in path.read_text() for path in others if path.name == "launch.json")
        await bench.drop("p1a1", "p1a1-0")
        await bench.until(ev.LaunchStopped)
        await eventually(lambda: not (folder / "secrets").exists())
    assert SECRET not in str([recorded async for recorded in bench.log.read()])


@pytest.mark.process
async def test_the_setup_command_finds_the_files_too(bench: Bench) -> None:
    setup = f'test "$(cat "${environment.SECRETS_DIR}/HF_TOKEN")" = {SECRET} && echo found'
    await bench.provider()
    await bench.submit(setup=setup, secrets={"HF_TOKEN": str(secret_file(bench.folder))})
    await bench.place()
    async with running(bench.launcher()):
        folder = launch_folder(bench, await bench.handle())
    assert (folder / "logs" / "setup.log").read_text() == "found\n"


@pytest.mark.process
async def test_a_later_launch_has_what_is_in_the_file_then(bench: Bench) -> None:
    token = secret_file(bench.folder)
    await bench.provider()
    await bench.submit(secrets={"HF_TOKEN": str(token)})
    async with running(bench.launcher()):
        await bench.place()
        first = launch_folder(bench, await bench.handle())
        secret_file(bench.folder, "renewed")
        await bench.place("p2a1")
        later = launch_folder(bench, (await bench.until(ev.LaunchStarted, 2))[1].handle)
    assert (first / "secrets" / "HF_TOKEN").read_text() == f"{SECRET}\n"
    assert (later / "secrets" / "HF_TOKEN").read_text() == "renewed"


@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        (None, 0, "the file cannot be read: No such file or directory"),
        (SECRET, 0o644, "everybody on the machine may read or change it, its mode is 0644"),
        (SECRET * 2_000, 0o600, "there is more in it than 32,768 bytes"),
        (" \n", 0o600, "there is nothing in it"),
        (b"\xff" + SECRET.encode(), 0o600, "it holds no text"),
    ],
)
async def test_a_file_that_is_no_secret_fails_the_job_before_anything_starts(
    bench: Bench, text: str | bytes | None, mode: int, why: str
) -> None:
    path = bench.folder / "hf.token" if text is None else secret_file(bench.folder, text, mode)
    await bench.provider()
    await bench.submit(secrets={"HF_TOKEN": str(path)}, setup="echo x > started")
    await bench.place()
    async with running(bench.launcher()):
        (failed,) = await bench.until(ev.LaunchFailed)
    assert failed.failure == "invalid"
    assert failed.text.startswith(f"secrets.HF_TOKEN: {path}: {why}")
    assert SECRET[:12] not in failed.text
    assert not (bench.folder / "started").exists()
    assert bench.processes() == []
    assert list(bench.folder.glob("data/launches/*/secrets")) == []


@pytest.mark.process
async def test_no_job_is_given_what_the_grid_itself_enters_with(bench: Bench) -> None:
    await bench.provider()
    await bench.submit(secrets={"MINE": str(bench.node_credentials)})
    await bench.submit("bundled", workdir=str(bench.folder), file_mounts={"x": str(bench.node_credentials)})
    await bench.place()
    await bench.place(job="bundled")
    bench.node_credentials.chmod(0o600)
    async with running(bench.launcher()):
        (failed,) = await bench.until(ev.LaunchFailed)
        (bundled,) = await bench.until(ev.LaunchFailed, job="bundled")
    assert (failed.failure, "the file is the grid's own" in failed.text) == ("invalid", True)
    assert (bundled.failure, "a secret of the job's or the grid's own" in bundled.text) == ("invalid", True)


@pytest.mark.process
async def test_a_secret_that_lies_in_the_work_folder_is_in_no_copy_of_it(bench: Bench) -> None:
    work = bench.folder / "work"
    work.mkdir()
    (work / "train.py").touch()
    await bench.provider()
    await bench.submit(workdir=str(work), bundle=True, secrets={"HF_TOKEN": str(secret_file(work))})
    await bench.place()
    async with running(bench.launcher()):
        folder = launch_folder(bench, await bench.handle())
    assert os.listdir(folder / "workspace") == ["train.py"]


@pytest.mark.process
async def test_what_a_launcher_that_was_killed_left_behind_goes_when_the_next_one_reads_the_end(bench: Bench) -> None:
    await bench.provider()
    await bench.submit(secrets={"HF_TOKEN": str(secret_file(bench.folder))})
    await bench.place()
    async with running(bench.launcher()):
        folder = launch_folder(bench, await bench.handle())
    bench.kill_everything()
    assert (folder / "secrets").exists()
    # As one that was killed between recording the end and removing the files.
    await bench.fact(ev.LaunchStopped(attempt="p1a1", reason="test"))
    async with running(bench.launcher()):
        await eventually(lambda: not (folder / "secrets").exists())


@pytest.mark.process
async def test_bundles_of_jobs_that_are_over_are_deleted_and_no_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticgrid.launcher.bundle_store.BUNDLES_KEPT", 0)
    store = bench.folder / "data" / "bundles"
    await bench.provider()
    for job in ("over", "going-on"):
        work = bench.folder / job
        work.mkdir()
        (work / "name.txt").write_text(job)
        await bench.submit(job, workdir=str(work), bundle=True)
        await bench.place(job=job)
    async with running(bench.launcher(orphans_every_s=0.05)):
        for job in ("over", "going-on"):
            await bench.handle(job)
        (over,) = await bench.until(ev.LaunchStarted, job="over")
        (going_on,) = await bench.until(ev.LaunchStarted, job="going-on")
        assert len(list(store.glob("*.tar.gz"))) == 2
        # The job that goes on has no node left, and may get one at any time.
        await bench.drop("p1a1", "p1a1-0", job="going-on")
        await bench.until(ev.LaunchStopped, job="going-on")
        await bench.drop("p1a1", "p1a1-0", job="over")
        await bench.until(ev.LaunchStopped, job="over")
        await bench.decide(ev.DrainDecided(round=0, reason="cancelled"), job="over")
        await bench.decide(ev.OutcomeDecided(outcome="cancelled", reason="test", last_step=0), job="over")
        await eventually(lambda: not (store / f"{over.bundle_sha256}.tar.gz").exists())
    assert [path.name for path in store.glob("*.tar.gz")] == [f"{going_on.bundle_sha256}.tar.gz"]


def test_copies_are_made_anew_and_a_file_that_cannot_be_used_leaves_none(tmp_path: Path) -> None:
    launch = tmp_path / "launch"
    launch.mkdir()
    token = str(secret_file(tmp_path))
    bring_secrets({"A": token, "B": token}, launch)
    bring_secrets({"A": token}, launch)
    assert brought_secrets(launch) == {"A": f"{SECRET}\n".encode()}
    with pytest.raises(InvalidJob):
        bring_secrets({"A": token, "B": f"{token}.none"}, launch)
    assert brought_secrets(launch) == {}
    bring_secrets({}, launch)
    forget_secrets(launch)
    assert list(launch.iterdir()) == []


def test_a_pipe_or_a_folder_is_no_secret_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(InvalidJob, match="this is no file"):
        read_secret("X", tmp_path / "pipe")
    with pytest.raises(InvalidJob, match="Is a directory"):
        read_secret("X", tmp_path)


def test_a_link_is_followed_but_not_into_what_is_the_grids_own(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "link").symlink_to(secret_file(tmp_path / "own"))
    assert read_secret("X", tmp_path / "link") == f"{SECRET}\n".encode()
    with pytest.raises(InvalidJob, match="the file is the grid's own"):
        read_secret("X", tmp_path / "link", closed=[tmp_path / "own"])


def test_the_largest_secret_is_taken_and_the_group_may_read_it(tmp_path: Path) -> None:
    path = secret_file(tmp_path, "x" * MAX_SECRET_BYTES, 0o640)
    assert len(read_secret("X", path)) == MAX_SECRET_BYTES
