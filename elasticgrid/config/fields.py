"""Typed reading of a set of fields: text, choices, lists, and numbers in plain units made exact integers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from decimal import Context, Decimal
from typing import Any

import msgspec

from elasticgrid.config.document import Empty, Items, Node, Table, Text, kind_of, shortened
from elasticgrid.config.problems import MAX_TOLD, Problems, name_hint
from elasticgrid.core.names import is_name

#: The largest integer every reader of JSON keeps exact.
MAX_INTEGER = 2**53 - 1
#: Digits, and places before or after the point, of a number that is read.
MAX_DIGITS = 40
_EXACT = Context(prec=3 * MAX_DIGITS)
_NUMBER = re.compile(r"[-+]?(0|[1-9](_?\d)*)(\.\d+)?([eE][-+]?\d{1,3})?")
_EMPTY_TABLE = Table(0, "", {})
_NOTHING = Empty(0, "")


class Quantity(msgspec.Struct, frozen=True):
    """How a number in a file becomes one of the core's integers: `field` = number x `scale`, and nothing is rounded.

    `most` bounds what the core's type leaves open.
    """

    field: str
    scale: int = 1
    most: int = MAX_INTEGER


class Fields:
    """One set of fields being read; what was never asked for is unknown.

    Every method returns its default when the field is absent or wrong; what is wrong is in `problems`.
    """

    def __init__(self, table: Table, problems: Problems) -> None:
        self._table = table
        self._problems = problems
        self._known: dict[str, None] = {}

    @property
    def line(self) -> int:
        """Where the set begins."""
        return self._table.line

    def path_of(self, name: str) -> str:
        """The field's path from the top of the file."""
        return f"{self._table.path}.{name}" if self._table.path else name

    def node(self, name: str) -> Node | None:
        """The field as it stands in the file, None when absent or empty."""
        self._known[name] = None
        node = self._table.fields.get(name)
        return None if isinstance(node, Empty) else node

    def absent(self, name: str) -> bool:
        """Whether the field is not there, or has nothing behind it."""
        return isinstance(self._table.fields.get(name, _NOTHING), Empty)

    def missing(self, name: str, hint: str) -> None:
        """Note that a field is wanted and absent."""
        self._problems.add(self._table.line, self.path_of(name), "this field is missing", hint)

    def wrong(self, name: str, what: str, hint: str = "") -> None:
        """Note a problem of a field."""
        self._problems.add(self._table.line_of(name), self.path_of(name), what, hint)

    def text(self, name: str, default: str = "") -> str:
        """A string; an unquoted number or date counts as the text it was written with."""
        node = self.node(name)
        return default if node is None else self._text_of(node, default)

    def name(self, name: str, hint: str) -> str:
        """A name as jobs and providers have; required."""
        node = self.node(name)
        if node is None:
            self.missing(name, hint)
            return "unnamed"
        text = self._text_of(node, "unnamed")
        if not is_name(text):
            self.wrong(name, f"`{shortened(text)}` cannot be a name", "lower-case letters, digits, - and _; at most 63")
            return "unnamed"
        return text

    def choice(self, name: str, allowed: Mapping[str, Any], default: Any) -> Any:
        """One of a few words, as what `allowed` says it means."""
        node = self.node(name)
        if node is None:
            return default
        text = self._text_of(node, "")
        if text in allowed:
            return allowed[text]
        self.wrong(name, f"`{shortened(text)}` is not one of the values", name_hint(text, allowed))
        return default

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of different strings."""
        node = self.node(name)
        if node is None:
            return ()
        if not isinstance(node, Items):
            example = node.text if isinstance(node, Text) else "a, b"
            self.wrong(name, f"a list is wanted, not {kind_of(node)}", f"write [{shortened(example)}]")
            return ()
        found: list[str] = []
        for value in node.values:
            text = self._text_of(value, "")
            if text in found:
                self._problems.add(value.line, value.path, f"`{shortened(text)}` is in the list twice", "keep one")
            elif text:
                found.append(text)
        return tuple(found)

    def text_map(self, name: str) -> dict[str, str]:
        """Names and strings of the writer's own choosing, such as an environment; nothing behind a name is ''."""
        node = self.node(name)
        if node is None:
            return {}
        if not isinstance(node, Table):
            self.wrong(name, f"a set of fields is wanted, not {kind_of(node)}", "write one `NAME: value` a line")
            return {}
        return {key: "" if isinstance(value, Empty) else self._text_of(value, "") for key, value in node.fields.items()}

    def section(self, name: str) -> Fields:
        """A set of fields inside this one; an empty one when absent."""
        node = self.node(name)
        if node is None:
            return Fields(_EMPTY_TABLE, self._problems)
        if not isinstance(node, Table):
            self.wrong(name, f"a set of fields is wanted, not {kind_of(node)}")
            return Fields(_EMPTY_TABLE, self._problems)
        return Fields(node, self._problems)

    def sections(self, name: str) -> list[Fields]:
        """A list of sets of fields."""
        node = self.node(name)
        if node is None:
            return []
        if not isinstance(node, Items):
            self.wrong(name, f"a list is wanted, not {kind_of(node)}", "begin each entry with `- name: ...`")
            return []
        found = []
        for value in node.values:
            if isinstance(value, Table):
                found.append(Fields(value, self._problems))
            else:
                self._problems.add(value.line, value.path, f"a set of fields is wanted, not {kind_of(value)}")
        return found

    def quantities(self, table: Mapping[str, Quantity], core: type[msgspec.Struct]) -> dict[str, int]:
        """The numbers that are given, by the core's field names, in its units and within the ranges its type allows."""
        limits = _limits(core)
        found = {}
        for name, quantity in table.items():
            node = self.node(name)
            if node is None:
                continue
            low, high = limits[quantity.field]
            value = self._integer(node, quantity.scale, low, min(high, quantity.most))
            if value is not None:
                found[quantity.field] = value
        return found

    def done(self) -> None:
        """Report every field that was not asked for."""
        unknown = [name for name in self._table.fields if name not in self._known]
        for name in unknown[:MAX_TOLD]:
            self.wrong(name, "there is no field of this name", name_hint(name, self._known))
        self._problems.add_more(len(unknown[MAX_TOLD:]))

    def _text_of(self, node: Node, default: str) -> str:
        if not isinstance(node, Text):
            self._problems.add(node.line, node.path, f"text is wanted, not {kind_of(node)}")
            return default
        if "\0" in node.text:
            self._problems.add(node.line, node.path, "the text has a zero character")
            return default
        return node.text

    def _integer(self, node: Node, scale: int, low: int, high: int) -> int | None:
        if not isinstance(node, Text) or node.quoted or not _NUMBER.fullmatch(node.text):
            hint = "leave the quotes out" if isinstance(node, Text) and node.quoted else ""
            self._problems.add(node.line, node.path, f"a number is wanted, not {kind_of(node)}", hint)
            return None
        number = Decimal(node.text.replace("_", ""))
        if len(node.text) > MAX_DIGITS or abs(number.adjusted()) > MAX_DIGITS:
            self._problems.add(node.line, node.path, f"{shortened(node.text)} has too many digits")
            return None
        scaled = _EXACT.multiply(number, scale)
        if scaled != scaled.to_integral_value():
            what = "a whole number is wanted" if scale == 1 else f"steps of {plain(1, scale)} are the finest there are"
            near = min(max(int(scaled.to_integral_value()), low), high)
            self._problems.add(
                node.line, node.path, f"{what}, not {shortened(node.text)}", f"{plain(near, scale)} would be one"
            )
            return None
        value = int(scaled)
        if low <= value <= high:
            return value
        limit = f"at least {plain(low, scale)}" if value < low else f"at most {plain(high, scale)}"
        self._problems.add(node.line, node.path, f"{shortened(node.text)} is out of range", f"{limit}")
        return None


def plain(value: int, scale: int) -> str:
    """An integer of the core as it is written in a file: 200,000 at a scale of a million is `0.2`."""
    text = f"{Decimal(value) / scale:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def choices(words: Collection[str]) -> dict[str, str]:
    """Words that mean themselves."""
    return {word: word for word in words}


def _limits(core: type[msgspec.Struct]) -> dict[str, tuple[int, int]]:
    """The smallest and the largest value of each integer field of a core type."""
    info = msgspec.inspect.type_info(core)
    assert isinstance(info, msgspec.inspect.StructType)
    limits = {}
    for field in info.fields:
        types = field.type.types if isinstance(field.type, msgspec.inspect.UnionType) else (field.type,)
        for kind in types:
            if isinstance(kind, msgspec.inspect.IntType):
                low = kind.ge if kind.ge is not None else kind.gt + 1 if kind.gt is not None else -MAX_INTEGER
                high = kind.le if kind.le is not None else kind.lt - 1 if kind.lt is not None else MAX_INTEGER
                limits[field.name] = (low, high)
    return limits
