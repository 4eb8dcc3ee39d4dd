"""The page of the gateway's routes, from its OpenAPI document."""

from __future__ import annotations

import json
from typing import Any

from elasticgrid.documents.pages.markdown import code, page, table
from elasticgrid.gateway.openapi_document import openapi_text


def http_page() -> str:
    """Every route."""
    paths: dict[str, dict[str, Any]] = json.loads(openapi_text())["paths"]
    return page(
        "HTTP",
        "The routes of the gateway. The key goes into `X-API-Key`. Bodies, answers and parameters are described in "
        "`schemas/openapi.json`; errors are [problems](errors.md).",
        table(
            ("route", "does", "parameters"),
            (
                (
                    code(f"{method.upper()} {path}"),
                    _text(operation),
                    ", ".join(code(each["name"]) for each in operation.get("parameters", ()) if each["in"] != "path"),
                )
                for path, operations in paths.items()
                for method, operation in operations.items()
            ),
        ),
    )


def _text(operation: dict[str, Any]) -> str:
    return " ".join(f"{operation['summary']}. {operation.get('description', '')}".split())
