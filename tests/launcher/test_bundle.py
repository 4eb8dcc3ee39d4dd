"""Bundles: the same bytes for the same work, without what is ignored, and never a file outside of their folder."""

from __future__ import annotations

import gzip
import io
import os
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticgrid.core.errors import InvalidJob
from elasticgrid.launcher.bundle import Bundle, contents, pack
from elasticgrid.launcher.bundle_store import BundleStore, BundleWish
from elasticgrid.launcher.unpack import BUNDLES_KEPT, BadBundleError, digest_of, stays_inside, unpack

Files = dict[str, str]


def write(folder: Path, files: Files) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return write(tmp_path / "work", {"train.py": "print(1)\n", "src/model.py": "x = 1\n"})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def packed(work: Path, store: Path, mounts: Files | None = None) -> Bundle:
    return pack(contents(work, mounts), store)


def unpacked(work: Path, store: Path, mounts: Files | None = None) -> Path:
    bundle = packed(work, store, mounts)
    folder = store.parent / "unpacked"
    unpack(bundle.archive, folder, bundle.digest)
    return folder


def test_what_is_unpacked_is_what_was_packed(work: Path, store: Path) -> None:
    (work / "run.sh").write_text("#!/bin/sh\n")
    (work / "run.sh").chmod(0o700)
    (work / "empty").mkdir()
    (work / "latest").symlink_to("src/model.py")
    folder = unpacked(work, store)
    assert names(folder) == ["empty", "latest", "run.sh", "src", "src/model.py", "train.py"]
    assert (folder / "latest").read_text() == "x = 1\n"
    assert os.access(folder / "run.sh", os.X_OK)
    assert not os.access(folder / "train.py", os.X_OK)


def test_equal_folders_are_equal_bytes_whenever_and_by_whomever_they_were_written(tmp_path: Path, store: Path) -> None:
    files = {"b.txt": "b", "a/z.txt": "z", "a/ä.txt": "ä"}
    first = write(tmp_path / "first", files)
    second = write(tmp_path / "second", dict(reversed(files.items())))
    os.utime(second / "b.txt", (1, 1))
    (second / "b.txt").chmod(0o600)
    bundles = [packed(first, store), packed(second, store)]
    assert bundles[0].digest == bundles[1].digest == digest_of(bundles[0].archive)
    assert [path.name for path in store.iterdir()] == [f"{bundles[0].digest}.tar.gz"]
    (second / "b.txt").write_text("c")
    assert packed(second, store).digest != bundles[0].digest


@pytest.mark.parametrize(
    "name",
    [
        *(".env", ".env.production", "deploy/.env", "id_ed25519", "certs/tls.pem", "tls.key", ".aws/credentials"),
        *(
            "prod.env",
            ".envrc",
            ".npmrc",
            "web/.npmrc",
            ".pypirc",
            ".docker/config.json",
            ".git-credentials",
            ".pgpass",
        ),
        *(".git/config", ".venv/bin/x", "__pycache__/a.pyc", ".elasticgrid/bus/service.json", "node_modules/a/b.js"),
    ],
)
def test_secrets_and_what_can_be_made_again_stay_at_home(work: Path, store: Path, name: str) -> None:
    write(work, {name: "x"})
    assert not (unpacked(work, store) / name).exists()


