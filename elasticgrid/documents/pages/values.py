"""Structs as tables: each field with its type, its default and what it means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import inspect

from elasticgrid.core.names import NAME_PATTERN
from elasticgrid.documents.pages.markdown import attributes, code, summary, table

Struct = type[msgspec.Struct]


def value_section(cls: Struct, *, level: int = 3) -> str:
    """A heading, the docstring and the fields of a struct."""
    parts = [f"{'#' * level} {cls.__name__}", summary(cls), fields_table(cls)]
    return "\n\n".join(part for part in parts if part)


def fields_table(cls: Struct, *, hidden: tuple[str, ...] = ()) -> str:
    """The fields of a struct, in their order."""
    told = attributes(cls)
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    return table(
        ("field", "type", "default", "meaning"),
        (
            (code(field.name), type_text(field.type), default_text(field), told.get(field.name, ""))
            for field in info.fields
            if field.name not in hidden
        ),
    )


def parts_of(*classes: Struct) -> list[Struct]:
    """The structs that are fields of these, in the order they are met; each once."""
    found: dict[Struct, None] = {}

    def look(kind: inspect.Type) -> None:
        for struct in _structs(kind):
            if struct not in found:
                found[struct] = None
                below(struct)

    def below(cls: Struct) -> None:
        info = inspect.type_info(cls)
        assert isinstance(info, inspect.StructType)
        for field in info.fields:
            look(field.type)

    for cls in classes:
        below(cls)
    return [struct for struct in found if struct not in classes]


def _structs(kind: inspect.Type) -> Iterator[Struct]:
    match kind:
        case inspect.StructType():
            yield kind.cls
        case inspect.Metadata():
            yield from _structs(kind.type)
        case inspect.ListType() | inspect.VarTupleType():
            yield from _structs(kind.item_type)
        case inspect.DictType():
            yield from _structs(kind.value_type)
        case inspect.UnionType():
            for each in kind.types:
                yield from _structs(each)


def type_text(kind: inspect.Type) -> str:
    """A type in words."""
    match kind:
        case inspect.Metadata():
            return type_text(kind.type)
        case inspect.StructType():
            return f"[{kind.cls.__name__}](#{kind.cls.__name__.lower()})"
        case inspect.LiteralType():
            return ", ".join(code(value) for value in kind.values)
        case inspect.IntType():
            return f"integer{_range(kind)}"
        case inspect.StrType():
            return "name" if kind.pattern == NAME_PATTERN else "text"
        case inspect.FloatType():
            return "number"
        case inspect.BoolType():
            return "yes or no"
        case inspect.NoneType():
            return "nothing"
        case inspect.ListType() | inspect.VarTupleType():
            return f"list of {type_text(kind.item_type)}"
        case inspect.DictType():
            key = "name" if isinstance(kind.key_type, inspect.StrType) else type_text(kind.key_type)
            return f"{type_text(kind.value_type)} by {key}"
        case inspect.UnionType():
            return " or ".join(type_text(each) for each in kind.types)
        case _:
            raise TypeError(f"a type without words: {kind!r}")


def _range(kind: inspect.IntType) -> str:
    low = kind.ge if kind.ge is not None else kind.gt + 1 if kind.gt is not None else None
    high = kind.le if kind.le is not None else kind.lt - 1 if kind.lt is not None else None
    if low is None and high is None:
        return ""
    return f" {low:,} to {high:,}" if low is not None and high is not None else f" from {low:,}"


def default_text(field: inspect.Field) -> str:
    """A field's default; `required` when there is none."""
    if field.required:
        return "required"
    default: Any = field.default
    if field.default_factory is not msgspec.UNSET and field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    if isinstance(default, msgspec.Struct):
        return "its defaults"
    if default is None or (isinstance(default, str | tuple | list | Mapping) and not default):
        return "none"
    return code(f"{default:,}" if type(default) is int else default)
