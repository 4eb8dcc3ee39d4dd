"""Job files: plain units become exact integers, and everything wrong is told at once with its place."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticgrid.config import job_file
from elasticgrid.config.checks import job_warnings, require_sound
from elasticgrid.config.fields import Quantity
from elasticgrid.config.job_file import parse_job, read_job
from elasticgrid.config.templates import template
from elasticgrid.core.errors import InvalidJob, NotFound
from elasticgrid.core.spec import JobSpec, OutputSpec, PlacementPolicy, ScalingPolicy

FOLDER = Path("/srv/project")
HEAD = "name: a\nrun: python train.py\n"


def parsed(text: str, *, file: str = "job.yaml", submitted_ms: int = 1_000) -> JobSpec:
    return parse_job(text, file=file, folder=FOLDER, submitted_ms=submitted_ms)


def refused(text: str, *, file: str = "job.yaml") -> InvalidJob:
    with pytest.raises(InvalidJob) as caught:
        parsed(text, file=file)
    return caught.value


def test_a_name_and_a_command_are_enough_and_the_rest_has_the_defaults_of_the_core() -> None:
    assert parsed(HEAD) == JobSpec(name="a", command=("python", "train.py"), workdir="/srv/project")


def test_every_field_a_person_can_write_arrives_in_its_exact_unit() -> None:
    spec = parsed(
        """
name: full
run: [python, train.py, "--text", "a b"]
workdir: src
env: {DEBUG: yes, LEVEL: 010, EMPTY: }
nproc_per_node: 2
nodes: {min: 2, max: 8, initial: 4, quantum: 2}
band: high
on_stuck: restart
stuck_after_s: 0.5
grace_s: 1.5
join_timeout_s: 60
restarts: {application: 1, infrastructure: 2}
deadline_s: 3600
checkpoint_dir: ../checkpoints
setup: |
  pip install -r requirements.txt
  make
caches: [venv-1, data]
bundle: true
file_mounts: {data/words.txt: ../words.txt}
secrets: {HF_TOKEN: ./hf.token, WANDB_API_KEY: /run/secrets/wandb}
scaling:
  target_queue_share: 0.3
  idle_queue_share: 0.1
  grow_factor: 1.5
  min_evidence_s: 0.25
  cooldown_up_s: 0.25
  target_step_s: 0.000001
  target_tokens_per_s: 50_000
output: {max_bytes: 1_000_000, files: 0, tee: true}
placement:
  prefer: balance
  spot: allow
  max_spot_share: 0.7
  providers: [here, there]
  regions: [us-central1]
  accelerators: [a100]
  max_price_usd_per_hour: 0.1
