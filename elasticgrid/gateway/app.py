"""The HTTP application: which routes there are and what all of them share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from litestar import Litestar, Request, Router
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.handlers import BaseRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, License, SecurityScheme

from elasticgrid.core.errors import ElasticGridError
from elasticgrid.gateway.artifact_routes import ARTIFACT_ROUTES
from elasticgrid.gateway.auth import KEY_HEADER
from elasticgrid.gateway.bodies import MAX_BODY_BYTES
from elasticgrid.gateway.bus_credentials import BUS_ROUTES
from elasticgrid.gateway.dashboard.routes import DASHBOARD_ROUTES
from elasticgrid.gateway.decision_routes import DECISION_ROUTES
from elasticgrid.gateway.event_routes import EVENT_ROUTES
from elasticgrid.gateway.export_routes import EXPORT_ROUTES
from elasticgrid.gateway.gate import caller_of, let_in
from elasticgrid.gateway.grid_routes import GRID_ROUTES, OPEN_ROUTES
from elasticgrid.gateway.job_routes import JOB_ROUTES
from elasticgrid.gateway.log_routes import LOG_ROUTES
from elasticgrid.gateway.login import LOGIN_ROUTES, SESSION_COOKIE, WHOAMI_ROUTES
from elasticgrid.gateway.metrics_routes import METRICS_ROUTES
from elasticgrid.gateway.openapi_document import completed, encode
from elasticgrid.gateway.problems import answer_problem
from elasticgrid.gateway.review_routes import review_router
from elasticgrid.gateway.service import GatewayService
from elasticgrid.gateway.tenant_routes import TENANT_ROUTES
from elasticgrid.gateway.trust_routes import TRUST_ROUTES

API_VERSION: Final = "1.0.0"


class _Document(JsonRenderPlugin):
    """Shows the document that is in `schemas/` too."""

    def render(self, _request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        return encode(completed(openapi_schema)).encode()


def create_app(gateway: GatewayService) -> Litestar:
    """The application that answers for `gateway`. It starts and stops nothing."""
    return application(lambda: gateway)


def application(find_gateway: Callable[[], GatewayService]) -> Litestar:
    """The application that asks `find_gateway` at each request for whom it answers."""

    async def admit(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        let_in(find_gateway().keyring, connection, handler)

    async def provide_gateway() -> GatewayService:
        return find_gateway()

    return Litestar(
        route_handlers=[
            Router(
                "/v1",
                route_handlers=[
                    *JOB_ROUTES,
                    *LOG_ROUTES,
                    *DECISION_ROUTES,
                    *EVENT_ROUTES,
                    *EXPORT_ROUTES,
                    *TRUST_ROUTES,
                    *GRID_ROUTES,
                    *WHOAMI_ROUTES,
                    *TENANT_ROUTES,
                    *BUS_ROUTES,
                    *ARTIFACT_ROUTES,
                    review_router(),
                ],
                guards=[admit],
            ),
            Router("/v1", route_handlers=OPEN_ROUTES),
            Router("/", route_handlers=LOGIN_ROUTES),
            Router("/", route_handlers=METRICS_ROUTES),
            Router("/", route_handlers=DASHBOARD_ROUTES),
        ],
        dependencies={"gateway": Provide(provide_gateway), "caller": Provide(caller_of, sync_to_thread=False)},
        exception_handlers={Exception: answer_problem, ElasticGridError: answer_problem},
        request_max_body_size=MAX_BODY_BYTES,
        logging_config=None,
        openapi_config=OpenAPIConfig(
            title="elasticgrid",
            version=API_VERSION,
            description="Submit elastic training jobs, watch them, and read why they are the size they are.",
            license=License(name="Apache-2.0", identifier="Apache-2.0"),
            path="/v1/openapi",
            render_plugins=[_Document(path="/openapi.json")],
            use_handler_docstrings=True,
            operation_id_creator=lambda handler, _method, _path: handler.handler_name,
            security=[{"apiKey": []}, {"bearer": []}, {"session": []}],
            components=Components(
                security_schemes={
                    "apiKey": SecurityScheme(type="apiKey", name=KEY_HEADER, security_scheme_in="header"),
                    "bearer": SecurityScheme(type="http", scheme="bearer"),
                    "session": SecurityScheme(type="apiKey", name=SESSION_COOKIE, security_scheme_in="cookie"),
                }
            ),
        ),
    )
