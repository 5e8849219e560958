"""Nothing but a regular file is opened, and what is none is refused without waiting."""

from __future__ import annotations

import io
import os
import socket
from pathlib import Path

import pytest

from whystall.disk.reading import NotRegularError, content, lines, opened, require_regular


def test_a_file_is_read_through_links(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")

    assert content(tmp_path / "link") == b"content"
    with opened(tmp_path / "link", buffering=0) as file:
        assert file.read(3) == b"con"
    assert require_regular(tmp_path / "link").st_size == 7


def test_more_than_is_wanted_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")

    assert content(tmp_path / "file", 7) == b"content"
    with pytest.raises(OSError, match="larger than 6 bytes"):
        content(tmp_path / "file", 6)


def test_a_pipe_a_socket_a_device_and_a_folder_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket"))
        for path, word in (
            (tmp_path / "pipe", "a pipe"),
            (tmp_path / "socket", "a socket"),
            (Path("/dev/zero"), "a device"),
        ):
            with pytest.raises(NotRegularError, match=word):
                opened(path)
    with pytest.raises(IsADirectoryError):
        opened(tmp_path)
    with pytest.raises(FileNotFoundError):
        opened(tmp_path / "nothing")


def test_a_pipe_that_took_the_place_meanwhile_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"")
    there = Path.stat

    def before(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        return there(tmp_path / "file" if path.name == "pipe" else path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", before)
    with pytest.raises(NotRegularError, match="a pipe"):
        opened(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"ab\ncd\n", [b"ab\n", b"cd\n"]),
        (b"abcdefghij\ncd", [b"abcde", b"cd"]),
        (b"abcde" * 5 + b"\nx\n", [b"abcde", b"x\n"]),
        (b"abcd\nabcde\n", [b"abcd\n", b"abcde"]),
        (b"abcdefgh", [b"abcde"]),
        (b"", []),
    ],
)
def test_a_long_line_is_cut_and_the_next_one_is_whole(text: bytes, found: list[bytes]) -> None:
    assert list(lines(io.BytesIO(text), 4)) == found