"""
    )
    assert spec == JobSpec(
        name="full",
        command=("python", "train.py", "--text", "a b"),
        workdir="/srv/project/src",
        env={"DEBUG": "yes", "LEVEL": "010", "EMPTY": ""},
        nproc_per_node=2,
        min_nodes=2,
        max_nodes=8,
        initial_nodes=4,
        quantum=2,
        band="production",
        on_stuck="restart",
        stuck_after_ms=500,
        grace_ms=1_500,
        join_timeout_ms=60_000,
        max_restarts=1,
        max_infra_restarts=2,
        deadline_ms=3_601_000,
        checkpoint_dir="/srv/checkpoints",
        setup="pip install -r requirements.txt\nmake\n",
        caches=("venv-1", "data"),
        bundle=True,
        file_mounts={"data/words.txt": "/srv/words.txt"},
        secrets={"HF_TOKEN": "/srv/project/hf.token", "WANDB_API_KEY": "/run/secrets/wandb"},
        scaling=ScalingPolicy(
            target_queue_ppm=300_000,
            idle_queue_ppm=100_000,
            grow_factor_ppm=1_500_000,
            min_evidence_ms=250,
            cooldown_up_ms=250,
            target_step_us=1,
            target_tokens_per_s=50_000,
        ),
        output=OutputSpec(max_bytes=1_000_000, files=0, tee=True),
        placement=PlacementPolicy(
            prefer="balance",
            max_spot_ppm=700_000,
            providers=("here", "there"),
            regions=("us-central1",),
            accelerators=("a100",),
            max_price_microdollars_per_hour=100_000,
        ),
    )


@pytest.mark.parametrize(
    ("tables", "core", "other"),
    [
        ([job_file.SCALING], ScalingPolicy, set()),
        ([job_file.OUTPUT], OutputSpec, {"tee"}),
        (
            [job_file.SPOT_SHARE, job_file.PRICE_CEILING],
            PlacementPolicy,
            {"prefer", "spot", "providers", "regions", "accelerators"},
        ),
        (
            [job_file.NODES, job_file.TIMES, job_file.RESTARTS, job_file.DEADLINE],
            JobSpec,
            {"name", "command", "workdir", "env", "band", "on_stuck", "checkpoint_dir", "scaling", "placement"}
            | {"setup", "caches", "bundle", "file_mounts", "secrets", "output"},
        ),
    ],
)
def test_no_field_of_the_core_is_out_of_reach_of_a_file(
    tables: list[dict[str, Quantity]], core: type[msgspec.Struct], other: set[str]
) -> None:
    reached = {quantity.field for table in tables for quantity in table.values()}
    assert reached | other == set(core.__struct_fields__)


@given(st.integers(0, 1_000_000))
def test_a_share_is_the_fraction_that_was_written_and_not_its_nearest_binary_one(ppm: int) -> None:
    spec = parsed(f"{HEAD}placement: {{max_spot_share: {ppm / 1_000_000:.6f}}}")
    assert spec.placement.max_spot_ppm == ppm


@pytest.mark.parametrize(
    ("text", "path", "hint"),
    [
        ("file_mounts: {/etc/motd: motd}", "file_mounts./etc/motd", "a relative path"),
        ("file_mounts: {../data: data}", "file_mounts.../data", "a relative path"),
        ("file_mounts: {data: }", "file_mounts.data", "write data: ../data"),
        ("caches: [Big Cache]\nsetup: make", "caches", "lower-case letters"),
        ("caches: [venv]", "caches", "a setup that does"),
        ("bundle: perhaps", "bundle", ""),
        ("secrets: {A B: ./x}", "secrets.A B", "letters, digits and _"),
        ("secrets: {RANK: ./x}", "secrets.RANK", "leave it out"),
        ("secrets: {ELASTICGRID_X: ./x}", "secrets.ELASTICGRID_X", "leave it out"),
        ("secrets: {A: ./x}\nenv: {A: 1}", "secrets.A", "leave it out there"),
        ("secrets: {A: ./x}\nenv: {A_FILE: /x}", "secrets.A", "leave A_FILE out"),
        ("secrets: {A: ./x, A_FILE: ./x}", "secrets.A", "leave A_FILE out"),
        ("secrets: {A: }", "secrets.A", "./hf.token"),
        ("secrets: {A: [./x]}", "secrets.A", "./hf.token"),
        ("secrets: {" + ", ".join(f"A{number}: ./x" for number in range(33)) + "}", "secrets", "at most 32"),
        ("setup: [make]", "setup", ""),
    ],
)
def test_what_a_node_is_given_is_checked_before_it_is_sent(text: str, path: str, hint: str) -> None:
    error = refused(HEAD + text)
    assert path in str(error)
    assert hint in error.hint


@pytest.mark.parametrize(
    "text",
    [
        "secrets: {HF_TOKEN: SESAME}",
        "secrets: {HF_TOKEN: hf_SESAME" + "a" * 30 + "}",
        "secrets: {KEY: SESAMEabcdef/0123456789}",
        "secrets: SESAME",
        "secrets: [SESAME]",
        "secrets: {HF_TOKEN: {SESAME: x}}",
        "secrets: {HF_TOKEN: './SESAME\\0'}",
    ],
)
def test_a_secret_in_the_place_of_its_file_is_refused_and_not_repeated(text: str) -> None:
    error = refused(f"{HEAD}nodes: 2\n{text}".replace("\\0", "\0"))
    assert "SESAME" not in str(error)


def test_the_path_of_a_secret_is_not_that_of_what_a_link_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").symlink_to("today.token")
    (tmp_path / "today.token").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    text = f"{HEAD}secrets: {{A: ./token, B: ~/token, C: ../x/y.token}}"
    spec = parse_job(text, file="job.yaml", folder=tmp_path, submitted_ms=0)
    outside = str(tmp_path.parent / "x" / "y.token")
    assert spec.secrets == {"A": str(tmp_path / "token"), "B": str(tmp_path / "token"), "C": outside}


def test_what_looks_like_a_secret_is_warned_of_by_its_place_and_what_to_do() -> None:
    token = "hf_" + "a1" * 17
    spec = parsed(f"{HEAD}env: {{HF_TOKEN: {token}, LEVEL: info}}\nsetup: fetch {token} https://x.example")
    first, second = job_warnings(spec)
    assert first.startswith("env.HF_TOKEN looks like a secret: it holds a token of a model hub; the log would keep it")
    assert first.endswith("secrets: {HF_TOKEN: ./FILE}")
    assert second.startswith("setup looks like a secret")
    assert token not in first + second
    assert job_warnings(parsed(f"{HEAD}env: {{LEVEL: info}}\nsecrets: {{HF_TOKEN: ./hf.token}}")) == ()


def test_one_number_for_nodes_fixes_the_size() -> None:
    spec = parsed(f"{HEAD}nodes: 4")
    assert (spec.min_nodes, spec.max_nodes, spec.start_nodes) == (4, 4, 4)


def test_a_quantum_is_the_least_size_when_none_is_given() -> None:
    assert parsed(f"{HEAD}nodes: {{max: 9, quantum: 3}}").min_nodes == 3


@pytest.mark.parametrize(
    ("word", "band"),
    [("high", "production"), ("normal", "interactive"), ("low", "batch"), ("interactive", "interactive")],
)
def test_bands_have_two_names(word: str, band: str) -> None:
    assert parsed(f"{HEAD}band: {word}").band == band


def test_the_same_job_in_json_reads_the_same_with_tabs_and_escapes() -> None:
    value = {"name": "a", "run": ["echo", "\U0001f600", "a/b"], "nodes": {"min": 1, "max": 2}, "grace_s": 1e1}
    text = json.dumps(value, indent="\t").replace("a/b", "a\\/b")
    spec = parsed(text, file="job.json")
    assert (spec.command, spec.max_nodes, spec.grace_ms) == (("echo", "\U0001f600", "a/b"), 2, 10_000)


def test_the_template_is_valid_and_says_the_defaults() -> None:
    spec = parsed(template("job"))
    assert spec.scaling == ScalingPolicy()
    assert spec.placement == PlacementPolicy()
    assert spec.output == OutputSpec()
    assert (spec.stuck_after_ms, spec.on_stuck) == (300_000, "tell")


def test_a_file_is_read_relative_to_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"{HEAD}workdir: src")
    assert read_job(path, submitted_ms=0).workdir == str(tmp_path.resolve() / "src")


def test_a_file_that_is_not_there_is_not_found_and_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read_job(tmp_path / "none.yaml", submitted_ms=0)
    with pytest.raises(InvalidJob):
        read_job(tmp_path, submitted_ms=0)


@pytest.mark.parametrize(
    ("body", "where", "hint"),
    [
        ("nodes: {min: 4, max: 2}", "job.yaml:3: nodes.min", ""),
        ("nodes: {min: 0, max: 2}", "job.yaml:3: nodes.min", "at least 1"),
        ("nodes: {min: 1}", "job.yaml:3: nodes.max", "max: 8"),
        ("nodes: {min: 1, max: 200000}", "job.yaml:3: nodes.max", "at most 100000"),
        ("nodes:\n  min: 1\n  max: 4\n  initial: 5", "job.yaml:6: nodes.initial", "at most 4"),
        ("nodes: {min: 3, max: 9, quantum: 3, initial: 4}", "job.yaml:3: nodes.initial", "nearest: 3 or 6"),
        ("nodes: {min: 8, max: 8, quantum: 3}", "job.yaml:3: nodes.min", "nearest: 6 or 9"),
        ("nodes: [1, 2]", "job.yaml:3: nodes", ""),
        ("nodes: '4'", "job.yaml:3: nodes", "quotes"),
        ("nodes: 010", "job.yaml:3: nodes", ""),
        ("nodes: 1.5", "job.yaml:3: nodes", "2 would be one"),
        ("nproc_per_nodes: 2", "job.yaml:3: nproc_per_nodes", "did you mean `nproc_per_node`?"),
        ("grace: 2", "job.yaml:3: grace", "did you mean `grace_s`?"),
        ("grace_s: -1", "job.yaml:3: grace_s", "at least 0"),
        ("grace_s: .nan", "job.yaml:3: grace_s", ""),
        ("grace_s: 1e999", "job.yaml:3: grace_s", ""),
        ("grace_s: 0.0001", "job.yaml:3: grace_s", "0 would be one"),
        ("deadline_s: 0", "job.yaml:3: deadline_s", "from the submission"),
        ("band: hihg", "job.yaml:3: band", "did you mean `high`?"),
        ("env: [A]", "job.yaml:3: env", "NAME: value"),
        ("env:\n  A: 1\n  RANK: 0", "job.yaml:5: env.RANK", "leave it out"),
        ("env: {A-B: 1}", "job.yaml:3: env.A-B", "letters"),
        ("env: {ELASTICGRID_JOB: a}", "job.yaml:3: env.ELASTICGRID_JOB", "leave it out"),
        ("env: {ELASTICGRID_STUCK_AFTER_S: 9}", "job.yaml:3: env.ELASTICGRID_STUCK_AFTER_S", "write stuck_after_s: 9"),
        ("env: {ELASTICGRID_LOG_BYTES: 9}", "job.yaml:3: env.ELASTICGRID_LOG_BYTES", "output: {max_bytes: 9}"),
        ("stuck_after_s: -1", "job.yaml:3: stuck_after_s", "at least 0"),
        ("output: {max_bytes: -1}", "job.yaml:3: output.max_bytes", "at least 0"),
        ("output: {files: 1001}", "job.yaml:3: output.files", "at most 1000"),
        ("output: {tee: 3}", "job.yaml:3: output.tee", ""),
        ("output: {bytes: 3}", "job.yaml:3: output.bytes", ""),
        ("output: none", "job.yaml:3: output", ""),
        ("scaling:\n  window_steps: 2", "job.yaml:4: scaling.window_steps", "at least 3"),
        ("scaling:\n  min_samples: 40", "job.yaml:4: scaling.min_samples", "window_steps"),
        ("scaling:\n  idle_queue_share: 0.2", "job.yaml:4: scaling.idle_queue_share", "target_queue_share, 0.2"),
        ("scaling: {grow_factor: 1}", "job.yaml:3: scaling.grow_factor", "at least 1.000001"),
        ("scaling: {target_queue_share: 20%}", "job.yaml:3: scaling.target_queue_share", ""),
        ("scaling: {target_queue_ppm: 20}", "job.yaml:3: scaling.target_queue_ppm", "`target_queue_share`"),
        ("placement: {spot: alow}", "job.yaml:3: placement.spot", "did you mean `allow`?"),
        ("placement: {max_spot_share: 1.1}", "job.yaml:3: placement.max_spot_share", "at most 1"),
        ("placement: {spot: require, max_spot_share: 0.5}", "job.yaml:3: placement.max_spot_share", "allow"),
        ("placement: {providers: here}", "job.yaml:3: placement.providers", "[here]"),
        ("placement: {providers: [a, a]}", "job.yaml:3: placement.providers[1]", "keep one"),
        ("name: b", "job.yaml:3: name", "keep one"),
        ("workdir: {a: b}", "job.yaml:3: workdir", ""),
    ],
)
def test_a_wrong_field_is_refused_with_its_line_its_path_and_a_hint(body: str, where: str, hint: str) -> None:
    error = refused(HEAD + body)
    assert error.where == where
    assert hint in error.hint
    assert error.story == ()


@pytest.mark.parametrize("name", ["cooldown_up_s", "cooldown_down_s"])
def test_a_cooldown_shorter_than_the_time_its_evidence_takes_is_refused(name: str) -> None:
    error = refused(f"{HEAD}scaling:\n  min_evidence_s: 10\n  {name}: 9.999")
    assert error.where == f"job.yaml:5: scaling.{name}"
    assert parsed(f"{HEAD}scaling: {{min_evidence_s: 10, {name}: 10}}")


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("python a.py && python b.py", "bash, -c"),
        ("python a.py | tee log", "bash, -c"),
        ("|\n  python a.py\n  python b.py", "bash, -c"),
        ("python 'a.py", "quotes"),
        ("[]", "train.py"),
        ("[python, [a]]", ""),
        ("{a: b}", "train.py"),
        ("''", "train.py"),
        ("", "train.py"),
    ],
)
def test_a_command_that_needs_a_shell_or_is_none_is_refused(command: str, hint: str) -> None:
    error = refused(f"name: a\nrun: {command}")
    assert error.where.endswith(": run")
    assert hint in error.hint


@pytest.mark.parametrize("name", ["", "A", "a b", "a.b", "a" * 64, "-a", "a>", "[a]"])
def test_a_name_that_could_be_no_subject_token_is_refused(name: str) -> None:
    assert refused(f"run: x\nname: {name}").where.endswith(": name")


def test_all_problems_of_a_file_are_told_together_in_the_order_of_its_lines() -> None:
    error = refused(
        "name: A\nrun: a | b\nnodes: {min: 9, max: 3}\nbandd: low\nscaling: {cooldown_up_s: x, grow_factor: 1}\n"
    )
    assert error.where == "job.yaml:1: name"
    assert [line.split(": ")[:2] for line in error.story] == [
        ["job.yaml:2", "run"],
        ["job.yaml:3", "nodes.min"],
        ["job.yaml:4", "bandd"],
        ["job.yaml:5", "scaling.grow_factor"],
        ["job.yaml:5", "scaling.cooldown_up_s"],
    ]


def test_of_very_many_problems_the_first_are_told_and_the_rest_counted() -> None:
    error = refused(HEAD + "".join(f"field_{number}: 1\n" for number in range(10_000)))
    assert len(error.story) == 20
    assert error.story[-1] == "and 9980 more"


def test_a_job_that_came_without_a_file_is_held_to_the_same_rules() -> None:
    sound = JobSpec(name="a", command=("x",), min_nodes=1, max_nodes=2)
    require_sound(sound)
    with pytest.raises(InvalidJob) as caught:
        require_sound(msgspec.structs.replace(sound, min_nodes=3, scaling=ScalingPolicy(cooldown_up_ms=0)))
    assert caught.value.where == "nodes.min"
    assert [line.split(":")[0] for line in caught.value.story] == ["scaling.cooldown_up_s"]
