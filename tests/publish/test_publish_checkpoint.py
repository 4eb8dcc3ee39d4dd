"""Checkpoints: complete or not there, and never believed without being read."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticgrid.core.errors import CheckpointDamaged, InvalidInput, NotFound
from elasticgrid.publish import checkpoint

FILES = {"model.npz": b"weights", "lineage.json": b"{}", "empty": b""}


def test_what_was_written_is_loaded_and_described(tmp_path: Path) -> None:
    uri = checkpoint.write(tmp_path / "new" / "folder", 120, FILES, round=3)
    assert checkpoint.load(uri) == FILES
    info = checkpoint.verify(uri)
    assert (info.step, info.uri, info.bytes) == (120, uri, 9)
    assert len(info.sha256) == 64
    assert Path(uri).is_absolute()


@settings(max_examples=25)
@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True).filter(lambda n: n != "manifest.json"),
        st.binary(max_size=2_000),
        min_size=1,
        max_size=5,
    )
)
def test_any_files_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    assert checkpoint.load(checkpoint.write(tmp_path_factory.mktemp("any"), 1, files)) == files


@pytest.mark.survive("O")
def test_every_damage_to_a_file_is_found(tmp_path: Path) -> None:
    uri = checkpoint.write(tmp_path, 5, FILES)
    model = Path(uri) / "model.npz"
    for damage, says in [(b"weight", "6 bytes"), (b"weightz", "changed"), (None, "missing")]:
        if damage is None:
            model.unlink()
        else:
            model.write_bytes(damage)
        with pytest.raises(CheckpointDamaged, match=says):
            checkpoint.verify(uri)
        with pytest.raises(CheckpointDamaged, match=says):
            checkpoint.load(uri)


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"not json",
        b"[]",
        b'{"format":1,"step":-1,"round":0,"files":[]}',
        b'{"format":2,"step":1,"round":0,"files":[]}',
        b'{"format":1,"step":1,"round":0,"files":[{"name":"../other","bytes":1,"sha256":""}]}',
    ],
)
def test_a_manifest_that_cannot_be_believed_is_damage(tmp_path: Path, manifest: bytes) -> None:
    uri = checkpoint.write(tmp_path, 5, FILES)
    (Path(uri) / "manifest.json").write_bytes(manifest)
    with pytest.raises(CheckpointDamaged):
        checkpoint.verify(uri)


def test_where_none_was_committed_none_is_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        checkpoint.verify(tmp_path / "nothing")
    with pytest.raises(NotFound):
        checkpoint.load(tmp_path)
    assert checkpoint.latest(tmp_path) is None
    assert checkpoint.latest(tmp_path / "nothing") is None


@pytest.mark.survive("O")
def test_the_latest_is_the_one_with_most_steps_that_is_whole(tmp_path: Path) -> None:
    whole = checkpoint.write(tmp_path, 100, FILES, round=2)
    checkpoint.write(tmp_path, 20, FILES, round=3)
    damaged = checkpoint.write(tmp_path, 110, FILES, round=2)
    (Path(damaged) / "model.npz").write_bytes(b"?")
    half_written = tmp_path / ".writing-step-0000000120-round-000002-abcd"
    half_written.mkdir()
    (half_written / "model.npz").write_bytes(b"weig")
    without_manifest = tmp_path / "step-0000000130-round-000002"
    without_manifest.mkdir()
    assert checkpoint.latest(tmp_path) == whole


def test_a_step_that_is_taken_again_in_a_later_round_is_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    first = checkpoint.write(tmp_path, 10, {"model": b"of round 1"}, round=1)
    second = checkpoint.write(tmp_path, 10, {"model": b"of round 2"}, round=2)
    assert checkpoint.load(first) == {"model": b"of round 1"}
    assert checkpoint.latest(tmp_path) == second


def test_the_same_files_are_committed_once_and_the_folder_is_not_touched_again(tmp_path: Path) -> None:
    uri = checkpoint.write(tmp_path, 10, FILES)
    before = Path(uri).stat().st_ino
    assert checkpoint.write(tmp_path, 10, dict(reversed(FILES.items()))) == uri
    assert Path(uri).stat().st_ino == before


@pytest.mark.parametrize("can_exchange", [True, False])
@pytest.mark.parametrize("damage", ["none", "a file is gone", "the manifest is gone"])
def test_what_was_written_last_is_what_is_loaded_whatever_had_its_name_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool, damage: str
) -> None:
    if not can_exchange:
        monkeypatch.setattr(ctypes, "CDLL", lambda _: None)
    uri = checkpoint.write(tmp_path, 10, {"model": b"of one run", "only/there": b"x"}, round=1)
    if damage != "none":
        (Path(uri) / ("model" if damage == "a file is gone" else "manifest.json")).unlink()
    assert checkpoint.write(tmp_path, 10, {"model": b"of another"}, round=1) == uri
    assert checkpoint.load(uri) == {"model": b"of another"}
    assert [path.name for path in tmp_path.iterdir()] == [Path(uri).name]


def test_a_name_is_never_without_a_checkpoint_while_another_takes_its_place(tmp_path: Path) -> None:
    uri = checkpoint.write(tmp_path, 10, {"model": b"0"})
    found: list[bool] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            found.append(Path(uri).exists())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(1, 50):
            checkpoint.write(tmp_path, 10, {"model": b"%d" % number})
    finally:
        done.set()
        reader.join()
    assert found
    assert all(found)
    assert checkpoint.load(uri) == {"model": b"49"}


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    before = checkpoint.write(tmp_path, 1, FILES)
    with pytest.raises(TypeError):
        checkpoint.write(tmp_path, 2, {"model": "text"})  # type: ignore[dict-item] # what a careless caller passes
    assert checkpoint.latest(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == [Path(before).name]


@pytest.mark.parametrize(
    "name", ["", "..", "a//b", "a/../b", "a/", "/etc/passwd", ".hidden", "manifest.json", "a\0b", "x" * 200]
)
def test_a_file_name_that_is_not_plain_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput):
        checkpoint.write(tmp_path, 1, {name: b""})
    assert list(tmp_path.iterdir()) == []


def test_arguments_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        checkpoint.write(tmp_path, -1, FILES)
    with pytest.raises(InvalidInput):
        checkpoint.write(tmp_path, 1, {})
    with pytest.raises(InvalidInput):
        checkpoint.prune(tmp_path, 0)


def test_pruning_keeps_the_newest_whole_ones_and_everything_newer_and_foreign(tmp_path: Path) -> None:
    uris = [checkpoint.write(tmp_path, step, FILES) for step in (10, 20, 30, 40)]
    (Path(uris[3]) / "model.npz").unlink()
    (tmp_path / ".writing-step-0000000005-round-000000-abcd").mkdir()
    (tmp_path / ".writing-step-0000000050-round-000000-abcd").mkdir()
    (tmp_path / "started.json").write_text("{}")
    removed = checkpoint.prune(tmp_path, keep=2)
    assert [Path(path).name for path in removed] == [
        ".writing-step-0000000005-round-000000-abcd",
        "step-0000000010-round-000000",
    ]
    assert checkpoint.load(uris[1]) == checkpoint.load(uris[2]) == FILES
    assert min(os.listdir(tmp_path)) == ".writing-step-0000000050-round-000000-abcd"
    assert (tmp_path / "started.json").exists()


def test_pruning_removes_nothing_while_fewer_are_whole(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, 10, FILES)
    assert checkpoint.prune(tmp_path, keep=2) == []
    assert checkpoint.latest(tmp_path) is not None


def test_files_in_folders_come_back_as_they_were(tmp_path: Path) -> None:
    files = {"shard/0/weights": b"a", "shard/1/weights": b"b", "meta": b"c"}
    assert checkpoint.load(checkpoint.write(tmp_path, 7, files)) == files


def test_a_folder_that_a_framework_wrote_is_a_checkpoint_once_it_is_sealed(tmp_path: Path) -> None:
    folder = Path(checkpoint.path_of(tmp_path, 30, round=2))
    (folder / "shards").mkdir(parents=True)
    (folder / "shards/rank0.bin").write_bytes(b"weights")
    (folder / "state.json").write_text("{}")
    assert checkpoint.latest(tmp_path) is None
    uri = checkpoint.seal(folder, 30, round=2)
    assert checkpoint.latest(tmp_path) == uri == str(folder)
    assert (checkpoint.verify(uri).step, checkpoint.verify(uri).bytes) == (30, 9)
    assert checkpoint.load(uri) == {"shards/rank0.bin": b"weights", "state.json": b"{}"}
    (folder / "shards/rank0.bin").write_bytes(b"weightz")
    with pytest.raises(CheckpointDamaged, match="changed"):
        checkpoint.verify(uri)
    assert checkpoint.seal(folder, 30, round=2) == uri
    assert checkpoint.verify(uri).step == 30


def test_a_folder_that_cannot_be_a_checkpoint_is_not_sealed(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="at least one file"):
        checkpoint.seal(tmp_path, 1)
    (tmp_path / "model").write_bytes(b"x")
    with pytest.raises(InvalidInput, match="not negative"):
        checkpoint.seal(tmp_path, -1)
    (tmp_path / ".hidden").write_bytes(b"x")
    with pytest.raises(InvalidInput, match="plain"):
        checkpoint.seal(tmp_path, 1)
    with pytest.raises(NotFound):
        checkpoint.verify(tmp_path)
