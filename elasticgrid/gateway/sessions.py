"""What a browser keeps after a login: a signed statement of whose key it was and until when it counts. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

import msgspec


class Session(msgspec.Struct, frozen=True, array_like=True):
    """Whose key a browser logged in with. There is nothing of the key in it.

    Attributes:
        mark: what the very key is recognised by.
        until_ms: Unix milliseconds.
    """

    prefix: str
    mark: str
    until_ms: int


_session = msgspec.json.Decoder(Session)


def signed_session(secret: bytes, prefix: str, mark: str, until_ms: int) -> str:
    """The statement as the value of a cookie."""
    content = msgspec.json.encode(Session(prefix, mark, until_ms))
    return f"{_text(content)}.{_text(_signature(secret, content))}"


def read_session(secret: bytes, value: str) -> Session | None:
    """What a cookie's value states; None when it was not signed with this secret."""
    content_text, _, signature_text = value.partition(".")
    try:
        content, signature = _bytes(content_text), _bytes(signature_text)
        if not hmac.compare_digest(signature, _signature(secret, content)):
            return None
        return _session.decode(content)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        return None


def _signature(secret: bytes, content: bytes) -> bytes:
    return hmac.new(secret, content, hashlib.sha256).digest()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
