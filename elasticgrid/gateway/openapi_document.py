"""The OpenAPI document of the interface: made from the routes, kept in `schemas/openapi.json`.

The framework describes routes, parameters and which value is the answer. What it cannot know is added here: bodies,
which the handlers read themselves, the one form that every refusal has, and the values as msgspec writes and checks
them.
"""

from __future__ import annotations

import copy
import json
import sys
from typing import Any, Final

import msgspec

from elasticgrid.core.spec import JobSpec
from elasticgrid.gateway.answers import Health, JobAnswer, JobSubmission, LogPage, ProviderList, ShownJob, Version
from elasticgrid.gateway.artifacts import ArtifactList
from elasticgrid.gateway.bodies import InterruptRequest, PriorityRequest, ReasonRequest, ResizeRequest
from elasticgrid.gateway.bus_credentials import WatcherCredential, WatcherRequest
from elasticgrid.gateway.first_interface import FirstSubmit
from elasticgrid.gateway.login import LoginRequest, WhoAmI
from elasticgrid.gateway.problems import PROBLEM_JSON, Problem
from elasticgrid.gateway.providers import Interrupted
from elasticgrid.gateway.review_routes import CausalChain, PolicySettings, TimelinePage, WhatIfRequest
from elasticgrid.gateway.tenant_routes import KeyList, KeyRequest, QuotaList, QuotaRequest, TenantList, TenantRequest
from elasticgrid.gateway.tenants import CreatedKey
from elasticgrid.log.importing import Imported
from elasticgrid.log.mirror_record import Verified
from elasticgrid.projections.results import (
    CostReport,
    DecisionPage,
    EventPage,
    EventView,
    GridTotals,
    JobPage,
)
from elasticgrid.review.card import DecisionCard
from elasticgrid.review.series import JobSeries
from elasticgrid.review.whatif import WhatIf

#: The document's path in the folder of schemas.
DOCUMENT: Final = "openapi.json"

_SCHEMAS: Final = "#/components/schemas/{name}"
_VALUES: Final = (
    JobSpec,
    ReasonRequest,
    ResizeRequest,
    PriorityRequest,
    InterruptRequest,
    FirstSubmit,
    LoginRequest,
    WhoAmI,
    TenantRequest,
    TenantList,
    KeyRequest,
    KeyList,
    CreatedKey,
    QuotaRequest,
    QuotaList,
    Interrupted,
    ArtifactList,
    WatcherRequest,
    WatcherCredential,
    JobSubmission,
    JobAnswer,
    JobPage,
    ShownJob,
    DecisionPage,
    EventPage,
    LogPage,
    Imported,
    ProviderList,
    CostReport,
    Verified,
    Health,
    Version,
    GridTotals,
    JobSeries,
    DecisionCard,
    PolicySettings,
    TimelinePage,
    EventView,
    CausalChain,
    WhatIfRequest,
    WhatIf,
    Problem,
)
_REFUSAL: Final = {
    "description": "Refused, with what happened, where, and what to do about it",
    "content": {PROBLEM_JSON: {"schema": {"$ref": _SCHEMAS.format(name="Problem")}}},
}


def openapi_text() -> str:
    """The text of the document; the same for the same code."""
    # The application shows the document too, so each of the two modules needs the other.
    from elasticgrid.gateway.app import application
    from elasticgrid.gateway.service import GatewayService

    def no_gateway() -> GatewayService:
        raise LookupError("the document is made without a gateway")

    return encode(completed(application(no_gateway).openapi_schema.to_schema()))


def encode(document: dict[str, Any]) -> str:
    """The document as text."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def completed(generated: dict[str, Any]) -> dict[str, Any]:
    """The document as the framework makes it, with bodies, refusals and values."""
    document = {**generated, "components": dict(generated["components"]), "paths": copy.deepcopy(generated["paths"])}
    _, schemas = msgspec.json.schema_components(_VALUES, ref_template=_SCHEMAS)
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    for path in document["paths"].values():
        for operation in path.values():
            answers = {status: each for status, each in operation["responses"].items() if status != "400"}
            # An answer without a body has no form.
            answers.get("204", {}).pop("content", None)
            operation["responses"] = {**answers, "default": _REFUSAL}
    return document


if __name__ == "__main__":
    sys.stdout.write(openapi_text())