def test_the_ignore_file_has_the_syntax_of_git_and_the_last_word(work: Path, store: Path) -> None:
    write(
        work,
        {
            ".elasticgridignore": "# big\n/data/*\n!/data/keep.bin\n*.log\n!.env.test\n",
            "data/big.bin": "x",
            "data/keep.bin": "x",
            "src/data/other.bin": "x",
            "src/a.log": "x",
            ".env.test": "PORT=1",
            ".env.example": "PORT=",
            "deploy/example.env": "PORT=",
        },
    )
    folder = unpacked(work, store)
    kept = {"data/keep.bin", "src/data/other.bin", ".env.test", ".env.example", "deploy/example.env"}
    assert kept <= set(names(folder))
    assert not {"data/big.bin", "src/a.log"} & set(names(folder))


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("db_password.txt", "x", "its name"),
        ("service-account.json", "{}", "its name"),
        ("deploy", "-----BEGIN OPENSSH PRIVATE KEY-----\nx", "private key"),
        ("settings.py", "KEY = 'AKIAABCDEFGHIJKLMNOP'", "access key"),
        ("run.sh", "export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", "WANDB_API_KEY has a value"),
    ],
)
def test_what_looks_like_a_secret_is_warned_of_by_name(work: Path, name: str, text: str, why: str) -> None:
    write(work, {f"src/{name}": text})
    (warning,) = contents(work).warnings
    assert f"src/{name} looks like a secret: " in warning
    assert why in warning


@pytest.mark.parametrize("name", ["secrets.py", "tokenizer.json", "id_rsa.pub.md", "password.md", "keys.csv"])
def test_ordinary_files_are_warned_of_by_nobody(work: Path, name: str) -> None:
    write(work, {name: "nothing"})
    assert contents(work).warnings == ()


def test_files_that_are_in_no_bundle_are_left_out_wherever_they_lie_and_are_not_mounted(
    work: Path, store: Path, tmp_path: Path
) -> None:
    write(work, {"hf.token": "x", "grid/bus/service.json": "{}", "src/hf.token": "another"})
    (tmp_path / "way-in").symlink_to(work)
    without = (tmp_path / "way-in" / "hf.token", work / "grid")
    found = contents(tmp_path / "way-in", without=without)
    assert sorted(found.entries) == ["src", "src/hf.token", "src/model.py", "train.py"]
    for source in (work / "grid" / "bus" / "service.json", tmp_path / "way-in" / "hf.token"):
        with pytest.raises(InvalidJob, match="a secret of the job's or the grid's own") as caught:
            contents(work, {"x.json": str(source)}, without=without)
        assert caught.value.where == f"file_mounts.x.json: {source}"
    with pytest.raises(InvalidJob, match="a secret of the job's or the grid's own"):
        contents(work / "grid" / "bus", without=without)


def test_a_look_at_a_large_folder_ends_where_it_is_told_to(work: Path) -> None:
    write(work, {f"data/{number}.bin": "x" for number in range(20)})
    assert len(contents(work, most_entries=5).entries) <= 6
    assert len(contents(work).entries) == 24


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "src/../../outside", ".."])
def test_a_link_that_leads_out_of_the_folder_is_refused(work: Path, target: str) -> None:
    (work / "link").symlink_to(target)
    with pytest.raises(InvalidJob, match="leads out of the folder") as caught:
        contents(work)
    assert caught.value.where.endswith("/work/link")
    write(work, {".elasticgridignore": "/link\n"})
    assert "link" not in contents(work).entries


