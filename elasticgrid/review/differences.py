"""Where two values differ, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec


class Difference(msgspec.Struct, frozen=True):
    """One field: its path, and both values as JSON; an absent one is empty."""

    field: str
    expected: str
    got: str


def differences(expected: Any, got: Any, path: str = "") -> Iterator[Difference]:
    """Every leaf in which `got` is not `expected`, in the order of the fields."""
    if type(expected) is not type(got):
        if isinstance(expected, msgspec.Struct) and isinstance(got, msgspec.Struct):
            path = f"{path}.type" if path else "type"
        yield Difference(path, _name_of(expected), _name_of(got))
    elif isinstance(expected, msgspec.Struct):
        for name in expected.__struct_fields__:
            mine, other = getattr(expected, name), getattr(got, name)
            if mine != other:
                yield from differences(mine, other, f"{path}.{name}" if path else name)
    elif isinstance(expected, dict):
        for key in [*expected, *(key for key in got if key not in expected)]:
            where = f"{path}.{key}" if path else str(key)
            if key not in expected or key not in got:
                yield Difference(where, _text(expected, key), _text(got, key))
            elif expected[key] != got[key]:
                yield from differences(expected[key], got[key], where)
    elif isinstance(expected, tuple | list):
        for index in range(max(len(expected), len(got))):
            where = f"{path}[{index}]"
            if index >= len(expected) or index >= len(got):
                yield Difference(
                    where,
                    _json(expected[index]) if index < len(expected) else "",
                    _json(got[index]) if index < len(got) else "",
                )
            elif expected[index] != got[index]:
                yield from differences(expected[index], got[index], where)
    elif expected != got:
        yield Difference(path, _json(expected), _json(got))


def _json(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def _text(mapping: dict[Any, Any], key: Any) -> str:
    return _json(mapping[key]) if key in mapping else ""


def _name_of(value: Any) -> str:
    """A tagged struct of another type is told by its type; anything else by its value."""
    tag = value.__struct_config__.tag if isinstance(value, msgspec.Struct) else None
    return str(tag) if tag is not None else _json(value)
