"""Cells of a notebook are named by their number."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from whystall.capture.stacks import is_library, shown_file


def test_a_cell_is_named_by_the_number_that_its_shell_gave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    file = "/elsewhere/ipykernel_123/4567.py"
    compiler = SimpleNamespace(_filename_map={file: 5})
    shell = SimpleNamespace(_instance=SimpleNamespace(compile=compiler))
    monkeypatch.setitem(sys.modules, "IPython.core.interactiveshell", SimpleNamespace(InteractiveShell=shell))
    assert shown_file(file) == "cell 5"
    assert shown_file("/elsewhere/ipykernel_123/89.py") == "89.py"  # of no cell that the shell knows


def test_a_cell_in_a_terminal_has_its_number_in_its_name() -> None:
    assert shown_file("<ipython-input-7-0a1b2c3d4e5f>") == "cell 7"
    assert not is_library("<ipython-input-7-0a1b2c3d4e5f>")
    assert is_library("<string>")