def test_what_is_no_file_is_left_out_and_said(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(work / "pipe")
    monkeypatch.chdir(work)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("agent.sock")
        found = contents(work)
    assert found.warnings == ("agent.sock is no file and is left out", "pipe is no file and is left out")
    assert {"agent.sock", "pipe"}.isdisjoint(found.entries)


def test_too_much_is_refused_with_what_is_largest(work: Path, store: Path) -> None:
    write(work, {"data.bin": "x" * 1000, "small.txt": "x"})
    with pytest.raises(InvalidJob, match="at most 500 are allowed") as caught:
        pack(contents(work), store, limit_bytes=500)
    assert caught.value.where.startswith("data.bin (1,000 bytes)")
    assert ".elasticgridignore" in caught.value.hint
    assert not store.exists()


@pytest.mark.parametrize("text", ["longer than it was", ""])
def test_a_file_that_changes_while_it_is_packed_makes_no_bundle(work: Path, store: Path, text: str) -> None:
    found = contents(work)
    (work / "train.py").write_text(text)
    with pytest.raises(InvalidJob, match="changed while the bundle was made"):
        pack(found, store)
    assert list(store.iterdir()) == []


def test_files_and_folders_of_the_machine_are_mounted_in_place_of_what_was_there(
    work: Path, store: Path, tmp_path: Path
) -> None:
    write(tmp_path, {"corpus/a.txt": "a", "corpus/.git/x": "x", "words.txt": "w"})
    write(work, {"data/old.txt": "old", "data/sub/old.txt": "old"})
    mounts = {"data": str(tmp_path / "corpus"), "deep/er/words.txt": str(tmp_path / "words.txt")}
    folder = unpacked(work, store, mounts)
    assert names(folder / "data") == ["a.txt"]
    assert (folder / "deep/er/words.txt").read_text() == "w"


@pytest.mark.parametrize(
    ("place", "source", "what"),
    [
        ("/etc/motd", "words.txt", "a place in the job's folder"),
        ("../x", "words.txt", "a place in the job's folder"),
        ("data", "nowhere", "no such file or folder"),
        ("train.py/x", "words.txt", "train.py is a file"),
    ],
)
def test_a_mount_that_cannot_be_is_refused(work: Path, tmp_path: Path, place: str, source: str, what: str) -> None:
    write(tmp_path, {"words.txt": "w"})
    with pytest.raises(InvalidJob, match=what):
        contents(work, {place: str(tmp_path / source)})


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="does not exist"):
        contents(tmp_path / "nowhere")


def test_an_ignore_file_that_cannot_be_read_is_refused(work: Path) -> None:
    (work / ".elasticgridignore").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidJob, match="cannot be read"):
        contents(work)


# --------------------------------------------------------------------------------------------------------------------
# Unpacking
# --------------------------------------------------------------------------------------------------------------------


