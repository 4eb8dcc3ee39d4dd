"""What iroh-tinker is asked for."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from iroh_tinker.cloud.spec import spec_from_dict

from elasticgrid.agent.config import STUCK_AFTER_S, AgentConfig
from elasticgrid.agent.worker_output import OutputSettings
from elasticgrid.core.job import JobState, LaunchState
from elasticgrid.core.spec import JobSpec, OutputSpec, ProviderSpec
from elasticgrid.launcher.config import LauncherConfig
from elasticgrid.launcher.launch_spec import launch_document, launch_name


def job(tenant: str = "default", name: str = "j1", submitted_id: str = "s1", **changes: Any) -> JobState:
    spec = JobSpec(name=name, **({"command": ("train",), "workdir": "/srv"} | changes))
    return JobState(tenant=tenant, id=name, spec=spec, submitted_id=submitted_id)


def launch(attempt: str = "p1a1", market: Any = "on_demand") -> LaunchState:
    return LaunchState(id=attempt, provider="here", nodes=(), price_microdollars_per_hour=0, market=market, placed_ms=0)


def document(state: JobState, provider: ProviderSpec | None = None, market: str = "on_demand", **config: Any) -> Any:
    settings: dict[str, Any] = {"data_dir": Path("/data"), "nats_url": "nats://bus:4222", "python": "/usr/bin/python3"}
    where = provider if provider is not None else ProviderSpec(name="here", max_nodes=4)
    return launch_document(state, launch(market=market), where, 2, LauncherConfig(**(settings | config)), "request-1")


def test_names_of_different_launches_differ_also_where_their_parts_run_together() -> None:
    names = {
        launch_name(job("a-b", "c"), "p1a1"),
        launch_name(job("a", "b-c"), "p1a1"),
        launch_name(job("a", "b-c"), "p1a2"),
        launch_name(job("a", "b-c", submitted_id="s2"), "p1a1"),
        launch_name(job("a", "b_c"), "p1a1"),
    }
    assert len(names) == 5


def test_a_name_leaves_room_for_what_engines_put_around_it() -> None:
    name = launch_name(job("t" * 63, "j" * 63), "p123456789a123456789")
    assert len(name) <= 33
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_the_command_reaches_the_agent_as_it_was_written() -> None:
    command = ("python", "train.py", "--name", 'it\'s a "test"', "", "--", "a;b $HOME")
    state = job(command=command)
    run = spec_from_dict(document(state)).run
    assert shlex.split(run) == ["/usr/bin/python3", "-P", "-m", "elasticgrid.agent", "--", *command]


def test_the_agents_are_told_how_often_the_job_may_fail() -> None:
    assert spec_from_dict(document(job(max_restarts=4))).envs["ELASTICGRID_MAX_RESTARTS"] == "4"


def test_a_job_cannot_take_the_grids_own_variables() -> None:
    made = document(job(env={"ELASTICGRID_JOB": "other", "SEED": "7"}))
    envs = made["envs"]
    assert (envs["ELASTICGRID_JOB"], envs["SEED"]) == ("j1", "7")
    assert envs["ELASTICGRID_CREDENTIALS"].endswith(f"/launches/{made['name']}/bus.json")


def test_of_the_credential_only_the_path_is_written(tmp_path: Path) -> None:
    credentials = tmp_path / "node.json"
    credentials.write_text(json.dumps({"user": "node", "password": "hunter2"}))
    assert "hunter2" not in json.dumps(document(job(), node_credentials=str(credentials)))


def test_market_and_engine_are_those_of_the_placement_and_nothing_else_is_tried() -> None:
    provider = ProviderSpec(
        name="far",
        engine="gcp/us-east1-b",
        accelerator="L4:1",
        max_nodes=4,
        params={"machine_type": "g2-standard-8", "infra": "local", "use_spot": "no"},
    )
    resources = spec_from_dict(document(job(), provider, "spot")).resources
    assert resources.infra == ["gcp/us-east1-b"]
    assert (resources.use_spot, resources.fallback_to_ondemand, resources.accelerators) == (True, False, "L4:1")
    assert resources.params == {"machine_type": "g2-standard-8"}


def test_lists_that_the_ssh_engine_takes_are_made_of_texts() -> None:
    provider = ProviderSpec(name="far", engine="ssh", max_nodes=2, params={"hosts": "u@a, u@b", "ssh_opts": "-o X=1"})
    params = spec_from_dict(document(job(), provider)).resources.params
    assert params == {"hosts": ["u@a", "u@b"], "ssh_opts": ["-o", "X=1"]}


def test_two_submissions_of_one_name_share_no_folder() -> None:
    folders = {
        document(job(submitted_id=each, checkpoint_dir="ckpt"))["envs"]["ELASTICGRID_SHARED_DIR"]
        for each in ("first-0001", "first-0002")
    }
    assert len(folders) == 2
    assert all(folder.startswith("/srv/ckpt/default-j1-") for folder in folders)


def remote(engine: str = "ssh", **params: str) -> ProviderSpec:
    return ProviderSpec(name="far", engine=engine, zone="z1", max_nodes=2, params={"hosts": "u@a", **params})


def test_nodes_of_another_machine_have_its_interpreter_its_bus_address_and_its_shared_folder() -> None:
    provider = remote(python="/opt/py", nats_url="nats://outside:4222", shared_dir="/mnt/shared", setup="apt-get")
    made = document(job(), provider)
    spec = spec_from_dict(made)
    assert shlex.split(spec.run) == ["/opt/py", "-P", "-m", "elasticgrid.agent", "--", "train"]
    assert spec.envs["ELASTICGRID_NATS_URL"] == "nats://outside:4222"
    assert spec.envs["ELASTICGRID_SHARED_DIR"] == "/mnt/shared/default-j1-s1"
    assert spec.resources.params == {"hosts": ["u@a"], "python": "/opt/py", "zone": "z1"}


def test_the_checkpoint_folder_of_the_job_is_the_shared_one_wherever_it_runs() -> None:
    made = document(job(checkpoint_dir="/mnt/runs"), remote(shared_dir="/mnt/shared"))
    assert made["envs"]["ELASTICGRID_SHARED_DIR"] == "/mnt/runs/default-j1-s1"


def test_the_providers_setup_comes_before_the_jobs_and_each_ends_what_fails() -> None:
    setup = document(job(setup="cd /tmp\nexit 0"), remote(setup="false"))["setup"]
    assert setup == "set -e\n(\nfalse\n)\n(\ncd /tmp\nexit 0\n)\n"
    assert document(job())["setup"] is None


@pytest.mark.parametrize("engine", ["ssh", "aws/us-east-1", "gcp/us-central1", "azure/eastus"])
def test_other_machines_get_a_bundle_and_a_copy_of_the_credential(engine: str) -> None:
    made = document(job(), remote(engine))
    assert (made["elasticgrid_bundle"]["source"], made["elasticgrid_bundle"]["here"]) == ("/srv", False)
    assert made["elasticgrid_credentials"].endswith(f"/launches/{made['name']}/bus.json")


def test_this_machine_gets_a_bundle_when_the_job_says_so_or_mounts_files() -> None:
    assert document(job())["elasticgrid_bundle"] is None
    for spec in (job(bundle=True), job(file_mounts={"a": "/b"})):
        made = document(spec)
        assert made["elasticgrid_bundle"]["here"]
        assert made["workdir"].endswith("/workspace")
        assert made["elasticgrid_credentials"] == ""


@pytest.mark.parametrize(
    ("engine", "params", "sources"),
    [
        ("local", {}, None),
        ("ssh", {}, None),
        ("aws/us-east-1", {}, "aws"),
        ("gcp/us-central1", {}, "gcp"),
        ("azure/eastus", {}, "azure"),
        ("gcp/us-central1", {"notices": "auto,file:/run/leave"}, "auto,file:/run/leave"),
        ("ssh", {"notices": "signal"}, "signal"),
        ("aws/us-east-1", {"notices": ""}, None),
    ],
)
def test_nodes_of_a_cloud_ask_it_for_notices_and_a_provider_may_name_other_sources(
    engine: str, params: dict[str, str], sources: str | None
) -> None:
    spec = spec_from_dict(document(job(), remote(engine, **params)))
    assert spec.envs.get("ELASTICGRID_NOTICES") == sources
    assert "notices" not in spec.resources.params


def test_how_long_before_its_end_a_node_is_signalled_is_the_providers_to_say() -> None:
    spec = spec_from_dict(document(job(), remote(notices="signal", signal_notice_s="90")))
    assert spec.envs["ELASTICGRID_SIGNAL_NOTICE_S"] == "90"
    assert spec.resources.params == {"hosts": ["u@a"], "zone": "z1"}


@pytest.mark.parametrize(
    ("fields", "output", "stuck_after_s"),
    [
        ({}, OutputSettings(), STUCK_AFTER_S),
        (
            {"output": OutputSpec(max_bytes=2**40, files=0, tee=True), "stuck_after_ms": 90_500},
            OutputSettings(max_bytes=2**40, files=0, tee=True),
            90.5,
        ),
        ({"output": OutputSpec(max_bytes=0), "stuck_after_ms": 0}, OutputSettings(max_bytes=0), 0.0),
    ],
)
def test_agents_keep_output_and_watch_for_stuck_workers_as_the_job_says(
    tmp_path: Path, fields: dict[str, Any], output: OutputSettings, stuck_after_s: float
) -> None:
    envs = document(job(**fields), data_dir=tmp_path)["envs"]
    config = AgentConfig.from_environment({"ELASTICGRID_NODE_HOST": "127.0.0.1", **envs})
    assert (config.output, config.stuck_after_s) == (output, stuck_after_s)


def test_an_agent_of_a_launch_is_told_that_the_log_must_know_it() -> None:
    assert document(job())["envs"]["ELASTICGRID_LAUNCHED"] == "1"
