"""Job files: what runs, between which sizes and under which policies, in plain units.

Times are seconds, shares and factors fractions, money US dollars; they become the exact integers of `JobSpec`.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from elasticgrid.config.checks import AGENT_SETS, VARIABLE, job_findings
from elasticgrid.config.document import Items, Node, Table, Text, kind_of, load, shortened, shortened_name
from elasticgrid.config.fields import Fields, Quantity, choices
from elasticgrid.config.files import read_source
from elasticgrid.config.problems import Problems
from elasticgrid.core.errors import InvalidJob
from elasticgrid.core.names import is_name
from elasticgrid.core.secret_looks import is_no_path
from elasticgrid.core.spec import PPM, JobSpec, OutputSpec, PlacementPolicy, ScalingPolicy

MAX_NODES = 100_000

BANDS = {
    "production": "production",
    "interactive": "interactive",
    "batch": "batch",
    "high": "production",
    "normal": "interactive",
    "low": "batch",
}

_MS = 1_000
_US = 1_000_000

NODES = {
    "min": Quantity("min_nodes", most=MAX_NODES),
    "max": Quantity("max_nodes", most=MAX_NODES),
    "initial": Quantity("initial_nodes", most=MAX_NODES),
    "quantum": Quantity("quantum", most=MAX_NODES),
}
TIMES = {
    "nproc_per_node": Quantity("nproc_per_node", most=1_024),
    "grace_s": Quantity("grace_ms", _MS),
    "join_timeout_s": Quantity("join_timeout_ms", _MS),
    "stuck_after_s": Quantity("stuck_after_ms", _MS),
}
RESTARTS = {
    "application": Quantity("max_restarts"),
    "infrastructure": Quantity("max_infra_restarts"),
}
OUTPUT = {
    "max_bytes": Quantity("max_bytes"),
    "files": Quantity("files"),
}
DEADLINE = {"deadline_s": Quantity("deadline_ms", _MS)}
SCALING = {
    "min_samples": Quantity("min_samples"),
    "min_evidence_s": Quantity("min_evidence_ms", _MS),
    "warmup_steps": Quantity("warmup_steps"),
    "window_steps": Quantity("window_steps"),
    "target_queue_share": Quantity("target_queue_ppm", PPM),
    "idle_queue_share": Quantity("idle_queue_ppm", PPM),
    "grow_factor": Quantity("grow_factor_ppm", PPM),
    "shrink_factor": Quantity("shrink_factor_ppm", PPM),
    "cooldown_up_s": Quantity("cooldown_up_ms", _MS),
    "cooldown_down_s": Quantity("cooldown_down_ms", _MS),
    "reversal_s": Quantity("reversal_ms", _MS),
    "max_changes_per_hour": Quantity("max_changes_per_hour"),
    "max_restart_share": Quantity("max_restart_ppm", PPM),
    "min_efficiency": Quantity("min_efficiency_ppm", PPM),
    "shrink_margin": Quantity("shrink_margin_ppm", PPM),
    "in_flight_timeout_s": Quantity("in_flight_timeout_ms", _MS),
    "default_restart_s": Quantity("default_restart_ms", _MS),
    "target_step_s": Quantity("target_step_us", _US),
    "target_tokens_per_s": Quantity("target_tokens_per_s"),
}
PRICE_CEILING = {"max_price_usd_per_hour": Quantity("max_price_microdollars_per_hour", PPM)}
SPOT_SHARE = {"max_spot_share": Quantity("max_spot_ppm", PPM)}

BOOLEANS = {"true": True, "false": False}

#: What a job says of its agents by fields of its own.
_FIELD_OF = {
    "ELASTICGRID_STUCK_AFTER_S": "stuck_after_s: {}",
    "ELASTICGRID_LOG_BYTES": "output: {{max_bytes: {}}}",
    "ELASTICGRID_LOG_FILES": "output: {{files: {}}}",
    "ELASTICGRID_TEE": "output: {{tee: true}}",
}
_SHELL_WORDS = frozenset(("|", "||", "&&", ";", "&", ">", ">>", "<", "2>&1"))


def read_job(path: Path, *, submitted_ms: int) -> JobSpec:
    """The job in the file at `path`; relative folders in it are relative to the file.

    Raises:
        NotFound: there is no such file.
        InvalidJob: the file is wrong; the error tells every problem with its line.
    """
    source = read_source(path, InvalidJob)
    return parse_job(source, file=str(path), folder=path.resolve().parent, submitted_ms=submitted_ms)


def parse_job(source: bytes | str, *, file: str, folder: Path, submitted_ms: int) -> JobSpec:
    """The job that `source` (YAML, or JSON when `file` ends in `.json`) describes.

    Args:
        source: the text.
        file: what messages call it.
        folder: what relative folders in it are relative to; absolute.
        submitted_ms: when it is submitted, Unix milliseconds; `deadline_s` counts from here.

    Raises:
        InvalidJob: the text is wrong. The first problem is the error itself, the others are its story.
    """
    problems = Problems(file)
    root = load(source, problems)
    if root is None:
        problems.raise_as(InvalidJob)
        raise AssertionError("text without a tree has a problem")
    return job_of(root, problems, folder=folder, submitted_ms=submitted_ms)


def job_of(root: Table, problems: Problems, *, folder: Path, submitted_ms: int) -> JobSpec:
    """The job that these fields describe. Arguments as `parse_job`; `problems` may hold some already.

    Raises:
        InvalidJob: there are problems.
    """
    fields = Fields(root, problems)
    spec = _job(fields, folder, submitted_ms)
    fields.done()
    for finding in job_findings(spec):
        section = finding.path.split(".", 1)[0]
        if not problems.concerns(section):
            problems.add(root.line_of(finding.path), finding.path, finding.what, finding.hint)
    problems.raise_as(InvalidJob)
    return spec


def _job(fields: Fields, folder: Path, submitted_ms: int) -> JobSpec:
    numbers = {
        **fields.quantities(TIMES, JobSpec),
        **_nodes(fields),
        **_restarts(fields),
        **_deadline(fields, submitted_ms),
    }
    checkpoint_dir = fields.text("checkpoint_dir")
    return JobSpec(
        name=fields.name("name", "add `name: my-job`"),
        command=_command(fields),
        workdir=str((folder / fields.text("workdir", ".")).resolve()),
        env=_environment(fields),
        band=fields.choice("band", BANDS, "batch"),
        on_stuck=fields.choice("on_stuck", choices(("tell", "restart", "fail")), "tell"),
        checkpoint_dir=str((folder / checkpoint_dir).resolve()) if checkpoint_dir else "",
        setup=fields.text("setup"),
        caches=_caches(fields),
        bundle=fields.choice("bundle", BOOLEANS, False),
        file_mounts=_file_mounts(fields, folder),
        secrets=_secrets(fields, folder),
        output=_output(fields),
        scaling=_scaling(fields),
        placement=_placement(fields),
        **numbers,
    )


def _caches(fields: Fields) -> tuple[str, ...]:
    keys = fields.texts("caches")
    for key in keys:
        if not is_name(key):
            fields.wrong(
                "caches", f"`{shortened(key)}` cannot be a key", "lower-case letters, digits, - and _; at most 63"
            )
    return tuple(key for key in keys if is_name(key))


def _file_mounts(fields: Fields, folder: Path) -> dict[str, str]:
    """Places in the job's folder, and what is put there; what is written as a relative path is beside the file."""
    mounts = {}
    for place, source in fields.text_map("file_mounts").items():
        if not source:
            fields.wrong(f"file_mounts.{shortened_name(place)}", "a file or folder is wanted", "write data: ../data")
        mounts[place] = str((folder / source).resolve())
    return mounts


