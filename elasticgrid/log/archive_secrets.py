"""Credentials are taken out of what is shown and of what leaves the grid.

An archive is handed to other people, and whoever may read a job sees its events. What looks like a credential by the
name of its variable, by what stands before it, or by its own form, is replaced by `WITHHELD`; no decision depends on
one, so an archive replays as the log does. It is better to withhold too much than too little: only the environment,
command lines and parameters that people wrote are looked at by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import msgspec

WITHHELD: Final = b"(withheld)"

_MARK: Final = WITHHELD.decode()
#: How names of credentials end. Longer names are looked at from behind.
_ENDING: Final = r"(?:[_-]?(?:id|value|val|b64|base64|hex|json|ur[il]|[0-9]{1,3})){0,3}"
_NAMED: Final = re.compile(
    r"(?:(?:.*[_.-])?(?:pw|pat|jwt|sig|signature|creds?)"
    r"|.*(?:api_?keys|key|secrets?|token|passw(?:or)?ds?|passphrase|passcode|pass|pwd|credentials?"
    rf"|auth|authorization|cookie|dsn|webhooks?)){_ENDING}",
    re.IGNORECASE | re.DOTALL,
)
_MAX_NAME: Final = 80
_HINTED: Final = re.compile(r"p(?:ass|w|at)|key|secret|token|cred|auth|cookie|dsn|webhook|jwt|sig", re.IGNORECASE)
#: What may be a name in a command line or a URL, and behind it a value: `PASSWORD=abc`, `?token=abc`, `--api-key abc`,
#: `X-Api-Key: abc`.
_WORD: Final = re.compile(r"[A-Za-z0-9_.-]+")
_JOINT: Final = re.compile(r"=|[ \t]*:[ \t]*(?:(?:basic|bearer|token|digest)[ \t]+)?|[ \t]+", re.IGNORECASE)
_VALUE: Final = re.compile(r"\"(?:[^\"\\]|\\.)*\"?|'[^']*'?|[^\s\"'&;|<>()#,]+", re.DOTALL)
#: A user and a password for a program: `curl -u bob:pw`.
_USER: Final = re.compile(r"(?<!\S)(?:-[uU][ \t]*|--(?:proxy-)?user(?:=|[ \t]+))[\"']?(?P<user>[^\s:\"'/]{0,80}):")
_USER_OPTIONS: Final = frozenset(("-u", "-U", "--user", "--proxy-user"))
#: Keys without a form of their own: forty characters of base64, or more with its ending or of the alphabet for URLs.
_RUN: Final = re.compile(r"[A-Za-z0-9+/_.-]+={0,2}")
_KEY_RUN: Final = re.compile(r"[A-Za-z0-9+][A-Za-z0-9+/]{39}|[A-Za-z0-9_-]{40,}|[A-Za-z0-9+][A-Za-z0-9+/]{40,}={1,2}")
_MAX_RUN: Final = 512
_MAX_JOINTS: Final = 5
#: Hexadecimal ones are told from names of versions only by what they are called.
_HEX: Final = re.compile(r"(?:[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64})", re.IGNORECASE)
_OF_VERSION: Final = re.compile(r"commit|sha|rev|hash|digest|checksum|version|image|uuid|trace|run_?id", re.IGNORECASE)
#: What is a credential whatever it is called, and texts of which one is in each of them: most events have none.
_FORMED: Final = tuple(
    (signs, re.compile(pattern, re.DOTALL))
    for signs, pattern in (
        (
            (b"PRIVATE KEY",),
            rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|(?=\"))",
        ),
        ((b"SA", b"SC", b"SN", b"SO", b"SU", b"SX"), rb"\bS[ACNOUX][A-Z2-7]{56}\b"),  # NATS seeds
        ((b"eyJ",), rb"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),  # JSON web tokens
        ((b"eg_",), rb"\beg_[0-9a-f]{8}_[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])"),  # keys of a gateway
        ((b"AKIA", b"ASIA"), rb"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
        ((b"AIza",), rb"\bAIza[0-9A-Za-z_-]{35}(?![A-Za-z0-9_-])"),
        ((b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_"), rb"\bgh[pousr]_[A-Za-z0-9]{36,}\b"),
        ((b"github_pat_",), rb"\bgithub_pat_[A-Za-z0-9_]{40,}\b"),
        ((b"glpat-",), rb"\bglpat-[A-Za-z0-9_-]{20,}"),
        ((b"hf_",), rb"\bhf_[A-Za-z0-9]{30,}\b"),
        ((b"sk-",), rb"\bsk-[A-Za-z0-9_-]{20,}"),
        ((b"xox",), rb"\bxox[abprs]-[A-Za-z0-9-]{10,}"),
        ((b"https://hooks.",), rb"\bhttps://hooks\.[a-z0-9.-]+/[^\s\"\\]+"),  # web hooks of chats
        ((b"earer ",), rb"(?<=[Bb]earer )[A-Za-z0-9._~+/-]{16,}=*"),
        ((b"://",), rb"(?<=://)[^/\s\"@:]*:[^/\s\"@]+(?=@)"),  # user:password@host
    )
)
#: Not credentials, though their names end like one; of a job's `secrets` the paths of files.
_HARMLESS: Final = frozenset(("idempotency_key",))
#: Objects whose texts are names that decisions are taken by, and paths of files.
_NOT_LOOKED_AT: Final = frozenset(("scaling", "placement", "secrets", "file_mounts"))
#: A value that is a switch or stands for another one.
_NO_SECRET: Final = re.compile(r"(?:true|false|yes|no|on|off|none|null|[01]?|\$\{?\w+\}?|\(withheld\))", re.IGNORECASE)
#: Only events with one of these fields hold values that people named, or command lines.
_FREE_FIELDS: Final = (b'"env"', b'"params"', b'"command"')
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:,]', re.DOTALL)

_T = TypeVar("_T", bound=msgspec.Struct)


def without_credentials(raw: bytes) -> bytes:
    """The event's bytes with every credential replaced; the very same when there is none."""
    clean = _without_formed(raw)
    return b"".join(_pieces(clean)) if any(field in clean for field in _FREE_FIELDS) else clean


