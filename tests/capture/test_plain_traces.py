"""Searching a trace that is larger than what is read at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystall.capture import plain_traces
from whystall.capture.plain_traces import counted


def test_texts_are_counted_across_the_pieces_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_traces, "_CHUNK", 7)
    monkeypatch.setattr(plain_traces, "_OVERLAP", 5)
    (tmp_path / "file").write_bytes(text := b"abcabcabxabcabcab" * 9)
    assert counted(tmp_path / "file", [b"abc", b"bxa", b"z"]) == [text.count(b"abc"), 9, 0]
