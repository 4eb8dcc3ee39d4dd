"""Whatever a decoder at the edge is given, it takes it or refuses it in the way it promises, and never otherwise."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from decoders import DECODERS, TOP, Decoder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

#: Nothing here depends on the time; a slow machine is no finding.
QUIET = settings(
    max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
#: Those that ask a server take longer each.
FEW = settings(QUIET, max_examples=15)

PACKAGE = TOP / "elasticgrid"
_DECODES = re.compile(r"(?:json|msgpack)\.(?:decode|Decoder)\b|yaml\.(?:safe_load|load|compose)|_decoder\.decode")

#: Modules that decode, and whose input nobody else writes.
OWN_INPUT = {
    "agent/credential_renewal.py": "the answer of the service that issues credentials, over an authenticated request",
    "agent/hook_server.py": "uses the decoder of publish/channel.py",
    "agent/stop_talk.py": "uses the decoders of agent/agreement.py",
    "bus/account_keeper.py": "answers of nats-server",
    "bus/api.py": "answers of nats-server",
    "bus/embedded.py": "the file that nats-server writes for us",
    "bus/windowed_publisher.py": "answers of nats-server",
    "decider/snapshot.py": "a cache of our own behind a digest; tests/decider damages it",
    "gateway/whatif_run.py": "what our own child process says",
    "review/whatif_process.py": "what our own parent process asks",
    "launcher/bundle_store.py": "files of our own folder",
    "launcher/credential_desk.py": "asked by the gateway alone; refuses what it cannot read, as these here",
    "gateway/bus_credentials.py": "the answer of the launcher's desk",
    "launcher/engines/remote.py": "files of our own folder",
    "launcher/provider_job.py": "files of our own folder",
    "log/asked.py": "answers of log/event_reader.py",
    "publish/agent_link.py": "uses the decoder of publish/channel.py",
    "log/importing.py": "events that log/codec.py has decoded before",
    "log/jetstream.py": "answers of nats-server",
    "log/restore.py": "answers of nats-server",
    "projections/rows.py": "events that log/codec.py has decoded before",
    "runtime/gateway_file.py": "a file of our own folder",
    "projections/views.py": "rows of our own file",
    "publish/bus_link.py": "answers of nats-server",
    "publish/stdin.py": "its own tests feed it lines of every kind",
    "config/document.py": "read through the files of config",
}


def json_like() -> st.SearchStrategy[bytes]:
    """JSON of every shape, with numbers and texts that decoders trip over."""
    numbers = st.one_of(st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False), st.just(-0.0))
    texts = st.one_of(st.text(max_size=12), st.sampled_from(["", "\x00", "a.b", "*", ">", "../x", "\u202e", "9" * 30]))
    leaves = st.one_of(st.none(), st.booleans(), numbers, texts)
    values = st.recursive(
        leaves,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
        max_leaves=12,
    )
    return values.map(lambda value: json.dumps(value).encode()) | values.map(
        lambda value: msgspec.yaml.encode(json.loads(json.dumps(value)))
    )


NASTY = (
    b"",
    b"\0",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"- " * 20_000,
    b"9" * 5_000,
    b"1e999",
    b"NaN",
    b'"\\ud800"',
    b"&a [*a, *a]",
    b"!!python/object/apply:os.system [id]",
    b"\x1b[2J",
    "٣".encode(),
    b"99999999999999999999999999d",
    b"9" * 5_000 + b"d",
    b"9999-12-31T23:59:59.999999-23:59",
    b"0001-01-01T00:00:00+23:59",
    b"=" * 5,
    b"%2e%2e/",
    b"\xdf" + b"\xff" * 8,
)


@st.composite
def damaged(draw: st.DrawFn, good: tuple[bytes, ...]) -> bytes:
    """A good input with something wrong, or nothing like one."""
    kind = draw(st.sampled_from(("bytes", "json", "cut", "flip", "insert", "value", "deep", "good")))
    whole = draw(st.sampled_from(good))
    place = draw(st.integers(0, max(len(whole) - 1, 0)))
    if kind == "bytes" or not whole:
        return draw(st.binary(max_size=200))
    if kind == "json":
        return draw(json_like())
    if kind == "cut":
        return whole[:place]
    if kind == "flip":
        return whole[:place] + bytes([whole[place] ^ draw(st.integers(1, 255))]) + whole[place + 1 :]
    if kind == "insert":
        return whole[:place] + draw(st.binary(min_size=1, max_size=8)) + whole[place:]
    if kind == "value":
        # Another value where one stands.
        values = list(re.finditer(rb'(?<=[:=\[, ])(-?\d+(?:\.\d+)?|"[^"]*"|[a-z]+)(?=[,\]}\s]|$)', whole))
        if values:
            found = values[draw(st.integers(0, len(values) - 1))]
            return whole[: found.start()] + draw(json_like()) + whole[found.end() :]
    if kind == "deep":
        colon = whole.find(b"{") + 1
        return whole[:colon] + b'"zz":' + b"[" * 3_000 + b"]" * 3_000 + b"," + whole[colon:]
    return whole


def feed(decoder: Decoder, data: bytes) -> None:
    """Let it read; only its promised refusals may come back."""
    try:
        decoder.reads(data)
    except decoder.may_raise as refusal:
        assert str(refusal), "a refusal says what is wrong"  # noqa: PT017 - it may as well not refuse


def of_network(decoder: Decoder) -> bool:
    return "metadata" in decoder.name


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_a_good_input_is_taken(decoder: Decoder) -> None:
    for good in decoder.good:
        if "answer" in decoder.name or decoder.name == "Last-Event-ID":
            continue  # a server that answers all questions alike, and a sequence beyond this log's end
        decoder.reads(good)


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_what_decoders_trip_over_is_taken_or_refused(decoder: Decoder) -> None:
    for data in NASTY:
        feed(decoder, data)


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_any_bytes_are_taken_or_refused(decoder: Decoder) -> None:
    @(FEW if of_network(decoder) else QUIET)
    @given(damaged(decoder.good))
    def any_bytes(data: bytes) -> None:
        feed(decoder, data)

    any_bytes()


def test_every_module_that_decodes_is_tried_here_or_says_why_not() -> None:
    decoding = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if _DECODES.search(path.read_text(encoding="utf-8"))
        and path.relative_to(PACKAGE).parts[0] not in ("testing", "cli", "documents", "demo")
    }
    tried = {decoder.module for decoder in DECODERS}
    assert decoding - tried - set(OWN_INPUT) == set()
    assert {module for module in tried if not (PACKAGE / module).is_file()} == set()


def test_the_net_is_fine_enough_to_catch_a_decoder_that_lets_something_through() -> None:
    leaky = Decoder(name="leaky", module="", reads=lambda data: int(data), good=(b"12",))
    with pytest.raises(ValueError, match="int"):
        feed(leaky, b"x")
