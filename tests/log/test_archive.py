"""Archives: what is written is read back to the byte, and no damage ever passes for data."""

from __future__ import annotations

import stat
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticgrid.core.errors import ArchiveDamaged, InvalidInput, NotAllowed, NotFound
from elasticgrid.core.events import (
    Event,
    EventData,
    JobSubmitted,
    LaunchFailed,
    NodeLeft,
    ProviderDeclared,
    Recorded,
    UnknownEvent,
)
from elasticgrid.core.spec import JobSpec, ProviderSpec
from elasticgrid.log.archive import (
    ArchivedEvents,
    ArchivedSamples,
    ArchiveFilters,
    ArchiveFooter,
    ArchiveHeader,
    ArchiveLog,
    ArchiveWriter,
    MissingRecords,
    SampleMessage,
    SampleRange,
    read_archive,
    read_header,
)
from elasticgrid.log.archive_format import CHAIN_START, MAX_LINE_BYTES, next_chain
from elasticgrid.log.archive_secrets import shown, without_credentials
from elasticgrid.log.codec import decode, encode
from elasticgrid.log.port import Scope

CREATED_MS = 1_750_000_000_000


def left(sequence: int, *, job: str = "train", reason: str = "done") -> Recorded:
    event = Event(
        id=f"{sequence:032x}",
        time_ms=CREATED_MS + sequence,
        tenant="demo",
        job=job,
        actor="agent:n",
        data=NodeLeft(node="n", reason=reason),
    )
    return Recorded(sequence, CREATED_MS + sequence + 1, event, encode(event))


def message(sequence: int) -> SampleMessage:
    return SampleMessage(sequence, CREATED_MS + sequence, "grid.samples.demo.train.0", bytes([sequence % 256] * 40))


def write(path: Path, events: int = 20, samples: int = 5) -> list[Recorded | SampleMessage]:
    records: list[Recorded | SampleMessage] = []
    held = SampleRange(0, samples) if samples else None
    with ArchiveWriter(path, created_ms=CREATED_MS, samples=held) as writer:
        for sequence in range(1, events + 1):
            records.append(left(sequence))
            writer.add_event(left(sequence))
        for sequence in range(1, samples + 1):
            records.append(message(sequence))
            writer.add_samples(message(sequence))
    return records


def body_of(path: Path) -> list[Recorded | SampleMessage]:
    return [each for each in read_archive(path) if isinstance(each, Recorded | SampleMessage)]


