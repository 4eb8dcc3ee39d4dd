"""A real job on a grid with certificates: it trains, and no secret is anywhere but where it must be."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets as random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from deployment import QUICK, job_file, up_and_down
from sandbox import Sandbox, eventually, open_to_others

from elasticgrid.bus.authority import read_authority
from elasticgrid.bus.credentials import read_credentials
from elasticgrid.log.archive import ArchivedEvents, ArchivedSamples

pytestmark = [pytest.mark.server, pytest.mark.process, pytest.mark.security]

RENDEZVOUS = "IROH_TINKER_RENDEZVOUS_SECRET"
#: A job's own secret, of a form that nobody issues.
TOKEN = f"mine-{random.token_hex(24)}"
#: Says what it was given without saying what that is, and becomes the trainer.
PROOF = """\
printf %s "$HF_TOKEN" | sha256sum > "$PROOF_DIR/variable-$RANK"
tr -d '\\n' < "$HF_TOKEN_FILE" | sha256sum > "$PROOF_DIR/file-$RANK"
stat -c '%a %n' "$HF_TOKEN_FILE" > "$PROOF_DIR/mode-$RANK"
exec """


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path) as sandbox:
        yield sandbox


class Spy(threading.Thread):
    """Reads what everybody on the machine can read of processes, and collects credentials of launches, all the time."""

    def __init__(self, box: Sandbox, launches: Path) -> None:
        super().__init__(daemon=True)
        self.command_lines: set[str] = set()
        self.tokens: set[str] = set()
        self.rendezvous: set[str] = set()
        self.agents: set[str] = set()
        self.workers: set[str] = set()
        self._box = box
        self._launches = launches
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.05):
            self.command_lines |= set(self._box.commands().values())
            for path in self._launches.glob("*/bus.json"):
                with contextlib.suppress(Exception):  # it goes with its launch
                    self.tokens.add(read_credentials(path).token)
            for pid in self._box.running(ELASTICGRID_ROUND="1"):
                with contextlib.suppress(OSError):
                    variables = Path(f"/proc/{pid}/environ").read_bytes().decode()
                    self.workers.add(variables)
                    for variable in variables.split("\0"):
                        if variable.startswith(f"{RENDEZVOUS}="):
                            self.rendezvous.add(variable.partition("=")[2])
            for pid in self._box.commanded(r"\S+ -P -m elasticgrid\.agent "):
                with contextlib.suppress(OSError):
                    self.agents.add(Path(f"/proc/{pid}/environ").read_bytes().decode())

    def end(self) -> None:
        self._over.set()
        self.join()


def certificates(folder: Path) -> tuple[Path, Path, str]:
    """(certificate with its key, CA, the key's own text)."""
    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1")
    folder.mkdir(mode=0o700)
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued.private_key_and_cert_chain_pem.write_to_path(str(folder / "grid.pem"))
    (folder / "grid.pem").chmod(0o600)
    key = issued.private_key_pem.bytes().decode().splitlines()[2]
    return folder / "grid.pem", folder / "ca.pem", key


def test_a_job_trains_behind_tls_and_no_secret_is_in_logs_events_archives_argument_lists_or_errors(
    box: Sandbox, tmp_path: Path
) -> None:
    pem, ca, private_key = certificates(tmp_path / "tls")
    data = box.folder / ".elasticgrid"
    output = tmp_path / "up.log"
    up = box.command("up", "--http", "127.0.0.1:0", "--http-cert", pem, "--http-key", pem, "--http-ca", ca)
    grid = box.start([*up, "--bus-cert", str(pem), "--bus-key", str(pem), "--bus-ca", str(ca)], output=output)
    eventually((data / "gateway.json").exists, 40, "the gateway listens")
    where = json.loads((data / "gateway.json").read_text())
    assert where["url"].startswith("https://")
    spy = Spy(box, data / "launches")
    spy.start()

    proof = tmp_path / "proof"
    proof.mkdir()
    for name, mode in (("hf.token", 0o600), ("open.token", 0o644)):
        (box.folder / name).write_text(f"{TOKEN}\n")
        (box.folder / name).chmod(mode)
    path = job_file(
        box.folder,
        "behind-tls",
        ["sh", "-c", PROOF + up_and_down()],
        nodes={"min": 2, "max": 4, "initial": 2},
        scaling=QUICK,
        env={"OPENBLAS_NUM_THREADS": "1", "PROOF_DIR": str(proof)},
        secrets={"HF_TOKEN": "./hf.token"},
    )
    # A job that only asks, and one whose secret everybody may read.
    asked = box.run("submit", path, "--dry-run", "--json")
    assert (asked.returncode, json.loads(asked.stdout)["warnings"]) == (0, []), asked.stderr
    careless = job_file(box.folder, "careless", "python train.py", secrets={"HF_TOKEN": "./open.token"})
    refused = box.run("submit", careless, "--wait", "--json", timeout_s=60)
    assert "everybody on the machine may read or change it, its mode is 0644" in refused.stderr
    assert refused.returncode == 1
    outcome = json.loads(refused.stdout)["job"]
    assert (outcome["phase"], "open.token" in outcome["outcome_reason"]) == ("failed", True), outcome
    done = box.run("submit", path, "--wait", "--json", timeout_s=150)
    assert done.returncode == 0, f"{done.stderr}\n{output.read_text()[-3000:]}"
    job = json.loads(done.stdout)["job"]["id"]
    archive = box.folder / "job.egz"
    assert box.run("events", "export", archive, "--with-samples").returncode == 0
    watcher = box.folder / "watcher.json"
    made = box.run("bus", "watcher", "--tenant", "default", "--out", watcher)
    assert made.returncode == 0, made.stderr
    assert watcher.stat().st_mode & 0o077 == 0

    said = [
        box.run(*verb)
        for verb in (
            ("jobs", "show", job),
            ("jobs", "show", outcome["id"]),
            ("decisions", "why", job),
            ("doctor",),
            ("logs", job),
        )
    ]
    # Errors of somebody who names the key's file where another belongs, and who has the wrong key, the wrong CA, and an
    # old credential.
    key_file = data / "admin.key"
    mistaken = [
        box.run(*verb, key_file)
        for verb in (
            ("validate",),
            ("validate", "--kind", "grid"),
            ("submit",),
            ("up", "--config"),
            ("replay", "verify"),
        )
    ]
    assert all(each.returncode not in (0, -9) for each in mistaken)
    (box.folder / "wrong.key").write_text("eg_0123456789abcdef_" + "x" * 43)
    wrong_key = box.run("jobs", "list", "--url", where["url"], "--key-file", "wrong.key")
    assert wrong_key.returncode != 0
    unknown_ca = box.run("jobs", "list", environ={"ELASTICGRID_HTTP_CA": "/etc/hostname"})
    assert "ELASTICGRID_HTTP_CA" in unknown_ca.stderr
    stale = {"ELASTICGRID_NATS_URL": f"tls://127.0.0.1:{(data / 'bus/port').read_text()}"}
    stale |= {"ELASTICGRID_CREDENTIALS": str(watcher), "ELASTICGRID_NATS_CA": "/etc/hostname"}
    untrusted = box.run("doctor", "--json", environ=stale)
    spy.end()
    grid.send_signal(signal.SIGTERM)
    assert grid.wait(timeout=30) == 0

    authority = read_authority(data / "bus" / "authority.key")
    secrets = {
        "the bus's secret": (data / "bus" / "authority.key").read_text().strip(),
        "the admin's key": (data / "admin.key").read_text().strip(),
        "the tenant's rendezvous secret": authority.rendezvous_secret("default"),
        "the certificate's key": private_key,
        "a service's token": _tail(read_credentials(data / "bus" / "service.json").token),
        "a dashboard's token": _tail(read_credentials(watcher).token),
        "a wrong key": "x" * 43,
        "the job's own": TOKEN,
    }
    secrets |= {f"token {number} of a launch": _tail(token) for number, token in enumerate(sorted(spy.tokens))}
    assert len(spy.tokens) >= 2
    assert spy.rendezvous == {secrets["the tenant's rendezvous secret"]}
    assert any("elasticgrid.agent" in line for line in spy.command_lines)
    require_given(proof, data / "launches")
    assert spy.workers
    assert all(f"\0HF_TOKEN={TOKEN}\0" in f"\0{variables}" for variables in spy.workers)
    assert spy.agents
    assert not [variables for variables in spy.agents if TOKEN in variables]

    events, samples = ArchivedEvents(archive), ArchivedSamples(archive)
    places = {
        "argument lists": "\n".join(spy.command_lines),
        "the output of the grid": output.read_text(),
        "events": "\n".join(str(recorded) for recorded in events),
        "samples": "\n".join(str(sample) for sample in samples),
        "what commands said": "\n".join(
            each.stdout + each.stderr
            for each in (asked, refused, done, made, *said, *mistaken, wrong_key, unknown_ca, untrusted)
        ),
    }
    assert all(len(text) > 100 for text in places.values()), {name: len(text) for name, text in places.items()}
    for place, text in places.items():
        assert [name for name, secret in secrets.items() if secret in text] == [], place

    private = {"authority.key", "admin.key", "service.json", "bus.json", "system.json", "watcher.json", "grid.pem"}
    for file in (path for path in (*data.rglob("*"), archive) if path.is_file()):
        found = [name for name, secret in secrets.items() if secret.encode() in file.read_bytes()]
        assert not found or file.name in private, (file, found)
        assert not found or file.stat().st_mode & 0o077 == 0, file
    assert not list((data / "launches").glob("*/bus.json"))
    assert not list((data / "launches").glob("*/secrets"))
    assert os.listdir(data / "bus" / "accounts")


def require_given(proof: Path, launches: Path) -> None:
    """Every worker had the secret, in its variable and in a private file of its launch."""
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    shown = {path.name: path.read_text().split() for path in proof.iterdir()}
    assert {f"{what}-{rank}" for what in ("variable", "file", "mode") for rank in (0, 1)} <= shown.keys()
    for name, (word, where) in shown.items():
        assert word == ("600" if name.startswith("mode-") else digest), name
        assert where == "-" or where.startswith(str(launches)), where


def _tail(token: str) -> str:
    """The signature: what comes before it says who somebody is, and opens nothing."""
    return token.rpartition(".")[2]


def test_the_data_folder_of_a_grid_is_closed_to_other_users(box: Sandbox) -> None:
    data = box.folder / ".elasticgrid"
    grid = box.start(box.command("up", "--http", "127.0.0.1:0"))
    eventually((data / "gateway.json").exists, 40, "the gateway listens")
    assert data.stat().st_mode & 0o077 == 0
    assert [
        name for name in open_to_others(data) if name.endswith((".key", ".json")) and "gateway.json" not in name
    ] == []
    grid.send_signal(signal.SIGTERM)
    assert grid.wait(timeout=30) == 0
