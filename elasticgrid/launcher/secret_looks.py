"""What looks like a secret: names and beginnings of files that usually hold one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

#: Larger files are data.
_MAX_BYTES: Final = 1024 * 1024
_READ_BYTES: Final = 64 * 1024

_NAMES: Final = re.compile(
    r"(?:^|[._-])(?:secrets?|credentials?|passwords?|passwd|htpasswd|service[-_]?account)(?:[._-]|$)"
    r"|\.(?:pem|key|p12|pfx|keystore|kdbx)$|^\.env|^id_(?:rsa|ecdsa|ed25519)",
    re.IGNORECASE,
)
#: Such names are of programs and of public halves.
_HARMLESS: Final = re.compile(r"\.(?:py|pyi|ipynb|md|rst|pub|example|sample|template)$", re.IGNORECASE)
_CONTENT: Final = (
    (re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----"), "it holds a private key"),
    (re.compile(rb"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), "it holds an access key of a cloud"),
    (re.compile(rb"\bgh[pousr]_[A-Za-z0-9]{36,}\b"), "it holds a token of a code host"),
    (re.compile(rb"\bhf_[A-Za-z0-9]{30,}\b"), "it holds a token of a model hub"),
    (re.compile(rb'"private_key"\s*:\s*"'), "it holds a private key"),
)


def why(path: Path, size_bytes: int) -> str:
    """Why a file looks like a secret; empty when it does not. A file that cannot be read looks like none."""
    if _NAMES.search(path.name) is not None and _HARMLESS.search(path.name) is None:
        return "its name says so"
    if size_bytes > _MAX_BYTES:
        return ""
    try:
        with path.open("rb") as file:
            beginning = file.read(_READ_BYTES)
    except OSError:
        return ""
    return next((reason for pattern, reason in _CONTENT if pattern.search(beginning) is not None), "")
