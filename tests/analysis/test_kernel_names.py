"""Kernel names against labels that were made before the table of patterns was read.

`kernel_names.tsv` has one name a row, with what the table must give for it. In each column `|` parts answers of which
any is right, `-` says that there is none or that the name does not tell it, and `*` that it is not judged.

`python tests/analysis/test_kernel_names.py` prints the shares that are right, and every miss.
"""

from __future__ import annotations

import csv
import sys
from functools import cache
from pathlib import Path
from typing import Final, Literal, get_args

import polars as pl
import pytest
from hypothesis import given as for_any
from hypothesis import strategies as st

from whystall.analysis import kernel_classes
from whystall.analysis.kernel_classes import (
    dtype_told_by,
    first_found,
    first_match,
    kernel_traits,
    shipped_kernel_classes,
)

Aspect = Literal["class", "family", "tensor_cores", "dtype"]

_LABELS: Final = Path(__file__).with_name("kernel_names.tsv")
_PRODUCTS: Final = frozenset({"gemm", "grouped-gemm", "convolution", "attention"})


@cache
def labels() -> list[dict[str, str]]:
    """The labelled names."""
    with _LABELS.open(encoding="utf-8", newline="") as rows:
        return list(csv.DictReader(rows, delimiter="\t", quoting=csv.QUOTE_NONE))


@cache
def given(name: str) -> dict[Aspect, str]:
    """What the table gives for a name, in the words of the labels."""
    rule = first_match(shipped_kernel_classes(), name)
    trait = kernel_traits()["tensor-cores"]
    of = rule is not None and (trait.families is None or rule.family in trait.families)
    return {
        "class": rule.class_ if rule else "compute",
        "family": rule.family if rule else "-",
        "tensor_cores": "yes" if of and trait.told_by(name) else "no",
        "dtype": dtype_told_by(name) or "-",
    }


def judged(aspect: Aspect) -> list[dict[str, str]]:
    """The names that say something of an aspect; data types and tensor cores are those of products."""
    rows = [row for row in labels() if row[aspect] != "*"]
    return rows if aspect in ("class", "family") else [row for row in rows if _PRODUCTS & set(row["family"].split("|"))]


def is_right(row: dict[str, str], aspect: Aspect) -> bool:
    """Whether the table gives what a label asks for; who does not tell of tensor cores may not be told to use them."""
    wanted = row[aspect].replace("-", "no") if aspect == "tensor_cores" else row[aspect]
    return given(row["name"])[aspect] in wanted.split("|")


def misses(aspect: Aspect) -> list[str]:
    """One line for each name of which the table gives something else."""
    return [
        f"{row[aspect]}, not {given(row['name'])[aspect]}: {row['name'][:200]}"
        for row in judged(aspect)
        if not is_right(row, aspect)
    ]


@pytest.mark.parametrize("aspect", get_args(Aspect))
def test_every_name_gets_what_its_label_says(aspect: Aspect) -> None:
    missed = misses(aspect)
    assert not missed, "\n".join([f"{len(missed)} of {len(judged(aspect))}", *missed])


def test_labels_are_whole() -> None:
    assert all(row[column] for row in labels() for column in ("name", "source", *get_args(Aspect)))
    assert len({row["name"] for row in labels()}) == len(labels())


def places(names: list[str]) -> list[int]:
    """Per name the place of the first pattern that ``re`` finds in it, one name at a time."""
    patterns = [rule.pattern for rule in shipped_kernel_classes()]
    return [next((i for i, pattern in enumerate(patterns) if pattern.search(name)), len(patterns)) for name in names]


def found_together(names: list[str]) -> list[int]:
    """The same of all names at once."""
    patterns = [rule.pattern for rule in shipped_kernel_classes()]
    return [int(place) for place in first_found(patterns, pl.Series(names, dtype=pl.String))]


def test_names_together_get_what_each_gets_alone() -> None:
    names = [row["name"] for row in labels()]
    assert found_together(names) == places(names)


PARTS: Final = sorted({part for row in labels() for part in row["name"].replace("<", "_").split("_") if part})


@for_any(st.lists(st.lists(st.sampled_from(PARTS), max_size=6).map("_".join), max_size=8))
def test_names_of_any_parts_get_what_each_gets_alone(names: list[str]) -> None:
    assert found_together(names) == places(names)


@for_any(st.lists(st.lists(st.sampled_from(PARTS), max_size=6), max_size=4), st.integers(0, 3))
def test_what_was_asked_before_changes_no_answer(asked: list[list[str]], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_classes, "_REMEMBERED", most)
        remembered = kernel_classes._Remembered(lambda names: names.str.len_chars().to_numpy())
        assert [remembered(names) for names in asked] == [[len(name) for name in names] for names in asked]


if __name__ == "__main__":
    for each in get_args(Aspect):
        wrong = misses(each)
        sys.stdout.write(f"{each}: {len(judged(each)) - len(wrong)} of {len(judged(each))} right\n")
        sys.stdout.writelines(f"  {line}\n" for line in wrong)
