"""SkyPilot task files: what of them becomes a job, and what is said not to."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from cli_grid import GridThread, Run

from elasticgrid.config.skypilot_file import is_task, parse_task, read_job_or_task
from elasticgrid.core.errors import InvalidJob
from elasticgrid.core.spec import JobSpec

TASK = """\
name: My.Task
num_nodes: 2
workdir: code
resources:
  infra: gcp/us-central1
  accelerators: A100:8
  use_spot: true
  disk_size: 500
  job_recovery: {strategy: FAILOVER, max_restarts_on_errors: 3}
envs:
  MODEL: small
  EMPTY: ""
file_mounts:
  /data: s3://bucket
  data: ./here
setup: |
  echo setting up
run: |
  echo "node $SKYPILOT_NODE_RANK of $SKYPILOT_NUM_NODES, $MODEL"
"""


def parsed(text: str) -> tuple[JobSpec, tuple[str, ...]]:
    return parse_task(text, file="task.yaml", folder=Path("/work"), submitted_ms=0)


def test_a_task_becomes_a_job_of_its_size() -> None:
    spec, _ = parsed(TASK)
    assert (spec.name, spec.min_nodes, spec.max_nodes, spec.nproc_per_node) == ("my-task", 2, 2, 1)
    assert spec.workdir == "/work/code"
    assert spec.env == {"MODEL": "small", "EMPTY": ""}
    assert spec.max_restarts == 3
    assert spec.placement.spot == "require"
    assert spec.placement.regions == ("us-central1",)
    assert spec.placement.accelerators == ("A100:8",)
    assert spec.setup == "echo setting up\n"
    assert spec.file_mounts == {"data": "/work/here"}


def test_what_is_not_honoured_is_said_with_its_line() -> None:
    _, notes = parsed(TASK)
    assert [note.split(":")[0] + ":" + note.split(":")[1] for note in notes] == [
        "line 1: name",
        "line 5: resources.infra",
        "line 8: resources.disk_size",
        "line 9: resources.job_recovery.strategy",
        "line 14: file_mounts./data",
    ]


@pytest.mark.parametrize(
    ("resources", "spot", "regions"),
    [
        ("{}", "forbid", ()),
        ("{use_spot: false}", "forbid", ()),
        ("{use_spot: true, region: a}", "require", ("a",)),
        ("{any_of: [{infra: gcp/a, use_spot: true}, {infra: aws/b}]}", "allow", ("a", "b")),
        ("{use_spot: true, ordered: [{infra: gcp/a}, {infra: aws}]}", "require", ()),
        ("{infra: aws/*/zone}", "forbid", ()),
    ],
)
def test_alternatives_become_what_any_of_them_allows(resources: str, spot: str, regions: tuple[str, ...]) -> None:
    spec, _ = parsed(f"resources: {resources}\nrun: x\n")
    assert (spec.placement.spot, spec.placement.regions) == (spot, regions)


@pytest.mark.parametrize(
    ("accelerators", "names"),
    [
        ("A100", ("A100",)),
        ("A100:1", ("A100",)),
        ("{A100: 8}", ("A100:8",)),
        ("[A100:8, H100:8]", ("A100:8", "H100:8")),
    ],
)
def test_accelerators_are_read_in_each_of_their_forms(accelerators: str, names: tuple[str, ...]) -> None:
    spec, _ = parsed(f"resources: {{accelerators: {accelerators}}}\nrun: x\n")
    assert spec.placement.accelerators == names


def test_a_task_without_a_name_is_called_like_its_file() -> None:
    assert parsed("num_nodes: 1\nrun: x\n")[0].name == "task"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("num_nodes: 2\n", "run"),
        ("num_nodes: 1\nfile_mounts: x\nrun: x\n", "file_mounts"),
        ("num_nodes: 1\nfile_mounts: {../a: b}\nrun: x\n", "file_mounts"),
        ("num_nodes: many\nrun: x\n", "num_nodes"),
        ("num_nodes: 1\nrun: [a]\n", "run"),
        ("envs: {TOKEN: }\nrun: x\n", "envs.TOKEN"),
        ("envs: {RANK: 1}\nrun: x\n", "env.RANK"),
        ("secrets: {TOKEN: x}\nrun: x\n", "submit a job file: secrets: {NAME: ./FILE}"),
        ("secrets: {TOKEN: }\nrun: x\n", "secrets"),
        ("num_nodes: 1\nsecrets: {TOKEN: ./x}\nrun: x\n", "secrets"),
        ("num_nodez: 1\nresources: {}\nrun: x\n", "num_nodez"),
        ("resources: []\nrun: x\n", "resources"),
        ("resources: {use_spot: maybe}\nrun: x\n", "resources.use_spot"),
        ("resources: {any_of: x}\nrun: x\n", "resources.any_of"),
        ("num_nodes: 1\nrun: x\nworkdir: {url: x}\n", "workdir"),
        ("num_nodes: 1\n---\nrun: x\n", "not YAML"),
    ],
)
def test_a_wrong_task_is_refused_with_file_line_and_field(text: str, where: str) -> None:
    with pytest.raises(InvalidJob) as raised:
        parsed(text)
    assert where in str(raised.value)
    assert "task.yaml:" in str(raised.value)


def test_a_job_file_is_none(job_file: Path) -> None:
    assert not is_task(job_file.read_bytes(), file="job.yaml")
    assert not is_task("nodes: {max: 2}\nresources: x\nrun: x\n", file="job.yaml")
    assert not is_task("setup: x\nrun: x\n", file="job.yaml")
    assert not is_task("secrets: {TOKEN: ./hf.token}\nrun: x\n", file="job.yaml")
    assert is_task("run: |\n  one\n  two\n", file="job.yaml")
    spec, notes = read_job_or_task(job_file, submitted_ms=0)
    assert (spec.name, notes) == ("train", ())


def started(spec: JobSpec, rank: int = 0) -> subprocess.CompletedProcess[str]:
    """What the job's command does on one node."""
    environ = {
        **os.environ,
        **spec.env,
        "GROUP_RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "10.0.0.1",
    }
    return subprocess.run(spec.command, env=environ, capture_output=True, text=True, check=False)


def test_the_script_is_run_by_a_shell_that_knows_its_place() -> None:
    spec, _ = parsed(TASK)
    assert started(spec, 1).stdout == "node 1 of 2, small\n"


def test_the_scripts_own_code_is_the_workers() -> None:
    spec, _ = parsed("resources: {accelerators: A100:4}\nrun: '[[ $SKYPILOT_NUM_GPUS_PER_NODE == 4 ]] && exit 5'\n")
    assert started(spec).returncode == 5


def test_a_task_is_validated_and_submitted_with_its_notes(run: Run, folder: Path, grid: GridThread) -> None:
    (folder / "task.yaml").write_text("num_nodes: 2\nfile_mounts: {/a: b}\nresources: {ports: 80}\nrun: |\n  echo x\n")
    validated = run("validate", "task.yaml")
    assert validated.code == 0
    assert "not honoured: line 2: file_mounts" in validated.err
    submitted = run("submit", "task.yaml")
    assert submitted.code == 0
    assert "not honoured: line 3: resources.ports" in submitted.err
    assert run("jobs", "show", submitted.out.strip(), "--json").json()["facts"]["spec"]["min_nodes"] == 2
