"""Seals of an archive's frames: they make reading quick, and neither their loss nor their forgery lets damage pass."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticgrid.core.errors import ArchiveDamaged
from elasticgrid.core.events import Event, NodeLeft, Recorded
from elasticgrid.log.archive import (
    ArchivedEvents,
    ArchivedSamples,
    ArchiveWriter,
    MissingRecords,
    SampleMessage,
    SampleRange,
    read_archive,
)
from elasticgrid.log.archive_format import (
    CHAIN_BYTES,
    CHAIN_START,
    MAX_LINE_BYTES,
    SEAL_BYTES,
    SEAL_MAGIC,
    next_chain,
    read_seal,
    seal,
)
from elasticgrid.log.codec import encode

SAMPLES = 6


def left(sequence: int) -> Recorded:
    # Digests do not compress, so that few events fill a frame.
    reason = "".join(hashlib.sha512(b"%d %d" % (sequence, part)).hexdigest() for part in range(15))
    event = Event(
        id=f"{sequence:032x}",
        time_ms=0,
        tenant="demo",
        job="train",
        actor="agent:n",
        data=NodeLeft(node="n", reason=reason),
    )
    return Recorded(sequence, sequence, event, encode(event))


def message(sequence: int) -> SampleMessage:
    return SampleMessage(sequence, sequence, "grid.samples.demo.train.0", bytes([sequence]) * 40)


RECORDS: list[Recorded | SampleMessage] = [
    *(left(sequence) for sequence in range(1, 17)),
    *(message(sequence) for sequence in range(1, SAMPLES + 1)),
]


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of four frames: the header's and three that are sealed."""
    path = tmp_path_factory.mktemp("archive") / "run.egz"
    with ArchiveWriter(path, created_ms=0, samples=SampleRange(0, SAMPLES)) as writer:
        for record in RECORDS:
            if isinstance(record, Recorded):
                writer.add_event(record)
            else:
                writer.add_samples(record)
    assert len(seals_of(path.read_bytes())) == 3
    return path


@pytest.fixture
def whole(whole_file: Path) -> bytes:
    """Its bytes."""
    return whole_file.read_bytes()


def seals_of(data: bytes) -> list[int]:
    """Where the seals stand."""
    places, at = [], data.find(SEAL_MAGIC)
    while at >= 0:
        if read_seal(data[at : at + SEAL_BYTES]) is not None:
            places.append(at)
        at = data.find(SEAL_MAGIC, at + 1)
    return places


def parts_of(data: bytes) -> list[bytes]:
    """The header's frame, and every seal with its frame."""
    bounds = [0, *seals_of(data), len(data)]
    return [data[begin:end] for begin, end in pairwise(bounds)]


def body_of(path: Path, *, salvage: bool = False) -> list[Recorded | SampleMessage]:
    return [each for each in read_archive(path, salvage=salvage) if isinstance(each, Recorded | SampleMessage)]