def rewritten(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Change an archive's lines with the compression made good, as somebody with an editor would."""
    with path.open("rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
    path.write_bytes(zstandard.ZstdCompressor().compress(b"".join(change(text.splitlines(keepends=True)))))


def chained(bodies: list[bytes]) -> list[bytes]:
    lines, chain = [], CHAIN_START
    for body in bodies:
        chain = next_chain(chain, body)
        lines.append(chain + b" " + body + b"\n")
    return lines


# --------------------------------------------------------------------------------------------------------------------
# What goes in comes out
# --------------------------------------------------------------------------------------------------------------------


def test_events_and_samples_come_back_to_the_byte_between_header_and_footer(tmp_path: Path) -> None:
    path = tmp_path / "run.egz"
    records = write(path)

    first, *body, last = read_archive(path)

    assert body == records
    assert isinstance(first, ArchiveHeader)
    assert (first.format, first.version, first.created_ms, first.samples) == (
        "elasticgrid-archive",
        1,
        CREATED_MS,
        SampleRange(0, 5),
    )
    assert first.schema_versions["decision.scale"] == 1
    assert isinstance(last, ArchiveFooter)
    assert (last.events, last.samples, last.first_sequence, last.last_sequence) == (20, 5, 1, 20)


def test_the_same_records_make_the_same_file(tmp_path: Path) -> None:
    write(tmp_path / "a.egz")
    write(tmp_path / "b.egz")
    assert (tmp_path / "a.egz").read_bytes() == (tmp_path / "b.egz").read_bytes()


def test_an_empty_log_is_an_archive_too(tmp_path: Path) -> None:
    write(tmp_path / "run.egz", events=0, samples=0)
    assert body_of(tmp_path / "run.egz") == []


def test_events_of_types_unknown_here_keep_their_exact_bytes(tmp_path: Path) -> None:
    raw = b'{ "id": "1", "tenant": "t",\n "job": "j", "time_ms": 5, "data": {"type": "node.dreamt"}}'
    event = decode(raw)
    assert isinstance(event, UnknownEvent)
    with ArchiveWriter(tmp_path / "run.egz", created_ms=0) as writer:
        writer.add_event(Recorded(7, 8, event, raw))

    (recorded,) = body_of(tmp_path / "run.egz")
    assert recorded == Recorded(7, 8, event, raw)


def test_only_its_owner_may_read_it_and_nothing_else_is_left_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "run.egz")
    assert stat.S_IMODE((tmp_path / "run.egz").stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["run.egz"]


def test_an_archive_that_was_not_finished_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "run.egz"
    write(path, events=3)
    before = path.read_bytes()
    with pytest.raises(InvalidInput), ArchiveWriter(path, created_ms=0) as writer:
        writer.add_event(left(0))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_records_out_of_order_or_too_long_are_refused(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "run.egz", created_ms=0, samples=SampleRange(3, 6)) as writer:
        writer.add_event(left(5))
        writer.add_samples(message(4))
        for record in (left(5), left(4), left(6, reason="x" * MAX_LINE_BYTES)):
            with pytest.raises(InvalidInput):
                writer.add_event(record)
        for sample in (message(4), message(3), message(7)):
            with pytest.raises(InvalidInput):
                writer.add_samples(sample)
    assert len(body_of(tmp_path / "run.egz")) == 2


def test_long_archives_are_written_and_read_in_constant_memory(tmp_path: Path) -> None:
    path = tmp_path / "run.egz"

    def peak_of(events: int) -> int:
        tracemalloc.start()
        with ArchiveWriter(path, created_ms=0) as writer:
            for sequence in range(1, events + 1):
                writer.add_event(left(sequence, reason=f"{sequence:0400d}"))
        assert sum(1 for _ in ArchivedEvents(path)) == events
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    # Both are so long that their frames have grown to what they grow to.
    assert peak_of(40_000) < peak_of(15_000) * 1.2


# --------------------------------------------------------------------------------------------------------------------
# Secrets
# --------------------------------------------------------------------------------------------------------------------

SECRETS = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "short",
    "DB_PASSWORD": 'with "quotes" and \\',
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "HARMLESS_NAME": "AKIAIOSFODNN7EXAMPLE",
    "DATABASE_URL": "postgres://grid:hunter22@db.example/train",
    "NOTE": "-----BEGIN OPENSSH PRIVATE KEY-----\nabcdef\n-----END OPENSSH PRIVATE KEY-----",
    "BUS": "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY",
}
SECRETS |= {
    "PGPASSWORD": "sesame-1",
    "DB_PWD": "sesame-2",
    "MY_PASS": "sesame-3",
    "SLACK_WEBHOOK_URL": "https://chat.example/hooks/sesame-4",
    "PLAIN_LOOKING": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "WANDB": "89abcdef0123456789abcdef0123456789abcdef",
    "GRID": "eg_8c41d07e_Zq3vT0mX9cLw2RkYb7NhJd5sPfGa1eUiOxKt4BnMl8E",
    "HUB": "glpat-sesame0123456789abcd",
}
PLAIN = {
    "PATH": "/usr/bin",
    "TOKENS": "7",
    "KEYBOARD": "de",
    "TOKENIZERS_PARALLELISM": "false",
    "USE_AUTH": "true",
    "HF_TOKEN_FROM": "$TOKEN",
    "GIT_COMMIT": "fedcba9876543210fedcba9876543210fedcba98",
    "DATA": "/srv/ImageNet2012/trainABC/1234567890123",
    "RUN": "ResNet50_lr-0-1_batch-256_seed-17_Adam_2024-05-06",
    "OPTIONS": "--lr 0.1 --max-tokens 512 --tokenizer gpt2",
}
#: Texts in the middle of which a credential stands, and what is left of them.
WITHIN = {
    "PASSWORD=sesame-5 python x": "PASSWORD=(withheld) python x",
    "export API_KEY='sesame 6'; python x": "export API_KEY=(withheld); python x",
    "curl -u bob:sesame-7 http://h": "curl -u bob:(withheld) http://h",
    "curl --user 'bob:sesame-8' http://h": "curl --user 'bob:(withheld)' http://h",
    "curl 'http://h/?lr=1&access_token=sesame-9&x=y'": "curl 'http://h/?lr=1&access_token=(withheld)&x=y'",
    'curl -H "X-API-Key: sesame-10" http://h': 'curl -H "X-API-Key: (withheld)" http://h',
    "curl -H 'Authorization: Basic sesame11==' h": "curl -H 'Authorization: Basic (withheld)' h",
    "python x --password sesame-12 --lr 0.1": "python x --password (withheld) --lr 0.1",
    "run -u 1000:1000 --auth --lr 0.1 token by token; git checkout 01234567": "",
}


def test_no_credential_is_ever_in_an_archive(tmp_path: Path) -> None:
    spec = JobSpec(
        name="train",
        command=("curl", "-u", "bob:sesame-15", "--api-key", "sesame-open", "--token=sesame-shut", "--lr", "0.1"),
        env=SECRETS | PLAIN,
        secrets={"DEPLOY_KEY": "/etc/deploy"},
        setup="fetch --token sesame-16",
    )
    metadata = msgspec.json.encode(
        {"command": "PASSWORD=sesame-13 python x", "metadata": {"token": "sesame-14"}}
    ).decode()
    datas: list[EventData] = [
        JobSubmitted(spec=spec, idempotency_key="submit-once", metadata=metadata),
        ProviderDeclared(provider=ProviderSpec(name="p", max_nodes=1, params={"secret_key": "s3cr3t", "zone": "a"})),
        LaunchFailed(attempt="a", failure="auth", text="refused Authorization: Bearer abcdefghijklmnop1234"),
    ]
    path = tmp_path / "run.egz"
    with ArchiveWriter(path, created_ms=0) as writer:
        for sequence, data in enumerate(datas, 1):
            event = Event(id=f"{sequence}", time_ms=0, tenant="demo", job="train", actor="k", data=data)
            writer.add_event(Recorded(sequence, 0, event, encode(event)))

    with path.open("rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read().decode()
    assert "sesame" not in text
    for secret in (*SECRETS.values(), "sesame-open", "sesame-shut", "s3cr3t", "abcdefghijklmnop1234", "hunter22"):
        assert secret not in text
        assert msgspec.json.encode(secret).decode()[1:-1] not in text
    _, submitted, *_, footer = read_archive(path)
    assert isinstance(submitted, Recorded)
    assert isinstance(submitted.event, Event)
    assert isinstance(submitted.event.data, JobSubmitted)
    assert PLAIN.items() <= submitted.event.data.spec.env.items()
    assert submitted.event.data.spec.command[1:3] == ("-u", "bob:(withheld)")
    assert submitted.event.data.spec.command[-2:] == ("--lr", "0.1")
    assert submitted.event.data.spec.secrets == {"DEPLOY_KEY": "/etc/deploy"}
    assert msgspec.json.decode(submitted.event.data.metadata)["metadata"] == {"token": "(withheld)"}
    assert submitted.event.data.idempotency_key == "submit-once"
    assert isinstance(footer, ArchiveFooter)
    assert (footer.events, footer.redacted) == (3, 3)


@pytest.mark.parametrize("text", WITHIN)
def test_a_credential_in_the_middle_of_a_command_line_is_withheld_and_the_rest_is_left(text: str) -> None:
    wanted = WITHIN[text] or text
    spec = JobSpec(name="train", command=("sh", "-c", text), env={"NOTE": text}, setup=text)
    seen = shown(spec)
    assert (seen.command[-1], seen.env["NOTE"], seen.setup) == (wanted, wanted, wanted)


_NAMES = st.sampled_from(["env", "command", "params", "token", "metadata", "secrets", "spec"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | _NAMES, inner),
    max_leaves=20,
)


@given(value=_JSON)
def test_of_any_event_only_texts_are_replaced_and_none_twice(value: Any) -> None:
    raw = msgspec.json.encode({"env": value, "command": ["--token", "x"]})
    clean = without_credentials(raw)
    assert without_credentials(clean) == clean
    assert _shape(msgspec.json.decode(clean)) == _shape(msgspec.json.decode(raw))


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_shape(inner) for inner in value]
    return "text" if isinstance(value, str) else value


def test_an_event_without_a_credential_keeps_its_very_bytes() -> None:
    raw = b'{"data" : {"spec":{"command":["a\\u0062c", 1.0e3, "--lr"],"env":{"A":"\\/tmp"}}} , "x":[}'
    assert without_credentials(raw) == raw


@pytest.mark.parametrize("part", ["-", "key_", "u:", "_id", "A1a", "token=", '"', "\\", "a_", "://", "KEY "])
def test_text_that_is_made_to_be_slow_to_look_at_is_not(part: str) -> None:
    text = part * (100_000 // len(part))
    started = time.monotonic()
    shown(JobSpec(name="train", command=("sh", "-c", text), env={"A": text, text[:50_000]: "b"}))
    assert time.monotonic() - started < 20


# --------------------------------------------------------------------------------------------------------------------
# Damage
# --------------------------------------------------------------------------------------------------------------------


def damaged(path: Path) -> ArchiveDamaged:
    with pytest.raises(ArchiveDamaged) as caught:
        list(read_archive(path))
    return caught.value


def test_a_changed_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.egz"
    write(path)
    rewritten(
        path, lambda lines: [line.replace(b'"done"', b'"gone"') if i == 7 else line for i, line in enumerate(lines)]
    )
    error = damaged(path)
    assert "record 7 at byte" in error.where
    assert "changed" in error.what
    assert "--salvage" in error.hint


def test_a_missing_and_a_reordered_record_are_named(tmp_path: Path) -> None:
    path = tmp_path / "run.egz"
    write(path)
    rewritten(path, lambda lines: lines[:7] + lines[8:])
    assert "record 7 at byte" in damaged(path).where
    assert "record 8 stands here" in damaged(path).what

    write(path)
    rewritten(path, lambda lines: [*lines[:7], lines[8], lines[7], *lines[9:]])
    assert "record 7 at byte" in damaged(path).where


def test_a_cut_archive_is_told_whether_the_cut_is_clean_or_not(tmp_path: Path) -> None:
    path = tmp_path / "run.egz"
    write(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    assert "cut short" in damaged(path).what

    write(path)
    rewritten(path, lambda lines: lines[:-1])
    assert "record 26 at byte" in damaged(path).where
    assert "the end is missing" in damaged(path).what


def test_a_foreign_file_and_a_later_version_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "run.egz"
    for foreign in (b"", b"PK\x03\x04 not this", zstandard.compress(b"a,b,c\n1,2,3\n"), zstandard.compress(b"")):
        path.write_bytes(foreign)
        assert "archive" in damaged(path).what
        assert "elasticgrid events export" in damaged(path).hint
        with pytest.raises(ArchiveDamaged):
            list(read_archive(path, salvage=True))

    header = b'H 0 {"format":"elasticgrid-archive","version":2,"software":"7.0.0","all":"else"}'
    path.write_bytes(zstandard.compress(b"".join(chained([header, b"Z 1 whatever"]))))
    assert "format version 2" in damaged(path).what
    assert "7.0.0" in damaged(path).hint
    with pytest.raises(ArchiveDamaged, match="format version 2"):
        list(read_archive(path, salvage=True))


def test_well_chained_nonsense_is_refused_as_well(tmp_path: Path) -> None:
    path = tmp_path / "run.egz"
    write(path, events=0, samples=0)
    with path.open("rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
    header, footer = (line.split(b" ", 1)[1] for line in text.splitlines())
    event = b"E 1 1 1 " + left(1).raw
    for nonsense in (
        b"E 1 1 1 {}",
        b"E 1 one 1 {}",
        b"E 1 0 1 " + left(1).raw,
        b"E 5 1 1 " + left(1).raw,
        b"S 1 1 1 subject !!!",
        b"X 1 what",
        b"E",
        b"",
        header,
    ):
        path.write_bytes(zstandard.compress(b"".join(chained([header, nonsense, event, footer]))))
        assert "record 1 at byte" in damaged(path).where, nonsense


def test_a_small_file_that_unpacks_to_a_huge_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.egz"
    path.write_bytes(zstandard.compress(b"\0" * 300_000_000))
    tracemalloc.start()
    damaged(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000_000


def test_a_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        list(read_archive(tmp_path / "none.egz"))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_at_any_byte_ever_gives_wrong_data(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "run.egz"
    records = write(path)
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "insert", "remove", "repeat"]))
    broken = {
        "flip": lambda: whole[:at] + bytes([whole[at] ^ (1 << data.draw(st.integers(0, 7)))]) + whole[at + 1 :],
        "cut": lambda: whole[:at],
        "insert": lambda: whole[:at] + data.draw(st.binary(min_size=1, max_size=30)) + whole[at:],
        "remove": lambda: whole[:at] + whole[at + 1 + data.draw(st.integers(0, 20)) :],
        "repeat": lambda: whole + whole[at:],
    }[kind]()
    path.write_bytes(broken)

    seen: list[Recorded | SampleMessage] = []
    try:
        seen.extend(each for each in read_archive(path) if isinstance(each, Recorded | SampleMessage))
    except ArchiveDamaged:
        assert seen == records[: len(seen)]
    else:
        assert seen == records

    saved: list[Recorded | SampleMessage] = []
    try:
        saved.extend(each for each in read_archive(path, salvage=True) if isinstance(each, Recorded | SampleMessage))
    except ArchiveDamaged:
        assert saved == []
    assert [each for each in records if each in saved] == saved


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.binary(max_size=400))
def test_any_bytes_at_all_are_refused_with_one_kind_of_error(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "run.egz"
    for content in (text, zstandard.compress(text), zstandard.compress(b"".join(chained(text.split(b"\n"))))):
        path.write_bytes(content)
        for salvage in (False, True):
            with pytest.raises(ArchiveDamaged):
                list(read_archive(path, salvage=salvage))


# --------------------------------------------------------------------------------------------------------------------
# Salvage
# --------------------------------------------------------------------------------------------------------------------


def test_salvage_reads_on_behind_a_changed_record_and_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "run.egz"
    records = write(path)
    rewritten(
        path, lambda lines: [line.replace(b'"done"', b'"gone"') if i == 7 else line for i, line in enumerate(lines)]
    )

    salvaged = list(read_archive(path, salvage=True))

    assert [each for each in salvaged if isinstance(each, Recorded | SampleMessage)] == records[:6] + records[7:]
    (missing,) = (each for each in salvaged if isinstance(each, MissingRecords))
    assert (missing.first, missing.last) == (7, 7)
    assert "changed" in missing.why


def test_salvage_loses_no_more_than_the_damaged_frame(tmp_path: Path) -> None:
    path = tmp_path / "run.egz"
    with ArchiveWriter(path, created_ms=0) as writer:
        for sequence in range(1, 30_001):
            writer.add_event(left(sequence))
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 4
    path.write_bytes(bytes(whole))

    events = ArchivedEvents(path, salvage=True)
    sequences = [each.sequence for each in events]

    assert 20_000 < len(sequences) < 30_000
    assert (sequences[0], sequences[-1]) == (1, 30_000)
    # What the changed byte spoils before the end of its frame is noticed depends on where it is.
    first, last = events.missing[0], events.missing[-1]
    assert last.last is not None
    assert last.last - first.first < 10_000
    assert sum((each.last or 0) - each.first + 1 for each in events.missing) == 30_000 - len(sequences)
    assert "compressed data is damaged" in last.why


def test_salvage_of_a_cut_archive_says_that_its_end_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "run.egz"
    records = write(path)
    rewritten(path, lambda lines: lines[:15])
    salvaged = list(read_archive(path, salvage=True))
    assert salvaged[1:-1] == records[:14]
    assert salvaged[-1] == MissingRecords(15, None, salvaged[-1].offset, "the end is missing")  # type: ignore[union-attr]


# --------------------------------------------------------------------------------------------------------------------
# As a log
# --------------------------------------------------------------------------------------------------------------------


async def test_an_archive_is_a_log_that_can_be_read_by_scope_and_range(tmp_path: Path) -> None:
    path = tmp_path / "run.egz"
    with ArchiveWriter(path, created_ms=0, filters=ArchiveFilters(tenant="demo")) as writer:
        for sequence in range(3, 30, 2):
            writer.add_event(left(sequence, job="a" if sequence % 3 else "b"))
    log = ArchiveLog(path)

    assert log.header.filters == read_header(path).filters == ArchiveFilters(tenant="demo")
    assert not log.header.filters.everything
    assert [each.sequence async for each in log.read(after=5, through=13)] == [7, 9, 11, 13]
    assert [each.sequence async for each in log.follow(after=15, scope=Scope(job="b"))] == [21, 27]
    assert await log.last_sequence() == 29
    assert await log.last_sequence(Scope("demo", "b", "node")) == 27
    assert await log.last_sequence(Scope("demo", "b", "decision")) == 0
    assert await log.last_sequence(Scope("other")) == 0


async def test_nothing_can_be_appended_to_an_archive(tmp_path: Path) -> None:
    write(tmp_path / "run.egz")
    event = left(21).event
    assert isinstance(event, Event)
    with pytest.raises(NotAllowed, match="read-only"):
        await ArchiveLog(tmp_path / "run.egz").append([event])


def test_each_stream_can_be_read_by_itself_and_again(tmp_path: Path) -> None:
    records = write(tmp_path / "run.egz")
    events, samples = ArchivedEvents(tmp_path / "run.egz"), ArchivedSamples(tmp_path / "run.egz")
    for _ in range(2):
        assert list(events) == records[:20]
        assert list(samples) == records[20:]
