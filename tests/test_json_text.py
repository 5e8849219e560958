"""Whatever a text is, it is a value or one exception."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall.json_text import NotJsonError, parse_json


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b'"\xff"', "[" * 10**6, '{"a":' * 10**6, b"NaN"])
def test_what_is_no_json_is_refused(text: bytes | str) -> None:
    with pytest.raises(NotJsonError):
        parse_json(text)


def test_another_type_is_refused_with_its_place() -> None:
    assert parse_json(b"[[1]]", list[list[int]]) == [[1]]
    with pytest.raises(NotJsonError, match=r"\$\[0\]\[1\]"):
        parse_json(b'[[1, "x"]]', list[list[int]])


@given(st.binary() | st.text(alphabet='[]{}:,"0-9.eE+\\\ud800 ', max_size=40))
def test_nothing_else_is_raised(text: bytes | str) -> None:
    try:
        parse_json(text)
    except NotJsonError:
        return
