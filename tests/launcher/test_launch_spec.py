"""What iroh-tinker is asked for."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from iroh_tinker.cloud.spec import spec_from_dict

from elasticgrid.core.job import JobState, LaunchState
from elasticgrid.core.spec import JobSpec, ProviderSpec
from elasticgrid.launcher.config import LauncherConfig
from elasticgrid.launcher.launch_spec import launch_document, launch_name


def job(tenant: str = "default", name: str = "j1", submitted_id: str = "s1", **changes: Any) -> JobState:
    spec = JobSpec(name=name, **({"command": ("train",), "workdir": "/work"} | changes))
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


def test_a_job_cannot_take_the_grids_own_variables() -> None:
    envs = document(job(env={"ELASTICGRID_JOB": "other", "SEED": "7"}), node_credentials="/data/node.json")["envs"]
    assert (envs["ELASTICGRID_JOB"], envs["SEED"]) == ("j1", "7")
    assert envs["ELASTICGRID_CREDENTIALS"] == "/data/node.json"


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
    assert all(folder.startswith("/work/ckpt/default-j1-") for folder in folders)
