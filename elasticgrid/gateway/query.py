"""What may stand in the query of a route: the names of its parameters, and what each of them is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, Literal, get_args, get_origin

import msgspec
from litestar.handlers import BaseRouteHandler
from litestar.params import HeaderParameter, QueryParameter
from litestar.typing import FieldDefinition

from elasticgrid.core.errors import InvalidInput
from elasticgrid.core.events import SCHEMA_VERSIONS

#: More words than these are not listed in a hint.
_MAX_LISTED: Final = 12

#: Types of events, and what stands for several of them.
EVENT_TYPES: Final = tuple(sorted({*SCHEMA_VERSIONS, *(name.partition(".")[0] for name in SCHEMA_VERSIONS)}))


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of a route: its name in a request, and for somebody who got it wrong a `hint` at what it is."""

    name: str
    in_query: bool
    hint: str


@lru_cache(maxsize=512)
def parameters_of(handler: BaseRouteHandler) -> Mapping[str, Parameter]:
    """The parameters of a route in its query and its headers, by the names that its handler has for them."""
    found = {}
    for name, field in handler.parsed_fn_signature.parameters.items():
        kind = field.kwarg_definition
        if isinstance(kind, QueryParameter | HeaderParameter):
            found[name] = Parameter(
                name=kind.name or name, in_query=isinstance(kind, QueryParameter), hint=_hint(field, kind)
            )
    return found


def require_known(handler: BaseRouteHandler, names: Iterable[str]) -> None:
    """Refuse a query with a name that nobody looks at: what it should do would not be done.

    Raises:
        InvalidInput: there is one.
    """
    known = [parameter.name for parameter in parameters_of(handler).values() if parameter.in_query]
    for name in names:
        if name not in known:
            hint = f"there are {', '.join(sorted(known))}" if known else "this route has none"
            raise InvalidInput("there is no such parameter", where=name[:64], hint=_near(name, known) or hint)


def event_type(name: str) -> str:
    """A filter by the type of events; empty for all.

    Raises:
        InvalidInput: there is no such type.
    """
    if name and name not in EVENT_TYPES:
        hint = _near(name, EVENT_TYPES) or f"a type, or {', '.join(each for each in EVENT_TYPES if '.' not in each)}"
        raise InvalidInput("there are no events of this type", where="type", hint=hint)
    return name


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name[:64], list(known), n=1)
    return f"did you mean {near[0]}?" if near else ""


def _hint(field: FieldDefinition, kind: QueryParameter | HeaderParameter) -> str:
    """Such as `the most in one page; a whole number from 1 to 1000`."""
    words = [word for word in _choices(field.annotation) if word]
    what = ""
    if words:
        what = f"one of {', '.join(words[:_MAX_LISTED])}"
    elif kind.ge is not None and kind.le is not None:
        what = f"a whole number from {kind.ge} to {kind.le}"
    elif kind.pattern is not None:
        what = "lower-case letters, digits, - and _; at most 63"
    elif kind.max_length is not None:
        what = f"at most {kind.max_length} characters"
    elif field.annotation is bool:
        what = "true or false"
    return "; ".join(part for part in (kind.description or "", what) if part)


def _choices(annotation: object) -> tuple[str, ...]:
    if get_origin(annotation) is Literal:
        return tuple(map(str, get_args(annotation)))
    return tuple(word for part in get_args(annotation) for word in _choices(part))
