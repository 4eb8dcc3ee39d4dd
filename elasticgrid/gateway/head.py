"""HEAD requests: answered as GET is, without the body."""

from __future__ import annotations

from typing import Any, cast

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send


def with_head(app: ASGIApp) -> ASGIApp:
    """The application, and HEAD wherever it has GET.

    The handler is told that the client has gone once its answer has begun, so that one without an end ends.
    """

    async def answering(scope: Scope, receive: Receive, send: Send) -> None:
        asked: Any = scope
        if scope["type"] != ScopeType.HTTP or asked["method"] != "HEAD":
            await app(scope, receive, send)
            return
        asked["method"] = "GET"
        begun = False

        async def without_body(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                await send(message)
                await send(cast("Message", {"type": "http.response.body", "body": b"", "more_body": False}))

        async def until_begun() -> Any:
            return {"type": "http.disconnect"} if begun else await receive()

        try:
            await app(scope, until_begun, without_body)
        finally:
            asked["method"] = "HEAD"

    return answering
