"""Key pairs and signed tokens in the forms that nats-server knows: nkeys and JWTs.

Pure: a key pair is derived from a secret and a label, so that one secret is all there is to keep, and the time of a
token is an argument.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from elasticgrid import base64url

Kind = Literal["operator", "account", "user"]

_HEADER: Final = {"typ": "JWT", "alg": "ed25519-nkey"}
_ordered = msgspec.json.Encoder(order="deterministic")


class KeyPair:
    """An Ed25519 key pair.

    Attributes:
        public: its public half as nats-server writes it, such as `A...` for an account.
    """

    def __init__(self, secret: bytes, label: str, kind: Kind) -> None:
        # Only who signs needs this library, and a training process never does.
        import nkeys

        prefixes = {
            "operator": nkeys.PREFIX_BYTE_OPERATOR,
            "account": nkeys.PREFIX_BYTE_ACCOUNT,
            "user": nkeys.PREFIX_BYTE_USER,
        }
        self._pair = nkeys.from_seed(bytearray(nkeys.encode_seed(derived(secret, f"{kind}:{label}"), prefixes[kind])))
        self.public: Final = bytes(self._pair.public_key).decode()

    def sign(self, data: bytes) -> bytes:
        """The signature of these bytes."""
        return bytes(self._pair.sign(data))


def derived(secret: bytes, label: str) -> bytes:
    """32 bytes that only who has the secret can know, others for each label."""
    return hmac.new(secret, label.encode(), hashlib.sha256).digest()


def signed_token(
    issuer: KeyPair,
    subject: str,
    name: str,
    kind: Kind,
    claims: Mapping[str, Any],
    *,
    issued_s: int,
    expires_s: int = 0,
) -> str:
    """A JWT that says `claims` of the key `subject`.

    Args:
        issuer: who signs it.
        subject: the public key it is about.
        name: for people.
        kind: of the subject.
        claims: the part of the token that is nats-server's own.
        issued_s: Unix seconds; a token is revoked by this time.
        expires_s: Unix seconds from which on it is not valid; 0 means never.
    """
    body: dict[str, Any] = {
        "iat": issued_s,
        "iss": issuer.public,
        "name": name,
        "nats": {"type": kind, "version": 2, **claims},
        "sub": subject,
    }
    if expires_s:
        body["exp"] = expires_s
    digest = hashlib.sha256(_ordered.encode(body)).digest()
    body["jti"] = base64.b32encode(digest).decode().rstrip("=")
    signed = f"{_part(_HEADER)}.{_part(body)}"
    return f"{signed}.{base64url.encoded(issuer.sign(signed.encode()))}"


def _part(value: object) -> str:
    return base64url.encoded(_ordered.encode(value))
