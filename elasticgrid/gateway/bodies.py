"""What requests carry, and how strictly it is read: nothing is guessed, converted or ignored."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec.inspect import StructType, type_info

from elasticgrid.core.errors import InvalidInput
from elasticgrid.core.spec import Band

#: Less than the bus takes in one message, so that what is accepted can be appended.
MAX_BODY_BYTES: Final = 128 * 1024
MAX_REASON: Final = 1_000

_T = TypeVar("_T", bound=msgspec.Struct)
_MISSING = re.compile(r"missing required field `(\w+)`")
_EXPECTED = re.compile(r"^Expected (.+?)(?:, got|$)")
_AT = re.compile(r"^(?P<what>.*) - at `(?P<path>\$.*)`$", re.DOTALL)


class ReasonRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Why something is asked for; shown to whoever looks at the job later."""

    reason: str = ""


class ResizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """New bounds of a job. A bound that is absent stays."""

    min_nodes: int | None = None
    max_nodes: int | None = None
    reason: str = ""


class PriorityRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Another band for a job: whose nodes are placed first."""

    band: Band
    reason: str = ""


class InterruptRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A notice for every node at a provider.

    Attributes:
        notice_s: in how many seconds they are said to be taken away; 0 says no time.
    """

    notice_s: Annotated[int, msgspec.Meta(ge=0, le=86_400)] = 120
    reason: str = ""


def decode_body(body: bytes, kind: type[_T], *, error: type[InvalidInput] = InvalidInput) -> _T:
    """The value in a JSON body.

    Args:
        body: as it came; an empty one stands for `{}`.
        kind: what it must be, with no further fields.
        error: what is raised when it is JSON, but not such a value.

    Raises:
        InvalidInput: it is no JSON, or a text in it is no text.
    """
    body = body or b"{}"
    try:
        raw = msgspec.json.decode(body)
        # A half of a surrogate pair is legal in JSON, but no text.
        msgspec.json.encode(raw)
    except RecursionError:
        raise InvalidInput("the body is nested too deeply", where="body", hint="send one flat JSON object") from None
    except (msgspec.MsgspecError, ValueError) as failure:
        raise InvalidInput(f"the body is not JSON: {failure}", where="body", hint="send one JSON object") from failure
    try:
        value = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as failure:
        what, path = _at(str(failure))
        raise error(what, where=path or "body", hint=_hint(what)) from failure
    unknown = _unknown_field(raw, type_info(kind))
    if unknown is not None:
        raise error("there is no such field", where=unknown, hint="leave it out, or correct its name")
    return value


def check_reason(reason: str) -> str:
    """The reason itself.

    Raises:
        InvalidInput: it is too long to be one.
    """
    if len(reason) > MAX_REASON:
        raise InvalidInput(f"this reason has {len(reason)} characters", where="reason", hint=f"at most {MAX_REASON:,}")
    return reason


def _hint(what: str) -> str:
    missing = _MISSING.search(what)
    if missing is not None:
        return f"add the field {missing[1]}"
    expected = _EXPECTED.search(what)
    return f"give {expected[1]}" if expected is not None else "/v1/openapi/openapi.json has every field with its values"


def _at(message: str) -> tuple[str, str]:
    """What is wrong and the path of the field: `scaling.window_steps`."""
    match = _AT.match(message)
    if match is None:
        return message, ""
    return match["what"], match["path"].removeprefix("$").removeprefix(".")


def _unknown_field(raw: Any, info: msgspec.inspect.Type, path: str = "") -> str | None:
    if not isinstance(info, StructType) or not isinstance(raw, dict):
        return None
    known = {field.encode_name: field.type for field in info.fields}
    for name, value in raw.items():
        inner = f"{path}.{name}" if path else str(name)
        if name not in known:
            return inner[:200]
        found = _unknown_field(value, known[name], inner)
        if found is not None:
            return found
    return None
