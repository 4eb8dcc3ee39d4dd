"""How jobs are named: by tenant, by the key of their submitter, and by an id made from both. Pure."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from elasticgrid.core.errors import InvalidInput
from elasticgrid.core.names import is_name, is_record

MAX_KEY_LENGTH: Final = 200

_SUFFIX_LENGTH: Final = 6
_NAME_LENGTH: Final = 63 - 1 - _SUFFIX_LENGTH


def require_tenant(tenant: str) -> None:
    """Refuse what cannot be a tenant of jobs that run.

    Raises:
        InvalidInput: it is no name, or one of the grid's own: what begins with `_` is only looked at.
    """
    if not is_name(tenant) or is_record(tenant):
        raise InvalidInput(
            "this is no tenant that jobs can run for",
            where="tenant",
            hint="lower-case letters, digits, - and _, not _ at the beginning; at most 63 of them",
        )


def require_key(key: str) -> None:
    """Refuse what cannot be an idempotency key; an empty one stands for none.

    Raises:
        InvalidInput: it is too long, or not printable.
    """
    if len(key) > MAX_KEY_LENGTH or not key.isascii() or not key.isprintable():
        raise InvalidInput(
            "this cannot be an idempotency key",
            where="Idempotency-Key",
            hint=f"at most {MAX_KEY_LENGTH} printable ASCII characters, such as a UUID",
        )


def job_id(name: str, tenant: str, seed: str, attempt: int) -> str:
    """`<name>-<6 of a-z2-7>`: the same for the same name, tenant, seed and attempt."""
    digest = hashlib.sha256("\x1f".join((tenant, seed, str(attempt))).encode()).digest()
    return f"{name[:_NAME_LENGTH]}-{base64.b32encode(digest).decode().lower()[:_SUFFIX_LENGTH]}"