def unpacked(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()


def sealed(header: bytes, text: bytes) -> bytes:
    """An archive of a header's frame and one sealed frame of these lines."""
    frame = zstandard.compress(text)
    return header + seal(unpacked(header)[:CHAIN_BYTES], frame) + frame


def test_a_plain_decompressor_sees_nothing_of_the_seals(whole: bytes) -> None:
    lines = unpacked(whole).splitlines()
    assert len(lines) == len(RECORDS) + 2
    chain = CHAIN_START
    for line in lines:
        chain = next_chain(chain, line[CHAIN_BYTES + 1 :])
        assert line.startswith(chain)


@pytest.mark.parametrize("lost", [{1}, {2}, {3}, {1, 2, 3}])
def test_an_archive_without_some_of_its_seals_reads_the_same(whole: bytes, tmp_path: Path, lost: set[int]) -> None:
    path = tmp_path / "run.egz"
    path.write_bytes(b"".join(part[SEAL_BYTES * (index in lost) :] for index, part in enumerate(parts_of(whole))))
    assert body_of(path) == RECORDS


def test_each_stream_is_read_without_the_other_and_proven_all_the_same(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.egz"
    path.write_bytes(whole)
    assert [*ArchivedEvents(path), *ArchivedSamples(path)] == RECORDS

    path.write_bytes(whole[:-SEAL_BYTES])
    with pytest.raises(ArchiveDamaged):
        list(ArchivedEvents(path))


def test_frames_that_are_missing_or_out_of_order_are_found_though_each_seal_is_true(
    whole: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "run.egz"
    head, first, second, third = parts_of(whole)
    for parts in ((head, second, third), (head, first, third), (head, second, first, third), (head, first, first)):
        path.write_bytes(b"".join(parts))
        with pytest.raises(ArchiveDamaged):
            list(read_archive(path))

    path.write_bytes(head + first + third)
    salvaged = list(read_archive(path, salvage=True))
    kept = [each for each in salvaged if isinstance(each, Recorded | SampleMessage)]
    assert 0 < len(kept) < len(RECORDS)
    assert [each for each in RECORDS if each in kept] == kept
    assert any(isinstance(each, MissingRecords) for each in salvaged)


def test_a_record_that_was_changed_in_a_frame_is_named_by_its_place(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.egz"
    head, first, *rest = parts_of(whole)
    lines = unpacked(first[SEAL_BYTES:]).splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"node":"n"', b'"node":"m"')
    path.write_bytes(b"".join((head, first[:SEAL_BYTES], zstandard.compress(b"".join(lines)), *rest)))

    with pytest.raises(ArchiveDamaged, match="changed") as caught:
        list(read_archive(path))

    place = len(unpacked(head)) + len(lines[0]) + len(lines[1])
    assert f"record 3 at byte {place} " in caught.value.where
    assert body_of(path, salvage=True) == RECORDS[:2] + RECORDS[3:]


def test_well_sealed_nonsense_is_refused_and_named_by_its_place(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.egz"
    head, *_ = parts_of(whole)
    chain = b"f" * CHAIN_BYTES
    good = b"%b E 1 1 1 %b\n" % (chain, left(1).raw)
    for nonsense in (
        b"E 2 2 1 {}",
        b"E 2 two 1 {}",
        b"E 2 1 1 " + left(1).raw,
        b"E 5 2 1 " + left(2).raw,
        b"E 2e0 2 1 " + left(2).raw,
        b"E 2,2 2 1 " + left(2).raw,
        b"E 2 2 -1.5 " + left(2).raw,
        b"S 2 1 1 subject !!!",
        b"S 5 1 1 subject AAAA",
        b"X 2 what",
        b"",
    ):
        path.write_bytes(sealed(head, b"%b%b %b\n%b" % (good, chain, nonsense, good)))
        with pytest.raises(ArchiveDamaged) as caught:
            list(read_archive(path))
        assert f"record 2 at byte {len(unpacked(head)) + len(good)} " in caught.value.where, nonsense
        assert body_of(path, salvage=True) == [left(1)]


def test_events_that_are_read_many_at_once_are_those_that_are_read_one_by_one(tmp_path: Path) -> None:
    events = [
        Recorded(sequence, sequence, event, raw)
        for sequence in range(1, 1_001)
        for event in [
            Event(id=f"{sequence:032x}", time_ms=0, tenant="t", job="j", actor="a", data=NodeLeft(node="n", reason="x"))
        ]
        for raw in [encode(event).replace(b"{", b"{\n", sequence % 211 == 0)]
    ]
    whole, plain = tmp_path / "run.egz", tmp_path / "plain.egz"
    with ArchiveWriter(whole, created_ms=0, samples=SampleRange(0, SAMPLES)) as writer:
        for recorded in events[:600]:
            writer.add_event(recorded)
        for sequence in range(1, SAMPLES + 1):
            writer.add_samples(message(sequence))
        for recorded in events[600:]:
            writer.add_event(recorded)
    head, *frames = parts_of(whole.read_bytes())
    plain.write_bytes(head + b"".join(frame[SEAL_BYTES:] for frame in frames))

    assert list(read_archive(whole)) == list(read_archive(plain))
    assert list(ArchivedEvents(whole)) == list(ArchivedEvents(plain)) == events
    assert list(ArchivedSamples(whole)) == [message(sequence) for sequence in range(1, SAMPLES + 1)]


def test_a_seal_over_what_no_writer_makes_does_not_hold(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.egz"
    head, *_ = parts_of(whole)
    chain = b"f" * CHAIN_BYTES
    good = b"%b E 1 1 1 %b\n" % (chain, left(1).raw)
    too_long = b"%b E 1 1 1 %b\n" % (chain, b" " * MAX_LINE_BYTES + left(1).raw)
    for text in (good[:-1], too_long, b"", b"\0" * 50_000_000):
        path.write_bytes(sealed(head, text))
        with pytest.raises(ArchiveDamaged):
            list(read_archive(path))
    frame = b"no frame at all"
    path.write_bytes(head + seal(unpacked(head)[:CHAIN_BYTES], frame) + frame)
    with pytest.raises(ArchiveDamaged, match="damaged"):
        list(read_archive(path))


def test_nothing_may_follow_the_footer_in_its_frame(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.egz"
    *_, last = parts_of(whole)
    text = unpacked(last[SEAL_BYTES:])
    before = unpacked(whole[: -len(last)])
    frame = zstandard.compress(text + text.splitlines(keepends=True)[-1])
    path.write_bytes(whole[: -len(last)] + seal(before.splitlines()[-1][:CHAIN_BYTES], frame) + frame)
    with pytest.raises(ArchiveDamaged, match="follows the footer"):
        list(read_archive(path))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_in_or_near_a_seal_ever_gives_wrong_data(
    whole_file: Path, tmp_path: Path, data: st.DataObject
) -> None:
    whole, path = whole_file.read_bytes(), tmp_path / "run.egz"
    place = data.draw(st.sampled_from(seals_of(whole)))
    at = place + data.draw(st.integers(-8, SEAL_BYTES + 8))
    kind = data.draw(st.sampled_from(["flip", "cut", "insert", "remove"]))
    path.write_bytes(
        {
            "flip": lambda: whole[:at] + bytes([whole[at] ^ (1 << data.draw(st.integers(0, 7)))]) + whole[at + 1 :],
            "cut": lambda: whole[:at],
            "insert": lambda: whole[:at] + data.draw(st.binary(min_size=1, max_size=60)) + whole[at:],
            "remove": lambda: whole[:at] + whole[at + 1 + data.draw(st.integers(0, 60)) :],
        }[kind]()
    )

    seen: list[Recorded | SampleMessage] = []
    try:
        seen.extend(each for each in read_archive(path) if isinstance(each, Recorded | SampleMessage))
    except ArchiveDamaged:
        assert seen == RECORDS[: len(seen)]
    else:
        assert seen == RECORDS

    saved: list[Recorded | SampleMessage] = []
    try:
        saved.extend(body_of(path, salvage=True))
    except ArchiveDamaged:
        assert at < seals_of(whole)[0]  # not even the header is left
    assert [each for each in RECORDS if each in saved] == saved
