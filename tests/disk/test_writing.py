"""What is written takes its place whole, and nothing is lost that nobody said may be."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from whystall.disk.writing import OccupiedError, Over, append, obstacle, write


def _put(path: Path, text: bytes = b"new", over: Over = Over.NOTHING) -> None:
    write(path, lambda stream: stream.write(text), over=over)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_has_the_mode_of_any_other(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"")

    _put(tmp_path / "mine")

    assert (tmp_path / "mine").read_bytes() == b"new"
    assert (tmp_path / "mine").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert _names(tmp_path) == ["mine", "other"]


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "none"])
def test_what_appears_while_it_is_written_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, links: bool
) -> None:
    path = tmp_path / "report.json"

    def no_links(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(OccupiedError, match="exists"):
        write(path, lambda _stream: path.write_bytes(b"theirs"), over=Over.NOTHING)

    assert path.read_bytes() == b"theirs"
    assert _names(tmp_path) == ["report.json"]


def test_at_the_very_end_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    link = os.link

    def late(source: Path, target: Path, **options: bool) -> None:
        path.write_bytes(b"theirs")
        link(source, target, **options)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(OccupiedError):
        _put(path)

    assert path.read_bytes() == b"theirs"


def test_a_file_system_without_hard_links_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    _put(tmp_path / "mine")

    assert (tmp_path / "mine").read_bytes() == b"new"
    assert _names(tmp_path) == ["mine"]


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(b"old")
    path.chmod(0o640)

    _put(path, over=Over.A_FILE)

    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_and_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(b"old")
    os.chown(path, 12_345, 54_321)

    _put(path, over=Over.A_FILE)

    assert path.read_bytes() == b"new"
    assert (path.stat().st_uid, path.stat().st_gid) == (12_345, 54_321)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "v1.html").write_bytes(b"old")
    (tmp_path / "latest.html").symlink_to("there/v1.html")

    _put(tmp_path / "latest.html", over=Over.A_FILE)

    assert (tmp_path / "latest.html").is_symlink()
    assert (tmp_path / "there" / "v1.html").read_bytes() == b"new"
    assert _names(tmp_path / "there") == ["v1.html"]


def test_the_further_names_of_a_file_show_the_new_content(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"what was there before")
    os.link(tmp_path / "one", tmp_path / "two")

    _put(tmp_path / "one", over=Over.A_FILE)

    assert (tmp_path / "two").read_bytes() == b"new"
    assert (tmp_path / "two").samefile(tmp_path / "one")


def test_a_link_to_nothing_is_something(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("elsewhere")

    with pytest.raises(OccupiedError, match="exists"):
        _put(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()

    _put(tmp_path / "link", over=Over.A_FILE)
    assert (tmp_path / "elsewhere").read_bytes() == b"new"


@pytest.mark.parametrize("over", Over)
def test_what_is_no_file_is_never_replaced(tmp_path: Path, over: Over) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket"))
        for name, word in (("pipe", "a pipe"), ("folder", "a folder"), ("socket", "a socket")):
            before = (tmp_path / name).stat()
            with pytest.raises(OccupiedError, match=word):
                _put(tmp_path / name, over=over)
            assert (tmp_path / name).stat().st_ino == before.st_ino

    assert _names(tmp_path) == ["folder", "pipe", "socket"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes devices")
@pytest.mark.parametrize("over", Over)
def test_a_device_stays_one(tmp_path: Path, over: Over) -> None:
    try:
        os.mknod(tmp_path / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("no devices are made here")

    with pytest.raises(OccupiedError, match="a device"):
        _put(tmp_path / "null", over=over)

    assert stat.S_ISCHR((tmp_path / "null").stat().st_mode)


def test_of_our_own_files_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / "run.json").symlink_to("theirs")

    with pytest.raises(OccupiedError, match="a link"):
        _put(tmp_path / "run.json", over=Over.OUR_OWN)

    assert (tmp_path / "theirs").read_bytes() == b"theirs"


def test_a_file_of_ours_is_known_by_how_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "metrics.prom"

    def ours(head: bytes) -> bool:
        return head.startswith(b"# ours")

    write(path, lambda stream: stream.write(b"# ours 1"), over=Over.OUR_OWN, is_ours=ours)
    write(path, lambda stream: stream.write(b"# ours 2"), over=Over.OUR_OWN, is_ours=ours)
    assert path.read_bytes() == b"# ours 2"

    path.write_bytes(b"theirs")
    with pytest.raises(OccupiedError, match="did not write"):
        write(path, lambda stream: stream.write(b"# ours 3"), over=Over.OUR_OWN, is_ours=ours)
    assert path.read_bytes() == b"theirs"


def test_what_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write(tmp_path / "mine", full, over=Over.NOTHING)

    assert _names(tmp_path) == []


def test_the_longest_name_that_a_file_may_have(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250 + ".html")

    _put(path)

    assert path.read_bytes() == b"new"


def test_a_free_place_has_no_obstacle(tmp_path: Path) -> None:
    assert all(obstacle(tmp_path / "free", over) is None for over in Over)


def test_a_line_is_added_to_a_file_and_to_nothing_else(tmp_path: Path) -> None:
    for line in (b"one\n", b"two\n"):
        append(tmp_path / "remedies.jsonl", line)
    assert (tmp_path / "remedies.jsonl").read_bytes() == b"one\ntwo\n"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("remedies.jsonl")
    for name in ("pipe", "link"):
        with pytest.raises(OccupiedError):
            append(tmp_path / name, b"three\n")
    assert (tmp_path / "remedies.jsonl").read_bytes() == b"one\ntwo\n"
