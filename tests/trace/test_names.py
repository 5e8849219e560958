"""Names that no file can have are refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

import whystall
from whystall.errors import InputError


@pytest.mark.parametrize(
    ("name", "sentence"), [("x" * 5_000, "File name too long"), ("a\0b", "null"), ("loop", "symbolic links")]
)
def test_impossible_names(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError, match=sentence) as caught:
        whystall.analyze(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1_000
