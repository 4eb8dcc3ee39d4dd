"""The deployment files: what compose.yaml starts exists, is configured, and says the same as the code."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from elasticgrid import environment
from elasticgrid.bus.connect import Credentials
from elasticgrid.bus.embedded import find_nats_server
from elasticgrid.bus.server_config import INBOX_PREFIXES, ROLES, render
from elasticgrid.config.grid_file import read_grid

TOP = Path(__file__).parents[2]
SERVED = {"decider", "launcher", "gateway"}
#: What an operator puts into `.env`; such a password would be a number without its quotes.
SECRETS = {"ELASTICGRID_NATS_SERVICE_PASSWORD": "12e4", "ELASTICGRID_NATS_NODE_PASSWORD": "0042"}


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


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Source by target of everything mounted into a service."""
    return {entry.split(":")[1]: entry.split(":")[0] for entry in service.get("volumes", [])}


def test_each_deployed_process_is_a_service_with_a_folder_that_tells_its_command(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {"nats", *SERVED}
    for name, service in compose["services"].items():
        readme = (TOP / "services" / name / "README.md").read_text()
        assert "\n" + " ".join(service["command"]) + "\n" in readme


def test_every_command_is_one_that_the_image_has(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
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
    for service in compose["services"].values():
        targets = {*mounts(service), *(config["target"] for config in service.get("configs", []))}
        named = {value for value in service["environment"].values() if value.startswith("/")}
        assert named <= targets
        assert all(part in targets for part in service["command"] if part.startswith("/"))


def test_every_service_but_the_bus_is_told_where_the_bus_is_and_who_it_is(compose: dict[str, Any]) -> None:
    for name in SERVED:
        told = compose["services"][name]["environment"]
        assert told[environment.NATS_URL] == "nats://nats:4222"
        assert told[environment.CREDENTIALS] == "/run/elasticgrid/service.json"
        assert compose["services"][name]["depends_on"] == {"nats": {"condition": "service_healthy"}}


def test_every_variable_that_compose_sets_or_asks_for_is_explained(compose: dict[str, Any]) -> None:
    readme = (TOP / "services" / "README.md").read_text()
    names = {name for service in compose["services"].values() for name in service["environment"]}
    assert {name for name in names | set(SECRETS) if f"`{name}`" not in readme} == set()


def test_only_the_gateway_listens_on_the_host_and_only_there_itself(compose: dict[str, Any]) -> None:
    published = {name: service.get("ports") for name, service in compose["services"].items() if "ports" in service}
    assert published == {"gateway": ["127.0.0.1:8088:8088"]}


def test_no_secret_is_in_the_repository() -> None:
    text = (TOP / "compose.yaml").read_text() + (TOP / "services/nats/nats.conf").read_text()
    given = [line for line in text.splitlines() if re.search(r'password"?: ', line, re.IGNORECASE)]
    assert [line for line in given if "$" not in line] == []
    assert len(given) == 6


def test_the_credential_files_are_those_the_bus_lets_in(compose: dict[str, Any]) -> None:
    for role in ROLES:
        content = compose["configs"][f"{role}-credential"]["content"]
        credentials = msgspec.json.decode(content, type=Credentials)
        assert credentials == Credentials(
            user=role,
            password=SECRETS[f"ELASTICGRID_NATS_{role.upper()}_PASSWORD"],
            inbox_prefix=INBOX_PREFIXES[role],
        )


def test_the_bus_allows_each_role_what_the_embedded_server_allows() -> None:
    conf = (TOP / "services/nats/nats.conf").read_text()
    written = conf.split("authorization: ")[1]
    for role in ROLES:
        written = written.replace(f"$ELASTICGRID_NATS_{role.upper()}_PASSWORD", json.dumps(role))
    embedded = render(folder=Path("/"), port=-1, passwords={role: role for role in ROLES})
    assert json.loads(written) == json.loads(embedded.split("authorization: ")[1])
    for setting in ("max_payload", "max_buffered_msgs", "sync_interval"):
        (value,) = re.findall(rf"{setting}: \S+", embedded)
        assert value in conf


@pytest.mark.server
def test_the_configuration_of_the_bus_is_valid_with_the_variables_that_compose_sets(compose: dict[str, Any]) -> None:
    told = compose["services"]["nats"]["environment"]
    answer = subprocess.run(
        [find_nats_server(), "-t", "-c", TOP / "services/nats/nats.conf"],
        env={**os.environ, **told},
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
