"""Who may ask: the admin key, made at the first start, and the check of every request."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from elasticgrid.core.errors import InvalidInput
from elasticgrid.gateway.problems import NotAuthenticated

ADMIN_KEY_FILE: Final = "admin.key"
KEY_HEADER: Final = "X-API-Key"

_PREFIX_LENGTH: Final = 8
_MIN_LENGTH: Final = 32
_MAX_LENGTH: Final = 512


class AdminKey(msgspec.Struct, frozen=True):
    """The key as the gateway keeps it.

    Attributes:
        prefix: its first characters, which tell keys apart in events and open nothing.
        digest: SHA-256 of it.
    """

    prefix: str
    digest: bytes

    @property
    def actor(self) -> str:
        """How its holder is named in events."""
        return f"key:{self.prefix}"

    def require(self, headers: Mapping[str, str]) -> None:
        """Refuse a request without the key.

        Raises:
            NotAuthenticated: there is none in it, or another.
        """
        given = headers.get(KEY_HEADER.lower(), "")
        if not given:
            scheme, _, token = headers.get("authorization", "").partition(" ")
            given = token.strip() if scheme.lower() == "bearer" else ""
        if not given:
            raise NotAuthenticated("the request has no key", hint=f"send it as {KEY_HEADER}, or as a bearer token")
        if not hmac.compare_digest(_digest(given), self.digest):
            raise NotAuthenticated("this is not a key of this gateway", hint=f"the key is in its {ADMIN_KEY_FILE}")


def admin_key(data_dir: Path) -> AdminKey:
    """The key in the data folder; made at the first call, readable by its owner alone.

    Raises:
        InvalidInput: the file is not such a key, or others can read it.
    """
    path = data_dir / ADMIN_KEY_FILE
    if not os.path.lexists(path):
        _create(path)
    text = _read(path)
    if not _MIN_LENGTH <= len(text) <= _MAX_LENGTH or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidInput("this file holds no key", where=str(path), hint="delete it; the next start makes a new one")
    return AdminKey(prefix=text[:_PREFIX_LENGTH], digest=_digest(text))


def _create(path: Path) -> None:
    """Write a new key beside and link it into place, so that there is never half a key, and never a second one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = f"{secrets.token_hex(_PREFIX_LENGTH // 2)}{secrets.token_urlsafe(32)}\n"
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was first
            os.link(draft, path)
    finally:
        draft.unlink()


def _read(path: Path) -> str:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidInput(
            f"the key is no plain file that can be read: {error.strerror}", where=str(path), hint="delete it"
        ) from error
    with os.fdopen(handle, encoding="ascii", errors="replace") as file:
        mode = os.fstat(file.fileno()).st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InvalidInput("other users can read the key", where=str(path), hint=f"chmod 600 {path}")
        return file.read(_MAX_LENGTH + 1).strip()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
