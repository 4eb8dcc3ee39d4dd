"""What looks like a secret: texts and names, by the forms that issuers give to theirs and by what stands before them.

It is meant to warn. What it knows nothing of is not therefore harmless; what it names is rarely so.
"""

from __future__ import annotations

import re
from typing import Final

_FORMS: Final = (
    (re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----"), "it holds a private key"),
    (re.compile(rb'"private_key"\s*:\s*"'), "it holds a private key"),
    (re.compile(rb"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), "it holds an access key of a cloud"),
    (re.compile(rb"\bAIza[0-9A-Za-z_-]{35}(?![\w-])"), "it holds an access key of a cloud"),
    (
        re.compile(rb"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{36,})\b"),
        "it holds a token of a code host",
    ),
    (re.compile(rb"\bglpat-[A-Za-z0-9_-]{20,}"), "it holds a token of a code host"),
    (re.compile(rb"\bhf_[A-Za-z0-9]{30,}\b"), "it holds a token of a model hub"),
    (
        re.compile(
            rb"\bsk-(?:(?:proj|ant|svcacct|admin|or)-[A-Za-z0-9_-]{16,}|(?=[A-Za-z_-]{0,99}[0-9])[A-Za-z0-9_-]{20,})"
        ),
        "it holds a key of a model's provider",
    ),
    (re.compile(rb"\bxox[abeoprs]-[0-9A-Za-z]*[0-9][0-9A-Za-z-]{9,}"), "it holds a token of a chat"),
    (re.compile(rb"\b(?:npm_[A-Za-z0-9]{36}\b|pypi-AgE[A-Za-z0-9_-]{16,})"), "it holds a token of a package index"),
    (
        re.compile(rb"^[^\S\n]*(?:\S+:)?_(?:authToken|auth|password)[^\S\n]*=[^\S\n]*[\w+/=.-]{8,}", re.MULTILINE),
        "it holds a token of a package index",
    ),
    (re.compile(rb"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}"), "it holds a signed token"),
    (
        re.compile(rb"://[^\s/:@\"']+:(?!pass|secret|user|pwd)[^\s/@\"'$<{(%*]{8,}@", re.IGNORECASE),
        "it holds an address with a password",
    ),
)
#: A name that says so, and what it is set to: in quotes, or up to the next space.
_ASSIGNED: Final = re.compile(
    rb"(?:SECRET|TOKEN|API[_-]?KEY|ACCESS[_-]?KEY|SECRET[_-]?KEY|PASSWORD|PASSWD|PASSPHRASE)"
    rb"[\"']?[^\S\n]*(?::|=(?!=))[^\S\n]*"
    rb"(?:\"(?P<double>[^\"\s]{16,2000}+)\"|'(?P<single>[^'\s]{16,2000}+)'|(?P<bare>[^\s\"'`,;]{16,2000}+)(?=[\s,;]|$))",
    re.IGNORECASE,
)
#: The rest of the name in front of that. It is looked for once something is found: as a part of the search it would
#: make a long text without a gap take for ever.
_BEFORE: Final = re.compile(rb"[A-Za-z0-9_.-]*\Z")
_NAME_LENGTH: Final = 40
#: Such a value stands for another: a variable, a placeholder, a special token, the place of a file, an address.
_STANDS_FOR: Final = (b"$", b"<", b"{", b"[", b"(", b"%", b"/", b"~", b"./", b"../", b"http://", b"https://", b"file:")
#: With brackets a text is code that fetches the value. Code has secrets of its own in quotes.
_CODE: Final = re.compile(rb"[()\[\]{}]")
_PLACEHOLDER: Final = re.compile(
    rb"x{8,}|\*{3,}|\.{3}|^(?:your|my|the|some|example|placeholder|dummy|change[-_]?me)[-_.]", re.IGNORECASE
)
#: Several words name something: a token of a vocabulary, a class, an attribute, a secret's own name.
_WORDS: Final = re.compile(rb"[A-Za-z]*[_.:/-][A-Za-z_.:/-]*|[a-z]*(?:[A-Z]+[a-z]+)+")
_HEX_OR_RUN: Final = re.compile(r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{20,}")
_BASE64: Final = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*[0-9])[A-Za-z0-9+/=_-]{16,}")

_NAMES: Final = re.compile(
    r"(?:^|[._-])(?:secrets?|credentials?|passwords?|passwd|htpasswd|service[-_]?account)(?:[._-]|$)"
    r"|\.(?:pem|key|p12|pfx|keystore|kdbx|env)$|^\.env|^\.(?:npmrc|pypirc|netrc|pgpass|dockercfg)$"
    r"|^id_(?:rsa|ecdsa|ed25519)",
    re.IGNORECASE,
)
#: Such names are of programs and of public halves.
_HARMLESS: Final = re.compile(r"\.(?:py|pyi|ipynb|md|rst|pub|example|sample|template)$", re.IGNORECASE)


def why_name(name: str) -> str:
    """Why a file of this name, without its folders, looks like a secret; empty when it does not."""
    return "its name says so" if _NAMES.search(name) is not None and _HARMLESS.search(name) is None else ""


def why_text(text: bytes) -> str:
    """Why a text looks as if it held a secret; empty when it does not. The secret itself is not in the answer."""
    found = next((reason for pattern, reason in _FORMS if pattern.search(text) is not None), "")
    if found:
        return found
    for match in _ASSIGNED.finditer(text):
        quoted = match["double"] or match["single"]
        if _is_secret_value(quoted or match["bare"], is_quoted=quoted is not None):
            keyword = text[match.start() :].partition(b":")[0].partition(b"=")[0].strip(b" \t\"'")
            before = _BEFORE.search(text, max(0, match.start() - _NAME_LENGTH), match.start())
            name = ((before[0] if before is not None else b"") + keyword).decode(errors="replace")
            return f"{name} has a value in it"
    return ""


def why_variable(name: str, value: str) -> str:
    """Why a variable looks as if its value were a secret; empty when it does not."""
    quoted = value.replace('"', "'").strip()
    return why_text(f'{name}="{quoted}"'.encode(errors="replace"))


def is_no_path(text: str) -> bool:
    """Whether a text that should be the path of a secret's file may be the secret itself."""
    if text.startswith(("/", "./", "../", "~/")):
        return False
    if "/" not in text and "." not in text:
        return True
    return bool(why_text(text.encode(errors="replace")) or _HEX_OR_RUN.search(text) or _BASE64.fullmatch(text))


def _is_secret_value(value: bytes, *, is_quoted: bool) -> bool:
    if value.startswith(_STANDS_FOR) or _PLACEHOLDER.search(value) is not None:
        return False
    if not is_quoted and _CODE.search(value) is not None:
        return False
    return _WORDS.fullmatch(value) is None
