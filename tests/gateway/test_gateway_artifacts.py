"""Files of a job's checkpoint folder: listed and downloaded, and no path leads out of it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import httpx
import pytest
from callers import JOB

from elasticgrid.core.names import submission_folder
from elasticgrid.gateway.server import RunningGateway
from elasticgrid.gateway.service import GatewayService


async def job_with_files(
    client: httpx.AsyncClient, gateway: GatewayService, base: Path | None = None
) -> tuple[str, Path]:
    """A job and the folder that its workers write checkpoints to."""
    body = JOB if base is None else JOB | {"checkpoint_dir": str(base)}
    job = (await client.post("/jobs", json=body)).json()["job"]["id"]
    submitted_id = gateway.jobs.state("default", job).submitted_id
    root = base if base is not None else gateway.data_dir / "shared"
    folder = root / submission_folder("default", job, submitted_id) / "checkpoints"
    (folder / "step-10").mkdir(parents=True)
    (folder / "latest.json").write_text('{"step": 10}')
    (folder / "step-10" / "rank-0.npz").write_bytes(b"\x00\x01" * 1_000)
    return job, folder


@pytest.mark.parametrize("own_folder", [False, True])
async def test_what_workers_wrote_is_listed_and_downloaded(
    client: httpx.AsyncClient, gateway: GatewayService, tmp_path: Path, own_folder: bool
) -> None:
    job, _ = await job_with_files(client, gateway, tmp_path / "mine" if own_folder else None)
    listed = (await client.get(f"/jobs/{job}/artifacts")).json()
    assert listed["job_id"] == job
    assert not listed["truncated"]
    assert [(each["path"], each["size_bytes"]) for each in listed["artifacts"]] == [
        ("latest.json", 12),
        ("step-10/rank-0.npz", 2_000),
    ]
    answer = await client.get(f"/jobs/{job}/artifacts/step-10/rank-0.npz")
    assert answer.content == b"\x00\x01" * 1_000
    assert answer.headers["Content-Length"] == "2000"
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"].startswith("attachment;")


async def test_a_job_without_checkpoints_has_none(client: httpx.AsyncClient) -> None:
    job = (await client.post("/jobs", json=JOB)).json()["job"]["id"]
    assert (await client.get(f"/jobs/{job}/artifacts")).json()["artifacts"] == []
    assert (await client.get(f"/jobs/{job}/artifacts/latest.json")).status_code == 404
    assert (await client.get("/jobs/nobody/artifacts")).status_code == 404


OUT = (
    "../secret",
    "..%2fsecret",
    "%2e%2e/secret",
    "%2e%2e%2fsecret",
    "step-10/../../secret",
    "step-10/%2e%2e/%2e%2e/secret",
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "//etc/passwd",
    "./latest.json",
    "step-10//rank-0.npz",
    "latest.json%00",
    "%00",
    "step-10%00/rank-0.npz",
    "step-10",
    "step-10/",
    "..",
    ".",
    "..%5csecret",
    "latest.json%0d%0aX-Evil:1",
    "x" * 5_000,
    "file-link",
    "folder-link/secret",
    "up-link/secret",
    "pipe",
    "%ff%fe",
)
#: Other ways to say a file that is in the folder.
SAME = ("step-10//rank-0.npz",)


async def raw_get(running: RunningGateway, target: str, key: str) -> bytes:
    """The whole answer to a request whose target no client has tidied up."""
    reader, writer = await asyncio.open_connection(running.host, running.port)
    head = f"GET {target} HTTP/1.1\r\nHost: grid\r\nX-API-Key: {key}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode("latin-1"))
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.security
async def test_no_path_leads_out_of_the_folder_or_to_what_is_no_file(
    client: httpx.AsyncClient, gateway: GatewayService, running: RunningGateway, key: str, tmp_path: Path
) -> None:
    job, folder = await job_with_files(client, gateway)
    outside = tmp_path / "outside"
    outside.mkdir()
    for secret in (outside / "secret", folder.parent / "secret", folder.parent.parent / "secret"):
        secret.write_text("not yours")
    (folder / "file-link").symlink_to(outside / "secret")
    (folder / "folder-link").symlink_to(outside)
    (folder / "up-link").symlink_to("..")
    os.mkfifo(folder / "pipe")
    good = await raw_get(running, f"/v1/jobs/{job}/artifacts/latest.json", key)
    assert good.endswith(b'{"step": 10}')
    for path in OUT:
        answer = await raw_get(running, f"/v1/jobs/{job}/artifacts/{path}", key)
        status = int(answer.split(b" ", 2)[1])
        assert status in (400, 404) or answer.endswith(good[-12:]) or path in SAME, (path, answer[:200])
        assert b"not yours" not in answer, path
        assert b"root:" not in answer, path
        assert b"X-Evil" not in answer.split(b"\r\n\r\n")[0], path
    listed = [each["path"] for each in (await client.get(f"/jobs/{job}/artifacts")).json()["artifacts"]]
    assert listed == ["latest.json", "step-10/rank-0.npz"]


@pytest.mark.security
async def test_a_folder_that_the_job_replaced_by_a_link_is_not_followed(
    client: httpx.AsyncClient, gateway: GatewayService, tmp_path: Path
) -> None:
    job, folder = await job_with_files(client, gateway)
    foreign = tmp_path / "foreign" / "checkpoints"
    foreign.mkdir(parents=True)
    (foreign / "secret").write_text("not yours")
    for link, target in ((folder, foreign), (folder.parent, foreign.parent)):
        os.rename(link, tmp_path / f"old-{link.name}")
        link.symlink_to(target)
        assert (await client.get(f"/jobs/{job}/artifacts")).json()["artifacts"] == []
        assert (await client.get(f"/jobs/{job}/artifacts/secret")).status_code == 404
        link.unlink()
        os.rename(tmp_path / f"old-{link.name}", link)


async def test_names_that_cannot_be_told_are_left_out(client: httpx.AsyncClient, gateway: GatewayService) -> None:
    job, folder = await job_with_files(client, gateway)
    (folder / "line\nbreak").write_text("x")
    (folder / os.fsdecode(b"\xff\xfe")).write_text("x")
    listed = [each["path"] for each in (await client.get(f"/jobs/{job}/artifacts")).json()["artifacts"]]
    assert listed == ["latest.json", "step-10/rank-0.npz"]
