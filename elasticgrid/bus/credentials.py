"""What a process enters the bus with: a file that only its owner may read.

Needs msgspec only: the hook inside a training process reads its credential with this too.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

import msgspec

from elasticgrid import base64url, environment
from elasticgrid.core.errors import InvalidInput

DEFAULT_INBOX_PREFIX: Final = "_INBOX"
#: How a file begins that NATS' own tools made.
_CREDS_BEGIN: Final = b"-----BEGIN NATS USER JWT-----"


class Credentials(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a credential file holds: a user with its password, or a token.

    Attributes:
        user, password: for a bus that knows users by name.
        inbox_prefix: where this user may receive its answers.
        token: a NATS user JWT that is proof enough by itself.
        ca: the certificates, as PEM, of who signed the server's; empty for those that the machine trusts.
        asks: whether it reads events by asking for them, and may not read the stream itself.
        renewal: the subject on which the next token is asked for; empty when it is not renewed.
        rendezvous_secret: what the workers of the tenant sign their tickets with; empty for none.
        nats_creds: a file in NATS' own format, whole.
    """

    user: str = ""
    password: str = ""
    inbox_prefix: str = DEFAULT_INBOX_PREFIX
    token: str = ""
    ca: str = ""
    asks: bool = False
    renewal: str = ""
    rendezvous_secret: str = ""
    nats_creds: str = ""

    def __repr__(self) -> str:
        """Without what is secret: errors and logs may show it."""
        return f"Credentials(user={self.user!r}, inbox_prefix={self.inbox_prefix!r})"

    @property
    def issued_s(self) -> int:
        """When the token was issued, Unix seconds; 0 when it does not say."""
        return _claims(self.token).iat

    @property
    def expires_s(self) -> int:
        """When the token ends, Unix seconds; 0 for never."""
        return _claims(self.token).exp


class _Claims(msgspec.Struct, frozen=True):
    iat: int = 0
    exp: int = 0


def _claims(token: str) -> _Claims:
    parts = token.split(".")
    if len(parts) != 3:
        return _Claims()
    try:
        return msgspec.json.decode(base64url.decoded(parts[1]), type=_Claims)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return _Claims()


def read_credentials(path: str | Path) -> Credentials:
    """The credential in a file: one of ours, or one that NATS' own tools made (`.creds`).

    Raises:
        InvalidInput: the file cannot be read or is not a credential.
    """
    try:
        data = Path(path).read_bytes()
        if data.lstrip().startswith(_CREDS_BEGIN):
            return Credentials(nats_creds=data.decode())
        found = msgspec.json.decode(data, type=Credentials)
    except OSError as error:
        raise InvalidInput(
            f"the credential file cannot be read: {error.strerror}",
            where=str(path),
            hint=f"{environment.CREDENTIALS} names a file that the grid or the operator has written",
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _not_valid(path, str(error)) from error
    proofs = (found.token, found.user and found.password, found.nats_creds)
    # A launch on a bus that asks for nothing has a file for its tenant's secret alone.
    if not any(proofs) and not found.rendezvous_secret:
        raise _not_valid(path, "it has neither a token nor a user with a password")
    return found


def _not_valid(path: str | Path, why: str) -> InvalidInput:
    return InvalidInput(
        f"the credential file is not valid: {why}",
        where=str(path),
        hint='expected {"user": ..., "password": ...} or {"token": ...}',
    )


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all; whatever lay there before is replaced."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_credentials(path: Path, credentials: Credentials) -> None:
    """Write a credential file."""
    write_private(path, msgspec.json.encode(credentials))
