"""YAML and JSON text to a tree that knows its lines: bounded in size, depth and aliases, and free of guesses.

Scalars keep the text they were written with, so that `0.1` is exactly one tenth, `no` is a word and `1_000` a number
only where a number is wanted. Nothing in a file can name a Python type.
"""

from __future__ import annotations

import json
from typing import TypeAlias

import msgspec
import yaml

from elasticgrid.config.problems import Problems

MAX_BYTES = 256 * 1024
MAX_DEPTH = 20
#: Values in a file, each counted as often as an alias brings it in.
MAX_VALUES = 20_000

_STANDARD_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "timestamp", "seq", "map", "merge", "value")
)
_NULL_TAG = "tag:yaml.org,2002:null"


class Text(msgspec.Struct, frozen=True):
    """One word, number or quoted string, as it was written."""

    line: int
    path: str
    text: str
    quoted: bool


class Empty(msgspec.Struct, frozen=True):
    """A field or entry with nothing behind it, or `null`: the same as if it were not there."""

    line: int
    path: str


class Items(msgspec.Struct, frozen=True):
    """A list."""

    line: int
    path: str
    values: tuple[Node, ...]


class Table(msgspec.Struct, frozen=True):
    """Named fields, in the order they were written."""

    line: int
    path: str
    fields: dict[str, Node]

    def line_of(self, path: str) -> int:
        """The line of the field at a dotted path below this, or of the nearest thing above it that is there."""
        table = self
        line = self.line
        for name in path.split("."):
            node = table.fields.get(name)
            if node is None:
                break
            line = node.line
            if not isinstance(node, Table):
                break
            table = node
        return line


Node: TypeAlias = Text | Empty | Items | Table


def kind_of(node: Node) -> str:
    """What the node is, in the words of a message."""
    match node:
        case Text():
            return "text" if node.quoted else f"`{shortened(node.text)}`"
        case Items():
            return "a list"
        case Table():
            return "a set of fields"
        case Empty():
            return "nothing"


#: A longer value may be a key or a password, and a message goes to logs and screens.
_MAX_QUOTED = 32
_QUOTED = 8
_MAX_NAME = 60


def shortened(text: str) -> str:
    """A value as a message may show it: of a longer one no more than its beginning."""
    return text if len(text) <= _MAX_QUOTED else text[:_QUOTED] + "..."


def shortened_name(text: str) -> str:
    """The name of a field or of a file, cut where a message would no longer be readable."""
    return text if len(text) <= _MAX_NAME else text[: _MAX_NAME - 3] + "..."


def load(source: bytes | str, problems: Problems) -> Table | None:
    """The fields at the top of a file, or None when there are none; what is wrong goes to `problems`.

    The text is read as JSON when the file's name ends in `.json`, else as YAML.
    """
    text = _decoded(source, problems)
    if text is None:
        return None
    if problems.file.endswith(".json"):
        text = _checked_json(text, problems)
        if text is None:
            return None
    root = _composed(text, problems)
    if root is None:
        return None
    tree = _Builder(problems).build(root, 1, "", 0)
    if tree is None or isinstance(tree, Table):
        return tree
    # Nothing of the text is said: a file without any field may be a key that was named by mistake.
    kind = "text" if isinstance(tree, Text) else kind_of(tree)
    problems.add(tree.line, "", f"a set of fields is wanted here, not {kind}", "begin with `name: ...`")
    return None


def _decoded(source: bytes | str, problems: Problems) -> str | None:
    size = len(source) if isinstance(source, bytes) else len(source.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        problems.add(1, "", f"the file has {size} bytes, more than the {MAX_BYTES} that are read")
        return None
    if isinstance(source, str):
        return source.removeprefix("\ufeff")
    try:
        return source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
        problems.add(line, "", "the file is not UTF-8 text", "save it as UTF-8")
        return None


def _checked_json(text: str, problems: Problems) -> str | None:
    """Text that is JSON and that the YAML reader takes as well, which does not know tabs."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        problems.add(error.lineno, "", f"this is not JSON: {error.msg}")
        return None
    except (ValueError, RecursionError):
        problems.add(1, "", "this JSON is nested too deeply or has a number that is too long")
        return None
    return text.replace("\t", " ")


class _BoundedLoader(yaml.SafeLoader):
    """Composes nodes and gives up early on text that is nested too deeply."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = parent.start_mark if parent is not None else None
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _composed(text: str, problems: Problems) -> yaml.Node | None:
    try:
        root = yaml.compose(text, _BoundedLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        what = " ".join(part for part in (error.context, error.problem) if part)
        problems.add(line, "", f"this is not YAML: {what}")
        return None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problems.add(line, "", "there is a character here that no text file has")
        return None
    if root is None:
        problems.add(1, "", "the file is empty", "`elasticgrid init` writes an example")
    return root


class _Builder:
    """Turns composed YAML into the tree, counting every value an alias repeats."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._values = 0

    def build(self, node: yaml.Node, line: int, path: str, depth: int) -> Node | None:
        """The node as a tree; `line` is where its name stands. None when it was refused."""
        self._values += 1
        if self._values > MAX_VALUES or depth > MAX_DEPTH:
            if self._values != MAX_VALUES + 2:
                self._problems.add(line, path, "the file has too many values, or an alias that contains itself")
            self._values = MAX_VALUES + 1
            return None
        if node.tag not in _STANDARD_TAGS:
            self._problems.add(line, path, f"the tag `{shortened(node.tag)}` is not read", "leave the tag out")
            return None
        if isinstance(node, yaml.ScalarNode):
            if node.tag == _NULL_TAG:
                return Empty(line, path)
            return Text(line, path, _whole_characters(node.value), node.style is not None)
        if isinstance(node, yaml.SequenceNode):
            return self._items(node, line, path, depth)
        assert isinstance(node, yaml.MappingNode)
        return self._table(node, line, path, depth)

    def _items(self, node: yaml.SequenceNode, line: int, path: str, depth: int) -> Items | None:
        values = []
        for index, child in enumerate(node.value):
            value = self.build(child, child.start_mark.line + 1, f"{path}[{index}]", depth + 1)
            if self._values > MAX_VALUES:
                return None
            if value is not None:
                values.append(value)
        return Items(line, path, tuple(values))

    def _table(self, node: yaml.MappingNode, line: int, path: str, depth: int) -> Table | None:
        fields: dict[str, Node] = {}
        lines: dict[str, int] = {}
        for key, child in node.value:
            key_line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self._problems.add(key_line, path, "the name of a field is a word")
                continue
            name = _whole_characters(key.value)
            child_path = f"{path}.{name}" if path else name
            if name in lines:
                self._problems.add(key_line, child_path, f"given twice; first on line {lines[name]}", "keep one")
                continue
            lines[name] = key_line
            value = self.build(child, key_line, child_path, depth + 1)
            if self._values > MAX_VALUES:
                return None
            if value is not None:
                fields[name] = value
        return Table(line, path, fields)


def _whole_characters(text: str) -> str:
    """The text with surrogate pairs, which JSON escapes make, joined; lone ones become the replacement character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