def _secrets(fields: Fields, folder: Path) -> dict[str, str]:
    """Variables, and the files that hold what they are set to. What is written there is never said: it may be one."""
    node = fields.node("secrets")
    if node is None:
        return {}
    hint = "the path of a file: secrets: {HF_TOKEN: ./hf.token}"
    if not isinstance(node, Table):
        fields.wrong("secrets", "names of variables and paths of files are wanted", hint)
        return {}
    files = {}
    for name, value in node.fields.items():
        path = f"secrets.{shortened_name(name)}"
        if not isinstance(value, Text) or not value.text or "\0" in value.text:
            fields.wrong(path, "the path of a file is wanted", "write it as a path, such as ./hf.token")
        elif is_no_path(value.text):
            what = "this may be the secret itself; the path of a file that holds it is wanted"
            fields.wrong(path, what, "write a file beside this one with ./ before its name")
        else:
            # Not what links lead to: whoever changes a secret may do so by another link.
            files[name] = os.path.abspath(folder / os.path.expanduser(value.text))
    return files


def _command(fields: Fields) -> tuple[str, ...]:
    node = fields.node("run")
    if node is None:
        fields.missing("run", "add `run: python train.py`")
        return ("true",)
    words = _listed(fields, node) if isinstance(node, Items) else _split(fields, node)
    return words or ("true",)


