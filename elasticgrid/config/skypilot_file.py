"""SkyPilot task files as jobs: what of one is honoured becomes a job of fixed size, and what is not is told.

`name`, `num_nodes`, `workdir`, `envs`, `setup` and `run` are honoured, and of `resources` spot, regions, accelerators
(also of `any_of` and `ordered`) and the restarts of `job_recovery`. `run` is run by a shell. Of `file_mounts` what is
put into the job's own folder is honoured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from elasticgrid.config.document import Empty, Items, Node, Table, Text, kind_of, load, shortened, shortened_name
from elasticgrid.config.files import read_source
from elasticgrid.config.job_file import job_of, parse_job
from elasticgrid.config.problems import Problems, name_hint
from elasticgrid.core.errors import InvalidJob
from elasticgrid.core.names import is_name
from elasticgrid.core.secret_looks import is_no_path
from elasticgrid.core.spec import JobSpec

#: Fields that only task files have, and fields that only job files have. Both have `secrets`: values here, paths there.
_TASK_ONLY: Final = frozenset(("num_nodes", "resources", "envs", "service", "volumes", "inputs", "outputs"))
_JOB_ONLY: Final = frozenset(
    (
        *("nodes", "nproc_per_node", "env", "scaling", "placement", "restarts", "deadline_s", "band", "checkpoint_dir"),
        *("caches", "bundle", "on_stuck", "stuck_after_s", "output", "grace_s", "join_timeout_s"),
    )
)
_HONOURED: Final = frozenset(("name", "num_nodes", "workdir", "envs", "setup", "run", "resources", "file_mounts"))
_NOT_HONOURED: Final = {
    "volumes": "the nodes must have the volumes already",
    "service": "this runs to its end and serves nobody",
    "inputs": "",
    "outputs": "",
    "config": "settings of SkyPilot itself",
    "event_callback": "follow the job's events instead: elasticgrid jobs watch",
    "experimental": "settings of SkyPilot itself",
    "pool": "",
}
_RESOURCES: Final = frozenset(("any_of", "ordered", "infra", "cloud", "region", "use_spot", "accelerators"))
_BOOLEANS: Final = {"true": True, "false": False, "yes": True, "no": False}

#: Runs with two arguments: the script, and how many accelerators a node has.
_SCRIPT: Final = """\
shell=$(command -v bash) || shell=sh
export SKYPILOT_NODE_RANK="${GROUP_RANK:-0}" SKYPILOT_NODE_IPS="${MASTER_ADDR:-127.0.0.1}"
export SKYPILOT_NUM_NODES="$((${WORLD_SIZE:-1} / ${LOCAL_WORLD_SIZE:-1}))" SKYPILOT_NUM_GPUS_PER_NODE="$2"
exec "$shell" -c "$1"
"""


def read_job_or_task(path: Path, *, submitted_ms: int) -> tuple[JobSpec, tuple[str, ...]]:
    """The job in a job file or in a SkyPilot task file, and what of the latter is not honoured, a sentence each.

    Raises:
        NotFound: there is no such file.
        InvalidJob: the file is wrong; the error tells every problem with its line.
    """
    source = read_source(path, InvalidJob)
    file, folder = str(path), path.resolve().parent
    if not is_task(source, file=file):
        return parse_job(source, file=file, folder=folder, submitted_ms=submitted_ms), ()
    return parse_task(source, file=file, folder=folder, submitted_ms=submitted_ms)


def is_task(source: bytes | str, *, file: str) -> bool:
    """Whether the text is of a task file: it has a field or a script that only these have, and none of a job file."""
    root = load(source, Problems(file))
    if root is None or not _JOB_ONLY.isdisjoint(root.fields):
        return False
    run = root.fields.get("run")
    is_script = isinstance(run, Text) and len(run.text.strip().splitlines()) > 1
    return is_script or not _TASK_ONLY.isdisjoint(root.fields) or _has_values(root.fields.get("secrets"))


def _has_values(secrets: Node | None) -> bool:
    """Whether the secrets are written there themselves, or wanted from whoever submits, and not named by files."""
    values = secrets.fields.values() if isinstance(secrets, Table) else ()
    return any(not isinstance(value, Text) or is_no_path(value.text) for value in values)


def parse_task(source: bytes | str, *, file: str, folder: Path, submitted_ms: int) -> tuple[JobSpec, tuple[str, ...]]:
    """The job that a task file describes, and what of it is not honoured. Arguments as `parse_job`.

    Raises:
        InvalidJob: the text is wrong. The first problem is the error itself, the others are its story.
    """
    problems = Problems(file)
    root = load(source, problems)
    if root is None:
        problems.raise_as(InvalidJob)
        raise AssertionError("text without a tree has a problem")
    task = _Task(root, problems, stem=Path(file).stem)
    spec = job_of(task.job(), problems, folder=folder, submitted_ms=submitted_ms)
    return spec, tuple(f"line {line}: {text}" for line, text in sorted(task.notes))


class _Task:
    """One task file on its way to the fields of a job file, which keep the lines they stand on."""

    def __init__(self, root: Table, problems: Problems, *, stem: str) -> None:
        self._root = root
        self._problems = problems
        self._stem = stem
        self.notes: list[tuple[int, str]] = []

    def job(self) -> Table:
        """The fields of the job file."""
        for name, field in self._root.fields.items():
            self._look_at(name, field)
        resources = _Resources(self._node("resources"), self._problems, self._note)
        fields: dict[str, Node] = {
            "name": self._name(),
            "run": self._command(resources),
            "placement": resources.placement(),
        }
        restarts = resources.restarts()
        if restarts is not None:
            fields["restarts"] = Table(restarts.line, restarts.path, {"application": restarts})
        mounts = self._file_mounts()
        if mounts is not None:
            fields["file_mounts"] = mounts
        for theirs, ours in (("workdir", "workdir"), ("envs", "env"), ("num_nodes", "nodes"), ("setup", "setup")):
            node = self._node(theirs)
            if node is not None:
                fields[ours] = node
        workdir = fields.get("workdir")
        if isinstance(workdir, Table):
            self._problems.add(workdir.line, "workdir", "a repository is not fetched", "name a folder the nodes have")
            del fields["workdir"]
        self._require_values(fields.get("env"))
        return Table(self._root.line, "", fields)

    def _node(self, name: str) -> Node | None:
        node = self._root.fields.get(name)
        return None if isinstance(node, Empty) else node

    def _note(self, node: Node, field: str, why: str) -> None:
        self.notes.append((node.line, f"{field}: {why}" if why else field))

    def _look_at(self, name: str, node: Node) -> None:
        if isinstance(node, Empty) or name in _HONOURED:
            return
        if name in _NOT_HONOURED:
            self._note(node, name, _NOT_HONOURED[name])
        elif name == "secrets":
            self._problems.add(
                node.line,
                name,
                "secrets would stand in the log for ever",
                "put them into files and submit a job file: secrets: {NAME: ./FILE}",
            )
        else:
            known = (*sorted(_HONOURED), *_NOT_HONOURED)
            self._problems.add(node.line, name, "task files have no field of this name", name_hint(name, known))

    def _require_values(self, node: Node | None) -> None:
        for name, value in node.fields.items() if isinstance(node, Table) else ():
            if isinstance(value, Empty):
                self._problems.add(value.line, f"envs.{name}", "a value is wanted", 'write `""` for an empty one')

    def _name(self) -> Text:
        node = self._node("name")
        if node is not None and not isinstance(node, Text):
            self._problems.add(node.line, "name", f"text is wanted, not {kind_of(node)}")
            node = None
        given = node.text if node is not None else self._stem
        line = node.line if node is not None else self._root.line
        name = re.sub(r"[^a-z0-9_-]+", "-", given.lower()).strip("-")[:63].strip("-") or "task"
        if node is not None and name != given and is_name(name):
            self._note(node, "name", f"the job is called {name}")
        return Text(line, "name", name, quoted=True)

    def _command(self, resources: _Resources) -> Items:
        node = self._node("run")
        line = self._root.line_of("run")
        run = node.text if isinstance(node, Text) else ""
        if node is None:
            self._problems.add(line, "run", "this field is missing", "add `run: python train.py`")
        elif not run:
            self._problems.add(line, "run", f"a script is wanted, not {kind_of(node)}")
        if "SKYPILOT_NODE_IPS" in run:
            self.notes.append((line, "SKYPILOT_NODE_IPS: has the first node's address only"))
        words = ("sh", "-c", _SCRIPT, "task", run or "true", str(resources.accelerators_per_node()))
        return Items(line, "run", tuple(Text(line, "run", word, quoted=True) for word in words))

    def _file_mounts(self) -> Table | None:
        """What of it is put from this machine into the job's folder."""
        node = self._node("file_mounts")
        if not isinstance(node, Table):
            if node is not None:
                self._problems.add(node.line, "file_mounts", f"a set of fields is wanted, not {kind_of(node)}")
            return None
        kept: dict[str, Node] = {}
        for place, source in node.fields.items():
            if place.startswith(("/", "~")):
                self._note(source, f"file_mounts.{shortened_name(place)}", "files are put into the job's folder only")
            elif not isinstance(source, Text) or "://" in source.text:
                self._note(source, f"file_mounts.{shortened_name(place)}", "buckets are not mounted")
            else:
                kept[place] = source
        return msgspec.structs.replace(node, fields=kept) if kept else None


