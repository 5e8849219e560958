"""The copy that a program runs in: nothing of the user's changes, and what is too large is linked and watched."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from whystall.errors import InputError, UsageError
from whystall.remedies import copies
from whystall.remedies.copies import import_path, moved, program_of, workplace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "sub" / "c.yaml").write_text("a: 1\n")
    (folder / "data.bin").write_bytes(b"x" * 100)
    (folder / "link.py").symlink_to("train.py")
    (folder / ".git").mkdir()
    (folder / "whystall-runs").mkdir()
    (folder / "venv").mkdir()
    (folder / "venv" / "pyvenv.cfg").write_text("")
    (folder / "venv" / "m.py").write_text("")
    return folder


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_a_copy_holds_the_program_and_not_its_history(root: Path, tmp_path: Path) -> None:
    place = workplace(root / "sub")
    assert place.root == root.resolve()
    folder = place.make(tmp_path / "copy", {"train.py": b"print(2)\n"})
    assert folder == tmp_path / "copy" / "sub"
    assert names(tmp_path / "copy") >= {"train.py", "sub", "sub/c.yaml", "data.bin", "link.py", "venv"}
    assert not names(tmp_path / "copy") & {".git", "whystall-runs"}
    assert (tmp_path / "copy" / "link.py").read_text() == "print(2)\n"
    assert (tmp_path / "copy" / "venv").resolve() == (root / "venv").resolve()
    assert (root / "train.py").read_text() == "print(1)\n"


def test_a_run_leaves_nothing_for_the_next(root: Path, tmp_path: Path) -> None:
    place = workplace(root)
    place.make(tmp_path / "copy", {})
    (tmp_path / "copy" / "checkpoint.pt").write_bytes(b"1")
    (tmp_path / "copy" / "data.bin").write_bytes(b"2")
    place.make(tmp_path / "copy", {})
    assert not (tmp_path / "copy" / "checkpoint.pt").exists()
    assert (tmp_path / "copy" / "data.bin").read_bytes() == (root / "data.bin").read_bytes() == b"x" * 100
    assert place.touched() is None


def test_a_large_file_is_linked_and_a_change_of_it_is_seen(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_LARGEST", 50)
    place = workplace(root)
    place.make(tmp_path / "copy", {})
    assert (tmp_path / "copy" / "data.bin").is_symlink()
    assert place.touched() is None
    (tmp_path / "copy" / "data.bin").write_bytes(b"changed")
    assert place.touched() == "data.bin"


def test_many_files_are_linked_one_by_one_and_a_change_of_one_is_seen(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "images").mkdir()
    for number in range(7):
        (root / "images" / f"{number}.jpg").write_bytes(b"1")
    monkeypatch.setattr(copies, "_MOST_COPIED", 5)
    place = workplace(root)
    place.make(tmp_path / "copy", {})
    images = tmp_path / "copy" / "images"
    assert not images.is_symlink()
    assert [path.is_symlink() for path in sorted(images.iterdir())][-1]
    (images / "new.jpg").write_bytes(b"1")
    assert not (root / "images" / "new.jpg").exists()
    assert place.touched() is None
    (images / "6.jpg").write_bytes(b"22")
    assert place.touched() == "images/6.jpg"


def test_an_absolute_link_within_the_program_leads_to_the_copy(root: Path, tmp_path: Path) -> None:
    (root / "latest.bin").symlink_to(root / "data.bin")
    place = workplace(root)
    place.make(tmp_path / "copy", {})
    (tmp_path / "copy" / "latest.bin").write_bytes(b"new")
    assert (root / "data.bin").read_bytes() == b"x" * 100
    assert (tmp_path / "copy" / "data.bin").read_bytes() == b"new"


def test_a_link_out_of_the_program_is_watched_and_never_written_through(root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text("x = 1\n")
    (root / "common.py").symlink_to(tmp_path / "outside.py")
    place = workplace(root)
    with pytest.raises(UsageError, match="lies behind a link"):
        place.make(tmp_path / "copy", {"common.py": b"x = 2\n"})
    with pytest.raises(UsageError, match="lies behind a link"):
        place.make(tmp_path / "copy", {"venv/m.py": b"x = 2\n"})
    assert (tmp_path / "outside.py").read_text() == "x = 1\n"
    place.make(tmp_path / "copy", {})
    (tmp_path / "copy" / "common.py").write_text("x = 33\n")
    assert place.touched() == "common.py"


def test_the_files_that_a_run_leaves_are_counted(root: Path, tmp_path: Path) -> None:
    place = workplace(root)
    folder = place.make(tmp_path / "copy", {})
    (folder / "out").mkdir()
    for name in ("a.pt", "b.pt", "log"):
        (folder / "out" / name).write_bytes(b"1")
    assert place.left(tmp_path / "copy") == {".pt": 2, "": 1}


def test_the_program_is_its_python_and_its_settings(root: Path) -> None:
    program = program_of(workplace(root), ("python", "train.py"))
    assert program.files == {"train.py": b"print(1)\n", "sub/c.yaml": b"a: 1\n"}


def test_folders_that_are_no_programs_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_MOST_FILES", 2)
    with pytest.raises(UsageError, match="more than 2 files"):
        workplace(root)
    monkeypatch.setenv("HOME", str(root))
    with pytest.raises(UsageError, match="folder of its own"):
        workplace(root)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_cannot_be_read_is_said(root: Path) -> None:
    (root / "secret.py").touch(0o000)
    with pytest.raises(InputError, match="permission denied"):
        workplace(root)


def test_absolute_paths_of_a_command_go_to_the_copy(tmp_path: Path) -> None:
    root, place = tmp_path / "a", tmp_path / "b"
    (root / "venv").mkdir(parents=True)
    (root / "venv" / "pyvenv.cfg").write_text("")
    assert moved((str(root / "run.sh"),), root, place) == (str(place / "run.sh"),)
    words = (str(root / "venv/bin/python"), str(root / "t.py"), f"--config={root}/c.yaml", "--x", "/elsewhere")
    assert moved(words, root, place) == (words[0], str(place / "t.py"), f"--config={place}/c.yaml", "--x", "/elsewhere")


def test_packages_that_are_installed_from_the_program_are_found(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(root / "sub"))
    assert "sub" in import_path(sys.executable, root.resolve())
    assert import_path("no-such-python", root) == []
