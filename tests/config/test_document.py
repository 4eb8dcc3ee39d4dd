"""Hostile and damaged text: refused quickly with a line, never a hang, a crash or a Python object."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticgrid.config.document import MAX_BYTES
from elasticgrid.config.grid_file import parse_grid, read_grid
from elasticgrid.config.job_file import parse_job, read_job
from elasticgrid.config.policy_file import read_policy
from elasticgrid.config.settings import PROJECT_FILE, resolve
from elasticgrid.config.skypilot_file import read_job_or_task
from elasticgrid.core.errors import InvalidGrid, InvalidInput, InvalidJob

BOMB = "\n".join(
    ["a: &a [x, x, x, x, x, x, x, x, x]"]
    + [f"{name}: &{name} [{', '.join([f'*{last}'] * 9)}]" for last, name in zip("abcdefgh", "bcdefghi", strict=True)]
)

HOSTILE = {
    "an alias bomb": BOMB,
    "an alias that contains itself": "name: &a [*a]",
    "an alias of nothing": "name: *a",
    "deep lists": "[" * 100_000,
    "deep sets": "{a: " * 50_000,
    "deep block lists": "- " * 100_000,
    "many fields": "".join(f"k{number}: v\n" for number in range(20_000)),
    "many documents": "---\n" * 60_000,
    "many lines": "\n" * MAX_BYTES,
    "an open quote": "'" + "\n" * 200_000,
    "a Python object": "!!python/object/apply:os.system ['true']",
    "a tag of somebody's": "name: !vault x",
    "a tab": "name:\n\t- a",
    "a zero character": "name: a\0b",
    "a field named by a list": "[a]: b",
    "a list": "- a",
    "a word": "word",
    "nothing": "",
    "only a comment": "# nothing\n",
    "null": "null",
    "two documents": "name: a\nrun: b\n---\nname: c\n",
    "too many bytes": "#" * (MAX_BYTES + 1),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_is_refused_within_a_few_seconds_with_a_line(text: str) -> None:
    started = time.monotonic()
    for error in (
        _refusal(lambda: parse_job(text, file="f.yaml", folder=Path("/"), submitted_ms=0)),
        _refusal(lambda: parse_grid(text, file="f.yaml")),
    ):
        assert error.where.startswith("f.yaml:")
        assert len(str(error)) < 10_000
    assert time.monotonic() - started < 10


KEY = "eg_8c41d07e_Zq3vT0mX9cLw2RkYb7NhJd5sPfGa1eUiOxKt4BnMl8E"
WITH_A_KEY = {
    "alone": KEY,
    "in quotes": f'"{KEY}"',
    "as a file of a key in its own form": f"-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----",
    "as lines of assignments": f"A=b\nTOKEN={KEY}",
    "as a tag": f"!{KEY} x",
    **{
        f"as {field}": f"name: a\nrun: b\n{field}: {KEY}\nproviders: [{{name: p, nodes: 1, {field}: {KEY}}}]"
        for field in ("nodes", "run", "workers_per_node", "band", "deadline", "env", "placement", "scaling", "engine")
    },
    "as providers": f"providers: {KEY}",
    "as a number": f"nodes: {{min: {KEY}}}\nproviders: [{{name: p, nodes: {KEY}, price_per_hour: {KEY}}}]",
}


@pytest.mark.parametrize("name", ["f.yaml", "f.json"])
@pytest.mark.parametrize("text", WITH_A_KEY.values(), ids=WITH_A_KEY.keys())
def test_a_key_that_was_given_by_mistake_is_in_no_error_text(text: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(text)
    (tmp_path / PROJECT_FILE).write_text(text)
    refusals = (
        _refusal(lambda: read_job(file, submitted_ms=0)),
        _refusal(lambda: read_job_or_task(file, submitted_ms=0)),
        _refusal(lambda: read_grid(file)),
        _refusal(lambda: read_policy(file)),
        _refusal(lambda: resolve({}, {}, folder=tmp_path, home=tmp_path)),
    )
    for error in refusals:
        told = "\n".join((error.what, error.where, error.hint, *error.story))
        assert KEY[12:20] not in told, told


@pytest.mark.parametrize(
    "text",
    ['{"name": ', '{"a": ' * 30_000, '{"name": ' + "9" * 10_000 + "}", "name: a", "[1]", '{"name": "a"} x', "NaN"],
)
def test_text_that_is_no_json_is_refused_in_a_json_file(text: str) -> None:
    assert isinstance(_refusal(lambda: parse_job(text, file="f.json", folder=Path("/"), submitted_ms=0)), InvalidJob)


def test_bytes_that_are_no_text_are_refused_with_the_line_they_stand_on() -> None:
    error = _refusal(lambda: parse_job(b"name: a\nrun: \xff\n", file="f.yaml", folder=Path("/"), submitted_ms=0))
    assert error.where == "f.yaml:2"


def test_a_byte_order_mark_is_no_part_of_the_first_field() -> None:
    text = "\ufeffname: a\nrun: b\n"
    assert parse_job(text, file="f", folder=Path("/"), submitted_ms=0).name == "a"
    assert parse_job(text.encode(), file="f", folder=Path("/"), submitted_ms=0).name == "a"


def test_an_alias_used_in_moderation_is_read() -> None:
    text = "providers:\n- {name: a, max_nodes: 1, params: &p {x: 1}}\n- {name: b, max_nodes: 1, params: *p}\n"
    first, second = parse_grid(text, file="f.yaml")
    assert first.params == second.params == {"x": "1"}


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_and_nothing_else_happens(source: bytes) -> None:
    for file in ("f.yaml", "f.json"):
        with pytest.raises((InvalidJob, InvalidGrid)):
            parse_grid(source, file=file)
        with pytest.raises(InvalidJob):
            parse_job(source, file=file, folder=Path("/"), submitted_ms=0)


_words = st.sampled_from(
    ("name", "run", "nodes", "min", "max", "env", "scaling", "a", "1", "-1", "1e9", "null", "~", "{}", "[]")
) | st.sampled_from("[]{},:-'\"&*!|>#%@?\n\t\0\\")


@given(st.lists(_words, max_size=40).map(" ".join))
def test_any_mixture_of_yaml_signs_is_read_or_refused_and_nothing_else_happens(body: str) -> None:
    with contextlib.suppress(InvalidJob):
        parse_job(f"name: a\nrun: b\n{body}", file="f.yaml", folder=Path("/"), submitted_ms=0)


def _refusal(call: object) -> InvalidInput:
    assert callable(call)
    with pytest.raises(InvalidInput) as caught:
        call()
    return caught.value
