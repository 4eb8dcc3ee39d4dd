"""Credentials are taken out of what leaves the grid.

An archive is handed to other people. What looks like a credential by the name of its variable, or by its own form, is
replaced by `WITHHELD`; no decision depends on one, so the archive replays as the log does.
"""

from __future__ import annotations

import re
from typing import Final

WITHHELD: Final = b"(withheld)"

#: Names of variables and parameters whose values are credentials, as they stand in JSON.
_NAMED: Final = re.compile(
    rb'"(?P<name>[A-Za-z0-9_.-]*(?:_|\b)(?:api_?key|access_?key|secret_?key|private_?key|account_?key|key|secret|token|'
    rb"passw(?:or)?d|passphrase|credentials?|auth|authorization|cookie|dsn)"
    rb'(?:_id|_value|_b64|_base64|_json)?)"\s*:\s*"(?P<value>(?:[^"\\]|\\.)*)"',
    re.IGNORECASE,
)
#: Words of a command line that carry a credential in the next word or behind an equals sign.
_OPTION: Final = re.compile(
    rb'"(?P<name>--?[A-Za-z0-9-]*(?:key|secret|token|password|passphrase|credentials?))(?P<joint>=|",")'
    rb'(?P<value>(?:[^"\\]|\\.)*)"',
    re.IGNORECASE,
)
#: What is a credential whatever it is called.
_FORMED: Final = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|(?=\"))"  # PEM
    rb"|\bS[ACNOUX][A-Z2-7]{56}\b"  # NATS seed
    rb"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"  # JSON web token
    rb"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    rb"|\bAIza[0-9A-Za-z_-]{35}\b"
    rb"|\bgh[pousr]_[A-Za-z0-9]{36,}\b|\bgithub_pat_[A-Za-z0-9_]{40,}\b"
    rb"|\bhf_[A-Za-z0-9]{30,}\b"
    rb"|\bsk-[A-Za-z0-9_-]{20,}\b"
    rb"|\bxox[abprs]-[A-Za-z0-9-]{10,}"
    rb"|(?<=[Bb]earer )[A-Za-z0-9._~+/-]{16,}=*"
    rb"|(?<=://)[^/\s\"@:]*:[^/\s\"@]+(?=@)",  # user:password@host
    re.DOTALL,
)
#: Not credentials, though their names end like one.
_HARMLESS: Final = frozenset((b"idempotency_key",))
#: Only events with one of these fields hold values that people named, or command lines.
_FREE_FIELDS: Final = (b'"env"', b'"params"', b'"command"')


def without_credentials(raw: bytes) -> bytes:
    """The event's bytes with every credential replaced; the very same when there is none."""
    clean = _FORMED.sub(WITHHELD, raw)
    if any(field in clean for field in _FREE_FIELDS):
        clean = _NAMED.sub(_withhold_named, clean)
        clean = _OPTION.sub(_withhold_option, clean)
    return clean


def _withhold_named(match: re.Match[bytes]) -> bytes:
    if match["name"].lower() in _HARMLESS or not match["value"]:
        return match[0]
    return b'"%b":"%b"' % (match["name"], WITHHELD)


def _withhold_option(match: re.Match[bytes]) -> bytes:
    if not match["value"]:
        return match[0]
    return b'"%b%b%b"' % (match["name"], match["joint"], WITHHELD)