def archive_of(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with gzip.open(path, "wb") as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o4755
    return info


@pytest.mark.parametrize(
    "members",
    [
        [(member("/etc/owned"), b"x")],
        [(member("../owned"), b"x")],
        [(member("a/../../owned"), b"x")],
        [(member("out", tarfile.SYMTYPE, "/tmp"), b"")],
        [(member("out", tarfile.SYMTYPE, "../.."), b"")],
        [
            (member("here", tarfile.SYMTYPE, "sub"), b""),
            (member("sub", tarfile.DIRTYPE), b""),
            (member("here/x"), b"x"),
        ],
        [(member("hard", tarfile.LNKTYPE, "/etc/passwd"), b"")],
        [(member("dev", tarfile.CHRTYPE), b"")],
    ],
)
def test_an_archive_that_would_write_elsewhere_leaves_nothing(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    archive = archive_of(tmp_path / "bad.tar.gz", *members)
    with pytest.raises(BadBundleError):
        unpack(archive, tmp_path / "at" / "folder", digest_of(archive))
    assert list((tmp_path / "at").iterdir()) == []


def test_no_file_comes_with_the_rights_of_its_owner(tmp_path: Path) -> None:
    archive = archive_of(tmp_path / "a.tar.gz", (member("tool"), b"x"))
    unpack(archive, tmp_path / "folder", digest_of(archive))
    assert (tmp_path / "folder" / "tool").stat().st_mode & 0o7022 == 0


def test_a_workspace_is_clean_and_one_that_cannot_be_made_leaves_the_old_one(work: Path, store: Path) -> None:
    folder = unpacked(work, store)
    (folder / "left-behind").touch()
    bundle = packed(work, store)
    with pytest.raises(BadBundleError, match="is damaged"):
        unpack(bundle.archive, folder, "0" * 64)
    assert (folder / "left-behind").exists()
    unpack(bundle.archive, folder, bundle.digest)
    assert names(folder) == ["src", "src/model.py", "train.py"]
    assert names(folder.parent).count("unpacked") == 1


def test_half_an_archive_is_damaged_also_under_its_own_digest(work: Path, store: Path, tmp_path: Path) -> None:
    whole = packed(work, store).archive.read_bytes()
    half = tmp_path / "half.tar.gz"
    half.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadBundleError):
        unpack(half, tmp_path / "folder", digest_of(half))
    assert not (tmp_path / "folder").exists()


@given(st.lists(st.sampled_from(["a", "b", "..", "."]), max_size=6), st.integers(0, 2))
def test_whether_a_link_stays_inside_is_what_the_file_system_would_say(parts: list[str], depth: int) -> None:
    name = PurePosixPath(*["d"] * depth, "link")
    real = os.path.normpath("/top/" + "/".join([*name.parent.parts, *parts]))
    # Going out and in again counts as out: what is beside the folder elsewhere is another machine's.
    steps = depth
    stays = True
    for part in parts:
        steps += {"..": -1, ".": 0}.get(part, 1)
        stays = stays and steps >= 0
    assert stays_inside(name, "/".join(parts)) == stays
    assert not stays or real.startswith("/top")


# --------------------------------------------------------------------------------------------------------------------
# The launcher's store
# --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def wish(work: Path) -> Callable[[str], BundleWish]:
    return lambda submission: BundleWish(submission=submission, source=str(work), mounts={}, limit_bytes=10_000)


def test_all_launches_of_a_submission_have_one_bundle_whatever_becomes_of_the_folder(
    work: Path, store: Path, wish: Callable[[str], BundleWish]
) -> None:
    first = BundleStore(store).bundle(wish("a"))
    (work / "train.py").write_text("print(2)\n")
    assert BundleStore(store).bundle(wish("a")).digest == first.digest
    assert BundleStore(store).bundle(wish("b")).digest != first.digest


def test_a_bundle_that_was_deleted_is_made_again(store: Path, wish: Callable[[str], BundleWish]) -> None:
    first = BundleStore(store).bundle(wish("a"))
    first.archive.unlink()
    assert BundleStore(store).bundle(wish("a")).archive.is_file()


def kept_archives(store: Path) -> set[str]:
    return {path.name.removesuffix(".tar.gz") for path in store.glob("*.tar.gz")}


def test_of_bundles_that_nobody_needs_only_the_latest_used_are_kept(
    work: Path, store: Path, wish: Callable[[str], BundleWish]
) -> None:
    bundles = BundleStore(store)
    digests = []
    for number in range(BUNDLES_KEPT + 4):
        (work / "train.py").write_text(f"print({number})\n")
        bundle = bundles.bundle(wish(f"s{number}"))
        os.utime(bundle.archive, (number, number))
        digests.append(bundle.digest)
    assert bundles.submissions() == sorted(f"s{number}" for number in range(BUNDLES_KEPT + 4))
    bundles.prune([])
    assert kept_archives(store) == set(digests)
    # The first goes on, however long ago its bundle was used; the second was wanted again a moment ago.
    bundles.bundle(wish("s1"))
    bundles.prune([f"s{number}" for number in range(1, BUNDLES_KEPT + 4)])
    assert bundles.submissions() == ["s0"]
    assert kept_archives(store) == {digests[0], digests[1], *digests[-BUNDLES_KEPT + 1 :]}
    assert bundles.bundle(wish("s0")).digest == digests[0]


def test_a_bundle_that_one_of_two_submissions_still_needs_is_kept(
    store: Path, wish: Callable[[str], BundleWish], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticgrid.launcher.bundle_store.BUNDLES_KEPT", 0)
    bundles = BundleStore(store)
    digest = bundles.bundle(wish("a")).digest
    assert bundles.bundle(wish("b")).digest == digest
    bundles.prune(["a", "never-seen"])
    assert kept_archives(store) == {digest}
    bundles.prune(["b"])
    assert kept_archives(store) == set()
    BundleStore(store / "nowhere").prune(["a"])