def shown(value: _T) -> _T:
    """A value that has an environment, a command or parameters, such as a job, as it may be shown."""
    raw = msgspec.json.encode(value)
    clean = without_credentials(raw)
    return value if clean == raw else msgspec.json.decode(clean, type=type(value))


def shown_text(text: str) -> str:
    """A sentence, or what a program said, as it may be shown: of these only what has the form of a credential."""
    return _without_formed(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def shown_command(text: str) -> str:
    """A command line as it may be shown."""
    return _without_assigned(shown_text(text))


def shown_values(values: dict[str, Any]) -> dict[str, Any]:
    """Values that somebody named, as they may be shown."""
    clean: dict[str, Any] = msgspec.json.decode(without_credentials(msgspec.json.encode({"params": values})))["params"]
    return clean


def _without_formed(raw: bytes) -> bytes:
    for signs, pattern in _FORMED:
        if any(sign in raw for sign in signs):
            raw = pattern.sub(WITHHELD, raw)
    return raw


class _Place(msgspec.Struct):
    """An object or a list that is being read.

    Attributes:
        name: of the field that it is; `within` of all around it and of itself.
        field: of an object, the one whose value comes.
        before: of a list, the text before.
    """

    is_object: bool
    name: str
    within: frozenset[str]
    field: str = ""
    before: str = ""
    wants_value: bool = False


def _pieces(raw: bytes) -> Iterator[bytes]:
    """JSON in pieces, without credentials. What is no JSON comes out as well, with what of it can be told."""
    places = [_Place(False, "", frozenset())]
    done = 0
    for match in _TOKEN.finditer(raw):
        token, here = match[0], places[-1]
        match token:
            case b"{" | b"[":
                name = here.field if here.is_object else here.name
                places.append(_Place(token == b"{", name, here.within | {name}))
            case b"}" | b"]":
                if len(places) > 1:
                    places.pop()
            case b":":
                here.wants_value = True
            case b",":
                here.wants_value = False
            case _:
                text = _unquoted(token)
                if here.is_object and not here.wants_value:
                    here.field = text
                    continue
                clean = _clean_value(text, here)
                here.before = text
                if clean != text:
                    yield raw[done : match.start()] + msgspec.json.encode(clean)
                    done = match.end()
    yield raw[done:]


def _clean_value(text: str, here: _Place) -> str:
    if not here.within.isdisjoint(_NOT_LOOKED_AT):
        return text
    if here.is_object:
        name = here.field
        if name in _HARMLESS:
            return text
        if name == "metadata" and text.startswith("{"):
            return without_credentials(text.encode()).decode()
        if _is_named(name) and not _NO_SECRET.fullmatch(text):
            return _MARK
        if _HEX.fullmatch(text) and "env" in here.within and _OF_VERSION.search(name) is None:
            return _MARK
    elif here.name == "command":
        option = here.before
        if option.startswith("-") and not text.startswith("-") and not _NO_SECRET.fullmatch(text):
            if _is_named(option):
                return _MARK
            if option in _USER_OPTIONS:
                return _without_password(f"{option} {text}")[len(option) + 1 :]
    is_written = not here.within.isdisjoint(("env", "params", "command")) or (here.is_object and here.field in _TEXTS)
    return _without_assigned(text) if is_written else text


#: Fields with a script.
_TEXTS: Final = frozenset(("setup", "command"))


def _is_named(name: str) -> bool:
    return _HINTED.search(name) is not None and _NAMED.fullmatch(name[-_MAX_NAME:]) is not None


def _without_assigned(text: str) -> str:
    if _HINTED.search(text) is not None:
        text = _replaced(text, _assigned(text))
    return _RUN.sub(_withhold_run, _without_password(text))


def _without_password(text: str) -> str:
    return _replaced(text, _passwords(text)) if ":" in text else text


def _replaced(text: str, spans: Iterator[tuple[int, int]]) -> str:
    """The text with `WITHHELD` in the place of each span."""
    pieces, done = [], 0
    for start, end in spans:
        pieces += [text[done:start], _MARK]
        done = end
    return "".join((*pieces, text[done:]))


def _assigned(text: str) -> Iterator[tuple[int, int]]:
    """Where values of names stand that say that they are credentials."""
    done = 0
    for word in _WORD.finditer(text):
        if word.start() < done or not _is_named(word[0]):
            continue
        joint = _JOINT.match(text, word.end())
        value = _VALUE.match(text, joint.end()) if joint is not None else None
        if joint is None or value is None:
            continue
        is_option = joint[0].isspace()
        if is_option and (not word[0].startswith("-") or value[0].startswith("-")):
            continue  # two words of a sentence, or two options
        bare = value[0].strip("\"'")
        if bare and not _NO_SECRET.fullmatch(bare):
            done = value.end()
            yield value.span()


def _passwords(text: str) -> Iterator[tuple[int, int]]:
    for user in _USER.finditer(text):
        value = _VALUE.match(text, user.end())
        if value is None or _NO_SECRET.fullmatch(value[0]):
            continue
        if not (user["user"].isdigit() and value[0].isdigit()):  # a user's and a group's number
            yield value.span()


def _withhold_run(match: re.Match[str]) -> str:
    run = match[0]
    if len(run) < 40 or len(run) > _MAX_RUN or not _KEY_RUN.fullmatch(run):
        return run
    # A long name has several words; a key is of letters and digits in any order.
    is_mixed = sum(map(run.count, "_-/")) <= _MAX_JOINTS and not run.islower() and not run.isupper()
    return _MARK if is_mixed and sum(map(str.isdigit, run)) >= (1 if len(run) == 40 else 3) else run


def _unquoted(token: bytes) -> str:
    try:
        text: str = msgspec.json.decode(token, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        text = token[1:-1].decode("utf-8", "replace")
    return text
