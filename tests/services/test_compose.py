"""The deployment files: what compose.yaml starts exists, is configured, and says the same as the code."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from elasticgrid import environment
from elasticgrid.bus.authority import Authority
from elasticgrid.bus.credentials import Credentials
from elasticgrid.bus.deployment import SERVED as ROLES
from elasticgrid.bus.deployment import deployment_variables
from elasticgrid.bus.embedded import find_nats_server
from elasticgrid.bus.server_config import render
from elasticgrid.config.grid_file import read_grid

TOP = Path(__file__).parents[2]
SERVED = {"decider", "launcher", "gateway"}
#: What only watches: images of others, started when asked for.
WATCHING = {"prometheus": "127.0.0.1:9090:9090", "grafana": "127.0.0.1:3000:3000"}
SECRET = "7f" * 32
AUTHORITY = Authority(bytes.fromhex(SECRET))
#: What `elasticgrid bus env` puts into `.env`.
SECRETS = deployment_variables(AUTHORITY, SECRET, now_s=1_700_000_000) | {"ELASTICGRID_METRICS_KEY": "k"}


def interpolated(value: Any) -> Any:
    """The value with `${NAME}` and `${NAME:?message}` replaced, as compose does."""
    if isinstance(value, dict):
        return {key: interpolated(item) for key, item in value.items()}
    if isinstance(value, list):
        return [interpolated(item) for item in value]
    return (
        re.sub(r"\$\{(\w+)(:\?[^}]*)?\}", lambda match: SECRETS[match[1]], value) if isinstance(value, str) else value
    )


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load((TOP / "compose.yaml").read_text())
    replaced: dict[str, Any] = interpolated(raw)
    return replaced


def own(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The services that run from our image."""
    return {name: service for name, service in compose["services"].items() if name not in WATCHING}


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Source by target of everything mounted into a service."""
    return {entry.split(":")[1]: entry.split(":")[0] for entry in service.get("volumes", [])}


def test_each_deployed_process_is_a_service_with_a_folder_that_tells_its_command(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {"nats", *SERVED, *WATCHING}
    for name, service in own(compose).items():
        readme = (TOP / "services" / name / "README.md").read_text()
        assert "\n" + " ".join(service["command"]) + "\n" in readme


def test_every_command_is_one_that_the_image_has(compose: dict[str, Any]) -> None:
    for name, service in own(compose).items():
        expected = (
            ["elasticgrid", "serve", name] if name in SERVED else ["nats-server", "-c", "/etc/elasticgrid/nats.conf"]
        )
        assert service["command"] == expected
        assert service["image"] == "elasticgrid"
        assert (TOP / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_everything_that_is_mounted_is_there(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for source in mounts(service).values():
            assert (TOP / source).exists() if source.startswith(".") else source in compose["volumes"]
        for config in service.get("configs", []):
            assert config["source"] in compose["configs"]


def test_every_file_and_folder_a_variable_names_is_mounted(compose: dict[str, Any]) -> None:
    for service in own(compose).values():
        targets = {*mounts(service), *(config["target"] for config in service.get("configs", []))}
        named = {value for value in service["environment"].values() if value.startswith("/")}
        assert named <= targets
        assert all(part in targets for part in service["command"] if part.startswith("/"))


def test_every_service_but_the_bus_is_told_where_the_bus_is_and_who_it_is(compose: dict[str, Any]) -> None:
    for name in SERVED:
        told = compose["services"][name]["environment"]
        assert told[environment.NATS_URL] == "nats://nats:4222"
        assert told[environment.CREDENTIALS] == "/run/elasticgrid/credential.json"
        assert compose["services"][name]["depends_on"] == {"nats": {"condition": "service_healthy"}}


def test_every_variable_that_compose_sets_or_asks_for_is_explained(compose: dict[str, Any]) -> None:
    readme = (TOP / "services" / "README.md").read_text()
    names = {name for service in own(compose).values() for name in service["environment"]} | {"ELASTICGRID_METRICS_KEY"}
    assert {name for name in names | set(SECRETS) if f"`{name}`" not in readme} == set()


def test_only_what_people_look_at_listens_on_the_host_and_only_there_itself(compose: dict[str, Any]) -> None:
    published = {name: service.get("ports") for name, service in compose["services"].items() if "ports" in service}
    assert published == {"gateway": ["127.0.0.1:8088:8088"]} | {name: [port] for name, port in WATCHING.items()}


def test_what_only_watches_is_started_when_it_is_asked_for_and_reads_our_files(compose: dict[str, Any]) -> None:
    for name in WATCHING:
        service = compose["services"][name]
        assert service["profiles"] == ["monitoring"]
        assert all(source.startswith(f"./services/{name}") for source in mounts(service).values() if "/" in source)
    scraped = yaml.safe_load((TOP / "services/prometheus/prometheus.yml").read_text())["scrape_configs"]
    targets = {each["job_name"].removeprefix("elasticgrid-"): each["static_configs"][0]["targets"] for each in scraped}
    metrics_port = {compose["services"][name]["environment"]["ELASTICGRID_METRICS"] for name in ("decider", "launcher")}
    assert metrics_port == {"0.0.0.0:9464"}
    assert targets == {"gateway": ["gateway:8088"], "decider": ["decider:9464"], "launcher": ["launcher:9464"]}
    key_file = scraped[0]["authorization"]["credentials_file"]
    assert key_file in [config["target"] for config in compose["services"]["prometheus"]["configs"]]


def test_no_secret_is_in_the_repository() -> None:
    text = (TOP / "compose.yaml").read_text() + (TOP / "services/nats/nats.conf").read_text()
    given = [line for line in text.splitlines() if re.search(r'(password|token)"?: ', line, re.IGNORECASE)]
    assert [line for line in given if "$" not in line] == []
    assert len(given) == len(ROLES)


def test_each_service_gets_its_own_credential_and_the_launcher_alone_the_secret(compose: dict[str, Any]) -> None:
    for role in ROLES:
        mounted = {each["target"]: each["source"] for each in compose["services"][role]["configs"]}
        content = compose["configs"][mounted.pop("/run/elasticgrid/credential.json")]["content"]
        assert msgspec.json.decode(content, type=Credentials) == AUTHORITY.service(role, 1_700_000_000)
        assert mounted == ({"/run/elasticgrid/authority.key": "authority"} if role == "launcher" else {})
    assert compose["configs"]["authority"]["content"].strip() == SECRET
    assert [name for name, config in compose["configs"].items() if SECRET in config["content"]] == ["authority"]


def test_the_bus_is_set_up_as_the_embedded_server_is() -> None:
    conf = (TOP / "services/nats/nats.conf").read_text()
    embedded = render(folder=Path("/"), port=-1, trusted=AUTHORITY, now_s=1_700_000_000)
    for setting in ("max_payload", "max_buffered_msgs", "sync_interval"):
        (value,) = re.findall(rf"{setting}: \S+", embedded)
        assert value in conf


@pytest.mark.server
def test_the_configuration_of_the_bus_is_valid_with_what_compose_puts_into_it(
    compose: dict[str, Any], tmp_path: Path
) -> None:
    nats = compose["services"]["nats"]
    (tmp_path / "nats.conf").write_text((TOP / "services/nats/nats.conf").read_text())
    trust = compose["configs"]["trust"]["content"].replace("/var/lib/nats", str(tmp_path))
    (tmp_path / "trust.conf").write_text(trust)
    assert nats["configs"][0]["target"] == "/etc/elasticgrid/trust.conf"
    answer = subprocess.run(
        [find_nats_server(), "-t", "-c", tmp_path / "nats.conf"],
        env={**os.environ, **nats["environment"]},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr


def test_the_grid_the_gateway_begins_with_is_valid(compose: dict[str, Any]) -> None:
    gateway = compose["services"]["gateway"]
    source = mounts(gateway)[gateway["environment"]["ELASTICGRID_GRID"]]
    assert {provider.engine for provider in read_grid(TOP / source)} == {"local"}
