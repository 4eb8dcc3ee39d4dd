"""Parameters and bodies that several routes have, as types that also describe them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import msgspec
from litestar.di import NamedDependency
from litestar.openapi.spec import OpenAPIMediaType, Operation, Reference, RequestBody
from litestar.params import HeaderParameter, QueryParameter

from elasticgrid.core.names import NAME_PATTERN
from elasticgrid.gateway.access import Access
from elasticgrid.gateway.bodies import MAX_REASON
from elasticgrid.gateway.query import EVENT_TYPES
from elasticgrid.gateway.service import GatewayService
from elasticgrid.projections.views import MAX_PAGE

#: The service that answers; given to every handler.
Gateway: TypeAlias = NamedDependency[GatewayService]
#: Who asks; given to every handler behind the check of keys.
Caller: TypeAlias = NamedDependency[Access]

#: Largest sequence and time that is understood.
MAX_INTEGER: Final = 2**53

Tenant: TypeAlias = Annotated[str, QueryParameter(pattern=NAME_PATTERN, description="whose job it is")]
TenantFilter: TypeAlias = Annotated[
    str, QueryParameter(max_length=63, description="only this tenant's; all when absent")
]
Limit: TypeAlias = Annotated[int, QueryParameter(ge=1, le=MAX_PAGE, description="the most in one page")]
Cursor: TypeAlias = Annotated[str, QueryParameter(max_length=1_000, description="`next_cursor` of the page before")]
Sequence: TypeAlias = Annotated[int, QueryParameter(ge=0, le=MAX_INTEGER, description="a sequence of the log")]
OptionalSequence: TypeAlias = Annotated[
    int | None, QueryParameter(ge=0, le=MAX_INTEGER, description="a sequence of the log")
]
JobFilter: TypeAlias = Annotated[str, QueryParameter(max_length=63, description="only this job's")]
#: Handlers look at it with `query.event_type`.
TypeFilter: TypeAlias = Annotated[
    str,
    QueryParameter(
        max_length=100,
        description="only of this type; `launch` is every `launch.*`",
        schema_extra={"enum": ["", *EVENT_TYPES]},
    ),
]
TimeFilter: TypeAlias = Annotated[
    int | None, QueryParameter(ge=0, le=MAX_INTEGER, description="recorded then; Unix milliseconds")
]
Reason: TypeAlias = Annotated[str, QueryParameter(max_length=MAX_REASON, description="shown to whoever looks later")]
LastEventId: TypeAlias = Annotated[
    str | None, HeaderParameter(name="Last-Event-ID", description="the last event the client has; it goes on after it")
]


def takes(kind: type[msgspec.Struct], *, required: bool = False) -> type[Operation]:
    """Describes the JSON body of an operation whose handler reads the body itself, more strictly than a framework."""

    @dataclass
    class WithBody(Operation):
        def __post_init__(self) -> None:
            schema = Reference(ref=f"#/components/schemas/{kind.__name__}")
            self.request_body = RequestBody(
                content={"application/json": OpenAPIMediaType(schema=schema)}, required=required
            )

    return WithBody
