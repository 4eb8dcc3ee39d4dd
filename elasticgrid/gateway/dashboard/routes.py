"""Routes of the page and its files. They need no key: they hold no data."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from litestar import Request, Response, get
from litestar.params import FromPath, HeaderParameter
from litestar.types import ControllerRouterHandler

from elasticgrid.core.errors import NotFound
from elasticgrid.gateway.dashboard.assets import asset, index_page
from elasticgrid.gateway.login import SESSION_COOKIE

# An empty inline style is what Plotly's script puts into the page's head; its hash allows that one and no other.
_EMPTY_STYLE: Final = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
CONTENT_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        f"style-src 'self' {_EMPTY_STYLE}",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_SAFE: Final = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
# The address names the content, so it never changes.
_FOR_EVER: Final = "public, max-age=31536000, immutable"


@get("/", media_type="text/html", include_in_schema=False)
async def show_page(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The page; what it shows it asks of the interface."""
    page = await asyncio.to_thread(index_page, signed_in=SESSION_COOKIE in request.cookies)
    return Response(page, media_type="text/html", headers={**_SAFE, "Cache-Control": "no-store"})


@get("/ui/{digest:str}/{name:str}", include_in_schema=False)
async def show_asset(
    digest: FromPath[str],
    name: FromPath[str],
    accepts: Annotated[str, HeaderParameter(name="Accept-Encoding")] = "",
) -> Response[bytes]:
    """A script, a style or a picture of the page."""
    found = await asyncio.to_thread(asset, digest, name)
    if found is None:
        raise NotFound("the page has no such file", where="path", hint="reload the page: it is of another version")
    headers = {**_SAFE, "Cache-Control": _FOR_EVER, "Vary": "Accept-Encoding"}
    if "gzip" in accepts:
        return Response(found.compressed, media_type=found.media_type, headers={**headers, "Content-Encoding": "gzip"})
    return Response(found.content, media_type=found.media_type, headers=headers)


DASHBOARD_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (show_page, show_asset)
