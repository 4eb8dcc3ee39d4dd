"""Base64 as it stands in URLs, cookies and tokens: with - and _, and without padding."""

from __future__ import annotations

import base64


def encoded(data: bytes) -> str:
    """The bytes as text."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def decoded(text: str) -> bytes:
    """The bytes of such a text.

    Raises:
        ValueError: it is none.
    """
    return base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
