"""The loop's files, and how changes get into the user's tree: none where one of its files has changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whystall.errors import InputError, UsageError
from whystall.remedies.copies import program_of, workplace
from whystall.remedies.program import patch as differences
from whystall.remedies.program import shown
from whystall.remedies.results import Attempt, Fixes
from whystall.remedies.store import Store, apply, patched

ATTEMPT = Attempt(
    edit="e",
    cause="c",
    says="s",
    program="p",
    verdict="rejected",
    because="b",
    patch="",
    command=["t.py", "--key=secret"],
)


def test_attempts_are_read_back_without_the_command(tmp_path: Path) -> None:
    store = Store(tmp_path / "found")
    with store.held():
        store.keep(ATTEMPT)
        with (tmp_path / "found" / "fixes.jsonl").open("a") as file:
            file.write("{damaged\n")
        store.keep(ATTEMPT)
        assert [(one.edit, one.command) for one in store.attempts()] == [("e", [])] * 2
        store.end(
            Fixes(attempts=[ATTEMPT], patch="", command=["secret"], speedup=None, without_edit=[], ended_because=""),
            b"p",
            "text",
        )
    assert all(b"secret" not in path.read_bytes() for path in (tmp_path / "found").iterdir())


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "fix.md").write_text("the user's")
    with pytest.raises(UsageError, match="holds other files"), Store(tmp_path).held():
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["fix.md"]


def test_a_file_that_changed_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("x = 1\n")
    place = workplace(tmp_path)
    program = program_of(place, ("python", "a.py"))
    (tmp_path / "b.py").write_text("x = 2  # the user's\n")
    with pytest.raises(UsageError, match="has changed meanwhile"):
        apply(place, program, {"a.py": b"x = 3\n", "b.py": b"x = 3\n"})
    assert (tmp_path / "a.py").read_text() == "x = 1\n"
    apply(place, program, {"a.py": b"x = 3\n", "c/new.py": b"y = 1\n"})
    assert ((tmp_path / "a.py").read_text(), (tmp_path / "c" / "new.py").read_text()) == ("x = 3\n", "y = 1\n")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write every file")
def test_a_read_only_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    place = workplace(tmp_path)
    program = program_of(place, ("python", "a.py"))
    (tmp_path / "a.py").chmod(0o444)
    with pytest.raises(UsageError, match="may not be written"):
        apply(place, program, {"a.py": b"x = 3\n"})


def test_a_result_without_a_patch_leaves_an_older_patch(tmp_path: Path) -> None:
    store = Store(tmp_path / "found")
    nothing = Fixes(attempts=[], patch="", command=[], speedup=None, without_edit=[], ended_because="")
    with store.held():
        store.end(nothing, b"older", "text")
        assert store.end(nothing, b"", "") is None
    assert (tmp_path / "found" / "fix.patch").read_bytes() == b"older"


GONE = (
    "diff --git a/c.py b/c.py\ndeleted file mode 120000\n--- a/c.py\n+++ /dev/null\n"
    "@@ -1 +0,0 @@\n-a.py\n\\ No newline at end of file\n"
)


@pytest.mark.parametrize(
    ("patch", "told"),
    [
        (GONE, "c.py"),
        ("--- /dev/null\n+++ b/k.cu\n@@ -0,0 +1 @@\n+int x;\n", "k.cu"),
        ("--- a/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x = 1\n", "a.py"),
        ("--- /dev/null\n+++ b/../out.py\n@@ -0,0 +1 @@\n+x\n", "does not apply"),
        (
            "diff --git a/l.py b/l.py\nnew file mode 120000\n--- /dev/null\n+++ b/l.py\n@@ -0,0 +1 @@\n+/etc/hosts\n",
            "l.py",
        ),
    ],
)
def test_a_patch_of_what_cannot_be_judged_is_refused(tmp_path: Path, patch: str, told: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.py").write_text("x = 1\n")
    (root / "c.py").symlink_to("a.py")
    (root / "big.json").write_bytes(b" " * (2 << 20))
    place = workplace(root)
    with pytest.raises(InputError, match=told):
        patched(place, program_of(place, ("python", "a.py")), patch.encode(), "the patch")
    assert (root / "a.py").read_text() == "x = 1\n"


def test_a_patch_in_another_encoding_can_be_kept(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.py").write_bytes(b"# -*- coding: latin-1 -*-\nx = '\xe9'\n")
    place = workplace(root)
    program = program_of(place, ("python", "a.py"))
    patch = b"--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n # -*- coding: latin-1 -*-\n-x = '\xe9'\n+y = '\xe9'\n"
    changed = patched(place, program, patch, "the patch")
    assert differences(program, changed).encode("utf-8", "surrogateescape") == patch
    shown(differences(program, changed)).encode()
