"""`bus init` and `bus env`: what a bus of its own is told, and who gets which file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from elasticgrid.bus.authority import read_authority
from elasticgrid.bus.credentials import read_credentials
from elasticgrid.bus.embedded import find_nats_server

BIN = Path(sys.executable).parent


def elasticgrid(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "elasticgrid"), "bus", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_init_writes_private_files_and_a_secret_that_is_there_is_kept(tmp_path: Path) -> None:
    assert elasticgrid(tmp_path, "init", "secrets").returncode == 0
    folder = tmp_path / "secrets"
    first = (folder / "authority.key").read_text()
    names = {"authority.key", "trust.conf", *(f"{role}.json" for role in ("decider", "launcher", "gateway", "reader"))}
    assert {path.name for path in folder.iterdir()} == names | {"service.json"}
    assert [path.name for path in (folder, *folder.iterdir()) if path.stat().st_mode & 0o077] == []
    assert first.strip() not in (folder / "trust.conf").read_text()
    assert elasticgrid(tmp_path, "init", "secrets").returncode == 0
    assert (folder / "authority.key").read_text() == first
    decider = read_credentials(folder / "decider.json")
    assert decider.inbox_prefix == "_INBOX_decider"
    assert decider.expires_s == 0


def test_what_init_wrote_is_told_to_a_script_without_what_is_in_it(tmp_path: Path) -> None:
    made = elasticgrid(tmp_path, "init", "secrets", "--json")
    assert (made.returncode, made.stderr) == (0, "")
    files = {Path(each) for each in json.loads(made.stdout)["files"]}
    assert {each.name for each in files} == {path.name for path in (tmp_path / "secrets").iterdir()}
    assert (tmp_path / "secrets" / "authority.key").read_text().strip() not in made.stdout


@pytest.mark.server
def test_a_server_takes_what_init_wrote(tmp_path: Path) -> None:
    accounts = str(tmp_path / "accounts")
    assert elasticgrid(tmp_path, "init", "secrets", "--accounts-dir", accounts).returncode == 0
    (tmp_path / "nats.conf").write_text('port: -1\njetstream {store_dir: "store"}\ninclude secrets/trust.conf\n')
    command = [str(find_nats_server()), "-t", "-c", "nats.conf"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert checked.returncode == 0, checked.stderr


def test_env_writes_a_private_file_once(tmp_path: Path) -> None:
    made = elasticgrid(tmp_path, "env", "--out", ".env")
    assert made.returncode == 0, made.stderr
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0
    variables = dict(line.split("=", 1) for line in (tmp_path / ".env").read_text().splitlines())
    assert len(variables["ELASTICGRID_BUS_SECRET"]) == 64
    assert variables["ELASTICGRID_BUS_SECRET"] not in made.stdout + made.stderr
    again = elasticgrid(tmp_path, "env", "--out", ".env")
    assert again.returncode == 2
    assert "already" in again.stderr


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    assert elasticgrid(tmp_path, "init", "secrets").returncode == 0
    key = tmp_path / "secrets" / "authority.key"
    key.chmod(0o640)
    refused = elasticgrid(tmp_path, "init", "secrets")
    assert refused.returncode == 2
    assert "chmod 600" in refused.stderr
    key.chmod(0o600)
    assert read_authority(key).grid_account.startswith("A")
