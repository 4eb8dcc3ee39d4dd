"""`doctor`: each usual trouble is found and its remedy said, and looking changes nothing."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from cli_grid import GridThread, Run

from elasticgrid.cli.doctor_checks import CHECKS, Found, diagnose, parse_version
from elasticgrid.cli.provider_checks import Here, check_provider
from elasticgrid.core.spec import ProviderSpec

WELL = Found(
    http="127.0.0.1:8080",
    http_taken=False,
    gateway_url="http://127.0.0.1:9090",
    gateway_status=200,
    gateway_ready=True,
    log_compared=42,
    our_version="1.2.3",
    gateway_version="1.2.9",
    skew_s=0.3,
    round_trip_s=0.01,
    key_file="/d/admin.key",
    key_mode=0o600,
    engines=("local",),
    server_path="/bin/nats-server",
    server_version="v2.12.1",
    data_dir="/d",
    free_bytes=50 * 1024**3,
    total_bytes=100 * 1024**3,
    bus_url="nats://b:4222",
    bus_server_version="2.12.0",
    credentials="/d/service.json",
)


def changed(**fields: object) -> Found:
    return Found(**{**{name: getattr(WELL, name) for name in WELL.__struct_fields__}, **fields})


def test_a_machine_that_is_well_has_no_findings_but_good_ones() -> None:
    assert {each.status for each in diagnose(WELL)} == {"ok"}


@pytest.mark.parametrize(
    ("check", "fields", "says", "remedy"),
    [
        ("engine", {"engine_problem": "iroh-tinker is not installed"}, "not installed", "pip install"),
        ("engine", {"engines": ()}, "no engine", "providers check"),
        ("nats-server", {"bus_server_version": "2.11.4"}, "version 2.11.4", "2.12 or later"),
        ("nats-server", {"bus_url": "", "server_version": "v2.10.0"}, "v2.10.0", "2.12 or later"),
        ("nats-server", {"bus_url": "", "server_problem": "no such file"}, "no such file", "pip install"),
        ("nats-server", {"bus_url": "", "server_version": "hello"}, "does not say", "nats-server"),
        ("permission", {"data_dir_problem": "it cannot be written to"}, "/d: it cannot", "--data"),
        ("disk", {"free_bytes": 10 * 1024**2}, "0.0 GiB free", "free some space"),
        ("disk", {"free_bytes": 2 * 1024**3, "total_bytes": 1024**4}, "2.0 GiB free", "free some space"),
        ("port", {"http_taken": True}, "something else listens", "--http"),
        ("gateway", {"gateway_problem": "refused"}, "refused", "elasticgrid up"),
        ("gateway", {"gateway_ready": False, "gateway_ready_problem": "behind"}, "behind", "bus"),
        ("key", {"key_problem": "no such file"}, "no such file", "--key-file"),
        ("key", {"key_mode": 0o644}, "others can read", "chmod 600"),
        ("key", {"gateway_status": 401}, "does not know the key", "elasticgrid up"),
        ("key", {"gateway_status": 403}, "may not", "scope"),
        ("version", {"gateway_version": "1.3.0"}, "1.3.0", "pip install"),
        ("log", {"log_problem": "stream and mirror differ from event 7"}, "from event 7", "events restore"),
        ("clock", {"skew_s": 30.0}, "30 s ahead of", "NTP"),
        ("clock", {"skew_s": -30.0}, "30 s behind", "NTP"),
        ("bus", {"bus_problem": "no connection"}, "no connection", "ELASTICGRID_NATS_URL"),
        ("bus", {"bus_problem": "no connection", "bus_here": True}, "no connection", "/d/bus"),
        ("log", {"log_problem": "damaged", "log_remedy": "set it aside"}, "damaged", "set it aside"),
        ("credential", {"bus_problem": "x", "credentials_refused": True}, "refuses it", "expired"),
        ("credential", {"credentials_problem": "not valid"}, "not valid", "ELASTICGRID_CREDENTIALS"),
    ],
)
def test_each_trouble_is_found_alone_and_its_remedy_said(
    check: str, fields: dict[str, object], says: str, remedy: str
) -> None:
    problems = [each for each in diagnose(changed(**fields)) if each.status == "problem"]
    assert [each.check for each in problems] == [check]
    assert says in problems[0].says
    assert remedy in problems[0].remedy


def test_a_port_that_our_gateway_has_is_no_trouble() -> None:
    found = diagnose(changed(http_taken=True, gateway_url="http://127.0.0.1:8080"))
    assert not [each for each in found if each.status == "problem"]


def test_nothing_known_is_skipped_and_never_an_error() -> None:
    assert len(diagnose(Found(engines=("local",), server_version="2.12.0"))) == len(CHECKS)


@pytest.mark.parametrize(
    ("text", "version"),
    [("nats-server: v2.12.1", (2, 12)), ("2.12.1-beta", (2, 12)), ("v3.0", (3, 0)), ("", None), ("v2", None)],
)
def test_versions_are_read_as_they_are_written(text: str, version: tuple[int, int] | None) -> None:
    assert parse_version(text) == version


# ---------------------------------------------------------------------------------------------------------------------
# With a real machine
# ---------------------------------------------------------------------------------------------------------------------


def statuses(ended: object) -> dict[str, str]:
    return {each["check"]: each["status"] for each in ended.json()}  # type: ignore[attr-defined] # what a command ended with


def test_a_grid_that_runs_is_well(run: Run, grid: GridThread) -> None:
    port = grid.url.rpartition(":")[2]
    ended = run("doctor", "--http", f"127.0.0.1:{port}", "--json")
    assert ended.code == 0, ended.out
    assert statuses(ended) == {
        **dict.fromkeys(
            ("engine", "nats-server", "permission", "disk", "port", "gateway", "key", "version", "clock"), "ok"
        ),
        "log": "skipped",  # this one keeps its log in memory, with no mirror
        "bus": "skipped",
        "credential": "skipped",
    }


def test_looking_makes_nothing(run: Run, folder: Path) -> None:
    assert run("doctor", "--http", "127.0.0.1:9").code == 0
    assert list(folder.iterdir()) == []


def test_the_port_is_no_matter_where_this_folders_gateway_answers() -> None:
    found = {each.check: each for each in diagnose(changed(http_taken=True, gateway_here=True))}
    assert (found["port"].status, "listens at http://127.0.0.1:9090" in found["port"].says) == ("ok", True)


def test_several_troubles_are_all_told(
    run: Run, grid: GridThread, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTICGRID_NATS_URL", "nats://127.0.0.1:9")
    (folder / "key").write_text("w" * 40)
    (folder / "key").chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        line = ("doctor", "--http", taken, "--url", grid.url, "--key-file", "key", "--nats-server", "/bin/false")
        ended = run(*line, "--json")
    assert ended.code == 1
    found = statuses(ended)
    assert {name for name, status in found.items() if status == "problem"} == {"key", "bus"}
    assert "key: use the key of this gateway" in ended.err


def test_something_else_than_a_gateway_is_told_from_one(run: Run, folder: Path) -> None:
    (folder / "key").write_text("w" * 40)
    (folder / "key").chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute.close()
        ended = run("doctor", "--url", f"http://127.0.0.1:{mute.fileno()}", "--key-file", "key", "--json")
    assert statuses(ended)["gateway"] == "problem"


@pytest.mark.server
def test_a_stale_credential_is_told_from_a_bus_that_is_away(
    run: Run, data_dir: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with GridThread(data_dir, on_bus=True) as running:
        assert running.service.bus is not None
        where = running.service.bus.connected_url
        assert where is not None
        monkeypatch.setenv("ELASTICGRID_NATS_URL", f"nats://{where.netloc}")
        monkeypatch.setenv("ELASTICGRID_CREDENTIALS", str(data_dir / "bus" / "service.json"))
        ended = run("doctor", "--json")
        assert {name: statuses(ended)[name] for name in ("bus", "credential", "nats-server")} == {
            "bus": "ok",
            "credential": "ok",
            "nats-server": "ok",
        }
        (folder / "old.json").write_text('{"user": "service", "password": "of last week"}')
        monkeypatch.setenv("ELASTICGRID_CREDENTIALS", str(folder / "old.json"))
        ended = run("doctor", "--json")
        assert (statuses(ended)["bus"], statuses(ended)["credential"]) == ("ok", "problem")


# ---------------------------------------------------------------------------------------------------------------------
# Providers
# ---------------------------------------------------------------------------------------------------------------------


def here(tmp_path: Path, *commands: str, **environ: str) -> Here:
    return Here(environ, tmp_path, lambda name: f"/bin/{name}" if name in commands else None, lambda _engine: "")


@pytest.mark.parametrize(
    ("engine", "commands", "environ", "why"),
    [
        ("local", (), {}, ""),
        ("ssh", (), {}, "there is no command ssh"),
        ("ssh", ("ssh",), {}, "no hosts are named"),
        ("gcp/us-central1", (), {}, "there is no command gcloud"),
        ("gcp/us-central1", ("gcloud",), {}, "nobody is logged in"),
        ("gcp/us-central1", ("gcloud",), {"GOOGLE_APPLICATION_CREDENTIALS": "x"}, ""),
        ("aws/us-east-1", ("aws",), {}, "nobody is logged in"),
        ("aws/us-east-1", ("aws",), {"AWS_ACCESS_KEY_ID": "x"}, ""),
        ("azure/westeurope", ("aws",), {}, "there is no command az"),
    ],
)
def test_a_provider_is_usable_where_its_tools_and_login_are(
    engine: str, commands: tuple[str, ...], environ: dict[str, str], why: str, tmp_path: Path
) -> None:
    checked = check_provider(ProviderSpec(name="x", engine=engine, max_nodes=1), here(tmp_path, *commands, **environ))
    assert checked.usable == (not why)
    assert why in checked.why
    assert bool(checked.remedy) == bool(why)


def test_a_login_in_the_home_folder_counts(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").touch()
    assert check_provider(ProviderSpec(name="x", engine="aws/r", max_nodes=1), here(tmp_path, "aws")).usable


def test_providers_of_a_file_are_checked_with_no_gateway(run: Run, folder: Path) -> None:
    (folder / "grid.yaml").write_text(
        "providers:\n- {name: here, max_nodes: 1}\n- {name: odd, engine: 'module=no.such:Thing', max_nodes: 1}\n"
    )
    ended = run("providers", "check", "--config", "grid.yaml", "--json")
    assert ended.code == 1
    assert [each["usable"] for each in ended.json()] == [True, False]