class _Resources:
    """`resources`: one set of wishes, or several of which each would do."""

    def __init__(self, node: Node | None, problems: Problems, note: Callable[[Node, str, str], None]) -> None:
        self._problems = problems
        self._note = note
        self._line = node.line if node is not None else 0
        if node is not None and not isinstance(node, Table):
            problems.add(node.line, "resources", f"a set of fields is wanted, not {kind_of(node)}")
            node = None
        self._base = node if node is not None else Table(0, "resources", {})
        self._choices = tuple(self._alternatives())
        for name, field in _all_fields((self._base, *self._choices)):
            if name not in _RESOURCES and name != "job_recovery":
                note(field, f"resources.{name}", "the provider's own settings decide it")

    def _alternatives(self) -> Iterator[Table]:
        base = {name: node for name, node in self._base.fields.items() if name not in ("any_of", "ordered")}
        found = False
        for name in ("any_of", "ordered"):
            node = self._base.fields.get(name)
            if node is None or isinstance(node, Empty):
                continue
            entries = node.values if isinstance(node, Items) else ()
            if not entries or not all(isinstance(entry, Table) for entry in entries):
                self._problems.add(node.line, f"resources.{name}", "a list of sets of fields is wanted")
            for entry in entries:
                if isinstance(entry, Table):
                    found = True
                    yield msgspec.structs.replace(entry, fields={**base, **entry.fields})
        if not found:
            yield msgspec.structs.replace(self._base, fields=base)

    def placement(self) -> Table:
        """What of it a placement can honour."""
        fields: dict[str, Node] = {"spot": Text(self._line, "resources.use_spot", self._spot(), quoted=True)}
        fields |= self._allow_list("regions", "resources.region", [_regions(choice) for choice in self._choices])
        names = [_accelerators(choice) for choice in self._choices]
        fields |= self._allow_list("accelerators", "resources.accelerators", names)
        for cloud, node in {cloud: node for choice in self._choices for cloud, node in _clouds(choice)}.items():
            self._note(
                node, "resources.infra", f"`{shortened(cloud)}` is no name of this grid's; see placement.providers"
            )
        return Table(self._line, "resources", fields)

    def restarts(self) -> Text | None:
        """How often the application may fail, where that is said."""
        node = self._base.fields.get("job_recovery")
        if isinstance(node, Text):
            self._note(node, "resources.job_recovery", "nodes that are lost are always replaced")
        if not isinstance(node, Table):
            return None
        for name, field in node.fields.items():
            if name != "max_restarts_on_errors":
                self._note(field, f"resources.job_recovery.{name}", "nodes that are lost are always replaced")
        found = node.fields.get("max_restarts_on_errors")
        return found if isinstance(found, Text) else None

    def accelerators_per_node(self) -> int:
        """The count in the first accelerator that is named: 8 of `A100:8`."""
        for choice in self._choices:
            for name in _accelerators(choice):
                _, _, count = name.partition(":")
                return int(count) if count.isdigit() else 1
        return 0

    def _spot(self) -> str:
        wishes = set()
        for choice in self._choices:
            node = choice.fields.get("use_spot")
            if isinstance(node, Text) and node.text.lower() in _BOOLEANS:
                wishes.add(_BOOLEANS[node.text.lower()])
            elif node is None or isinstance(node, Empty):
                wishes.add(False)
            else:
                self._problems.add(node.line, "resources.use_spot", f"true or false is wanted, not {kind_of(node)}")
        return "allow" if len(wishes) > 1 else "require" if True in wishes else "forbid"

    def _allow_list(self, field: str, path: str, by_choice: list[list[str]]) -> dict[str, Node]:
        """The names that any choice allows; where one allows all, there is no list."""
        names = list(dict.fromkeys(name for choice in by_choice for name in choice))
        if not names:
            return {}
        if not all(by_choice):
            self._note(self._base, path, "not every alternative names one, so that any is taken")
            return {}
        texts = tuple(Text(self._line, path, name, quoted=True) for name in names)
        return {field: Items(self._line, path, texts)}


