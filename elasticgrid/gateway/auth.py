"""Files of the gateway that open something: the admin key, and the secret that other keys are kept under."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from elasticgrid.core.errors import InvalidInput

ADMIN_KEY_FILE: Final = "admin.key"
SECRET_FILE: Final = "gateway.secret"  # noqa: S105 - the name of its file
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

    def matches(self, key: str) -> bool:
        """Whether it is this one; takes the same time whatever the answer."""
        return hmac.compare_digest(_digest(key), self.digest)


def admin_key(data_dir: Path) -> AdminKey:
    """The key in the data folder; made at the first call, readable by its owner alone.

    Raises:
        InvalidInput: the file is not such a key, or others can read it.
    """
    text = _read_or_make(
        data_dir / ADMIN_KEY_FILE, f"{secrets.token_hex(_PREFIX_LENGTH // 2)}{secrets.token_urlsafe(32)}"
    )
    return AdminKey(prefix=text[:_PREFIX_LENGTH], digest=_digest(text))


def gateway_secret(data_dir: Path) -> bytes:
    """The secret that keys and sessions are kept under; made at the first call. Without it all of them are void.

    Raises:
        InvalidInput: the file holds none, or others can read it.
    """
    return _read_or_make(data_dir / SECRET_FILE, secrets.token_urlsafe(48)).encode()


def _read_or_make(path: Path, new: str) -> str:
    if not os.path.lexists(path):
        _create(path, new)
    text = _read(path)
    if not _MIN_LENGTH <= len(text) <= _MAX_LENGTH or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidInput("this file holds no key", where=str(path), hint="delete it; the next start makes a new one")
    return text


def _create(path: Path, key: str) -> None:
    """Write a new key beside and link it into place, so that there is never half a key, and never a second one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(f"{key}\n")
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
