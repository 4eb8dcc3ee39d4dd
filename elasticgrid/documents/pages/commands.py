"""The page of the command line, from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from types import UnionType
from typing import Any, Literal, Protocol, Union, get_args, get_origin, get_type_hints

from elasticgrid.documents.pages.markdown import code, page, table


class Parameter(Protocol):
    """An argument or an option."""

    name: Any
    opts: list[str]
    secondary_opts: list[str]
    default: Any
    envvar: Any
    required: bool
    metavar: Any
    nargs: int


class Command(Protocol):
    """A verb, or a noun with verbs."""

    help: Any
    params: list[Any]
    callback: Any


def commands_page(root: Command) -> str:
    """Every verb with its arguments and options."""
    parts = [
        "Data goes to standard output and messages to standard error. `-o json`, `jsonl` and `yaml` are for programs; "
        "`--json` is `-o json`. Exit codes are those of [errors](errors.md), and 0.",
    ]
    found = list(_verbs(root, "elasticgrid"))
    parts.append(table(("verb", "does"), ((f"[{name}](#{_anchor(name)})", _first(verb)) for name, verb in found)))
    for name, verb in found:
        text, _, example = str(verb.help or "").partition("Example: ")
        parts += [f"## {name}", _joined(text), f"```sh\n{example.strip()}\n```" if example else "", _parameters(verb)]
    return page("Command line", *parts)


def _verbs(command: Command, name: str) -> Iterator[tuple[str, Command]]:
    below: dict[str, Command] | None = getattr(command, "commands", None)
    if below is None:
        yield name, command
        return
    for word, each in below.items():
        yield from _verbs(each, f"{name} {word}")


def _parameters(verb: Command) -> str:
    kinds = get_type_hints(inspect.unwrap(verb.callback))
    return table(
        ("argument or option", "is", "default"),
        (
            (_names(each), _meaning(each, kinds.get(each.name)), _default(each))
            for each in verb.params
            if not getattr(each, "hidden", False) and each.name != "help"
        ),
    )


def _names(each: Parameter) -> str:
    if any(option.startswith("-") for option in each.opts):
        metavar = f" {each.metavar}" if each.metavar else ""
        return ", ".join(code(f"{option}{metavar}") for option in (*each.opts, *each.secondary_opts))
    return code(each.metavar or str(each.name).upper())


def _meaning(each: Parameter, kind: Any) -> str:
    text = str(getattr(each, "help", None) or "")
    chosen = _choices(kind)
    more = [f"One of {', '.join(map(code, chosen))}."] if chosen else []
    if each.envvar:
        more.append(f"Variable {code(each.envvar)}.")
    return " ".join([text, *more]).strip()


def _choices(kind: Any) -> list[str]:
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    if get_origin(kind) in (Union, UnionType, list):
        return [choice for part in get_args(kind) for choice in _choices(part)]
    return []


def _default(each: Parameter) -> str:
    if each.required:
        return "required"
    if isinstance(each.default, Enum):
        return code(each.default.value)
    return "" if each.default in (None, False, "") else code(each.default)


def _first(verb: Command) -> str:
    return _joined(str(verb.help or "").split("\n\n", 1)[0])


def _joined(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n"))


def _anchor(name: str) -> str:
    return name.replace(" ", "-")