def _all_fields(tables: tuple[Table, ...]) -> list[tuple[str, Node]]:
    """Every field that is there, once for each place in the file."""
    found = {(name, node.line): (name, node) for table in tables for name, node in table.fields.items()}
    return [each for each in found.values() if not isinstance(each[1], Empty)]


def _infra(choice: Table) -> list[str]:
    node = choice.fields.get("infra")
    return node.text.split("/") if isinstance(node, Text) else []


def _regions(choice: Table) -> list[str]:
    parts = _infra(choice)
    if len(parts) > 1 and parts[1] not in ("", "*"):
        return [parts[1]]
    node = choice.fields.get("region")
    return [node.text] if isinstance(node, Text) else []


def _clouds(choice: Table) -> Iterator[tuple[str, Node]]:
    for name in ("infra", "cloud"):
        node = choice.fields.get(name)
        if isinstance(node, Text) and node.text.split("/")[0] not in ("", "*", "local"):
            yield node.text.split("/")[0], node


def _accelerators(choice: Table) -> list[str]:
    node = choice.fields.get("accelerators")
    if isinstance(node, Text):
        return [_counted(node.text)]
    if isinstance(node, Items):
        return [_counted(value.text) for value in node.values if isinstance(value, Text)]
    if isinstance(node, Table):
        return [
            _counted(f"{name}:{value.text}" if isinstance(value, Text) else name) for name, value in node.fields.items()
        ]
    return []


def _counted(name: str) -> str:
    """One of a kind is written without its count."""
    return name.strip().removesuffix(":1")