def _listed(fields: Fields, node: Items) -> tuple[str, ...]:
    words = []
    for value in node.values:
        if isinstance(value, Text) and "\0" not in value.text:
            words.append(value.text)
        else:
            fields.wrong("run", f"each word of a command is text, not {kind_of(value)}")
    if not words:
        fields.wrong("run", "the command is empty", "write run: [python, train.py]")
    return tuple(words)


def _split(fields: Fields, node: Node) -> tuple[str, ...]:
    shell_hint = 'for a shell write run: [bash, -c, "..."]'
    if not isinstance(node, Text):
        fields.wrong("run", f"a command is wanted, not {kind_of(node)}", "write run: python train.py")
        return ()
    if len(node.text.strip().splitlines()) > 1:
        fields.wrong("run", "the command has several lines", shell_hint)
        return ()
    try:
        words = tuple(shlex.split(node.text))
    except ValueError as error:
        fields.wrong("run", f"the command cannot be split into words: {error}".lower(), "close the quotes")
        return ()
    for word in words:
        if word in _SHELL_WORDS:
            fields.wrong("run", f"the command is not run by a shell, so `{word}` has no meaning", shell_hint)
            return ()
    if not words or any("\0" in word for word in words):
        fields.wrong("run", "the command is empty or has a zero character", "write run: python train.py")
        return ()
    return words


def _environment(fields: Fields) -> dict[str, str]:
    variables = fields.text_map("env")
    for name in variables:
        if not VARIABLE.fullmatch(name):
            fields.wrong(f"env.{name}", "this cannot be the name of a variable", "letters, digits and _")
        elif name.startswith("ELASTICGRID_") or name in AGENT_SETS:
            field = _FIELD_OF.get(name)
            hint = "leave it out" if field is None else f"write {field.format(shortened(variables[name]))} in the file"
            fields.wrong(f"env.{name}", "the node's agent sets this variable", hint)
    return variables


def _nodes(fields: Fields) -> dict[str, int]:
    node = fields.node("nodes")
    if isinstance(node, Text):
        fixed = fields.quantities({"nodes": Quantity("min_nodes", most=MAX_NODES)}, JobSpec)
        return {"min_nodes": fixed["min_nodes"], "max_nodes": fixed["min_nodes"]} if fixed else {}
    section = fields.section("nodes")
    if not isinstance(node, Table):
        return {}
    numbers = section.quantities(NODES, JobSpec)
    if section.absent("max"):
        section.missing("max", "say how large the job may become: `max: 8`")
    if section.absent("min") and "quantum" in numbers:
        numbers["min_nodes"] = numbers["quantum"]
    section.done()
    return numbers


def _restarts(fields: Fields) -> dict[str, int]:
    section = fields.section("restarts")
    numbers = section.quantities(RESTARTS, JobSpec)
    section.done()
    return numbers


def _deadline(fields: Fields, submitted_ms: int) -> dict[str, int]:
    numbers = fields.quantities(DEADLINE, JobSpec)
    if not numbers:
        return {}
    if numbers["deadline_ms"] <= 0:
        fields.wrong("deadline_s", "the deadline is over before the job is submitted", "seconds from the submission")
    return {"deadline_ms": submitted_ms + numbers["deadline_ms"]}


def _output(fields: Fields) -> OutputSpec:
    section = fields.section("output")
    output = OutputSpec(tee=section.choice("tee", BOOLEANS, False), **section.quantities(OUTPUT, OutputSpec))
    section.done()
    return output


def _scaling(fields: Fields) -> ScalingPolicy:
    section = fields.section("scaling")
    policy = ScalingPolicy(**section.quantities(SCALING, ScalingPolicy))
    section.done()
    return policy


def _placement(fields: Fields) -> PlacementPolicy:
    section = fields.section("placement")
    policy = PlacementPolicy(
        prefer=section.choice("prefer", choices(("cost", "balance")), "cost"),
        spot=section.choice("spot", choices(("allow", "require", "forbid")), "allow"),
        providers=section.texts("providers"),
        regions=section.texts("regions"),
        accelerators=section.texts("accelerators"),
        **section.quantities({**SPOT_SHARE, **PRICE_CEILING}, PlacementPolicy),
    )
    section.done()
    return policy
