"""What a browser keeps after a login: a signed statement of whose key it was and until when it counts. Pure."""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from elasticgrid import base64url


class Session(msgspec.Struct, frozen=True, array_like=True):
    """Whose key a browser logged in with. There is nothing of the key in it.

    Attributes:
        id: of this login and no other.
        mark: what the very key is recognised by.
        until_ms: Unix milliseconds.
    """

    id: str
    prefix: str
    mark: str
    until_ms: int


_session = msgspec.json.Decoder(Session)


def signed_session(secret: bytes, session: Session) -> str:
    """The statement as the value of a cookie."""
    content = msgspec.json.encode(session)
    return f"{base64url.encoded(content)}.{base64url.encoded(_signature(secret, content))}"


def read_session(secret: bytes, value: str) -> Session | None:
    """What a cookie's value states; None when it was not signed with this secret."""
    content_text, _, signature_text = value.partition(".")
    try:
        content, signature = base64url.decoded(content_text), base64url.decoded(signature_text)
        if not hmac.compare_digest(signature, _signature(secret, content)):
            return None
        return _session.decode(content)
    except (ValueError, msgspec.MsgspecError):
        return None


def _signature(secret: bytes, content: bytes) -> bytes:
    return hmac.new(secret, content, hashlib.sha256).digest()
