"""Edits of a source: the place that is named changes, and nothing else."""

from __future__ import annotations

import ast
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall.remedies.program import Program
from whystall.remedies.source import Source, Splice, spliced

LOADER = re.compile(r"(?:.*\.)?DataLoader")


def with_keyword(text: str, name: str = "num_workers", value: str = "2") -> str:
    source = Source("t.py", text.encode())
    splice = source.with_arguments(source.calls(LOADER)[0], {name: value})
    assert splice is not None
    changed = spliced(source.data, [splice])
    assert changed is not None
    return changed.decode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = DataLoader(data, batch_size=4)  # ok\n", "x = DataLoader(data, batch_size=4, num_workers=2)  # ok\n"),
        ("x = DataLoader()\n", "x = DataLoader(num_workers=2)\n"),
        ("x = DataLoader(data, )\n", "x = DataLoader(data, num_workers=2, )\n"),
        ("x = DataLoader((data))\n", "x = DataLoader((data), num_workers=2)\n"),
        ('x = DataLoader("größe", é)\n', 'x = DataLoader("größe", é, num_workers=2)\n'),
        (
            "x = DataLoader(\n    data,  # all\n    batch_size=4,\n)\n",
            "x = DataLoader(\n    data,  # all\n    batch_size=4,\n    num_workers=2,\n)\n",
        ),
        ("x = DataLoader(\n    data  # all\n)\n", "x = DataLoader(\n    data, num_workers=2  # all\n)\n"),
        ("x = DataLoader(a,\r\n    b)\r\n", "x = DataLoader(a,\r\n    b, num_workers=2)\r\n"),
        ("x = DataLoader(f(a, b=(1, 2)))\n", "x = DataLoader(f(a, b=(1, 2)), num_workers=2)\n"),
    ],
)
def test_a_keyword_is_set(text: str, expected: str) -> None:
    assert with_keyword(text) == expected


@given(
    st.lists(st.sampled_from(["a", "(b)", "[c, d]", "e.f(g)", "'h,#'", "lambda: 0"]), max_size=3),
    st.lists(st.sampled_from(["i", "j", "k"]), max_size=3, unique=True),
    st.sampled_from(["", ",", " , ", ",  # all\n"]),
    st.sampled_from([", ", ",\n    ", ",  # é\n  "]),
)
def test_all_other_arguments_stay(given_: list[str], names: list[str], end: str, between: str) -> None:
    arguments = [*given_, *(f"{name}={number}" for number, name in enumerate(names))]
    text = f"é = DataLoader({between.join(arguments)}{end if arguments else ''})\n"
    before, after = (ast.parse(one).body[0].value for one in (text, with_keyword(text)))  # type: ignore[attr-defined]
    assert list(map(ast.unparse, after.args)) == list(map(ast.unparse, before.args))
    keywords = [(one.arg, ast.unparse(one.value)) for one in before.keywords]
    assert [(one.arg, ast.unparse(one.value)) for one in after.keywords] == [*keywords, ("num_workers", "2")]


def test_splices_that_overlap_and_results_that_are_no_python_are_refused() -> None:
    assert spliced(b"f(a)\n", [Splice(0, 3, "x"), Splice(2, 4, "y")]) is None
    program = Program({"t.py": b"f(a)\n"}, ("python", "t.py"))
    assert program.with_changes([("t.py", Splice(0, 1, "("))]) is None
    assert program.with_changes([]) is None


@pytest.mark.parametrize("data", [b"def (", b"\xff\xfe", b"\xef\xbb\xbfx = 1\n", b"x = 1\n" + b"#" * (1 << 20)])
def test_a_file_that_is_no_python_has_no_places(data: bytes) -> None:
    assert Source("t.py", data).calls(LOADER) == []
