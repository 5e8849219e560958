"""Facts about an allocation from the C++ frames of its stack, where no Python frame has them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Final

__all__ = ["NATIVE", "name_of", "operator_of"]

NATIVE: Final = "(C++)"
"""File name of a line known from C++ alone."""

_LONGEST: Final = 4096
_PLUMBING: Final = re.compile(
    r"unwind|CapturedTraceback|gather_with_cpp|CachingAllocator|^_?Py[A-Z_]|^_PyEval|^(start_thread|__?clone3?|_start|"
    r"__libc_start\w*|main|execute_native_thread_routine)$|std::error_code|pybind11::|^\?*$|^<unwind |^0x[0-9a-f]+$"
)
# The operator that wanted a factory's memory is more informative than the factory.
_FACTORIES: Final = frozenset({"empty", "empty_strided", "empty_memory_format", "empty_like", "new_empty", "resize_"})
_OPERATOR: Final = re.compile(r"at::_ops::(\w+?)(?:_out)?::(?:call|redispatch)")


@dataclass(frozen=True, slots=True)
class _Rule:
    function: re.Pattern[str]
    says: str


@cache
def _rules() -> tuple[_Rule, ...]:
    text = (files("whystall.memory") / "native_frames.toml").read_text("utf-8")
    return tuple(_Rule(re.compile(rule["function"]), rule["says"]) for rule in tomllib.loads(text)["rule"])


def name_of(functions: Sequence[str]) -> str | None:
    """Facts from the frames, the innermost first; ``None`` if no rule fits a frame.

    >>> name_of(["at::_ops::mm::call(at::Tensor)", "torch::autograd::generated::MmBackward0::apply(...)"])
    'MmBackward0: aten::mm'
    >>> name_of(["torch::unwind::unwind()", "??"]) is None
    True
    """
    found = [_said(name) for name in functions]
    operator = operator_of(functions)
    first = min((said for said in found if said is not None), key=lambda said: said[0], default=None)
    if first is None:
        return next((words for name in functions if (words := _words(name)) is not None), None)
    if operator is None or first[1] == f"aten::{operator}":
        return first[1]
    return f"aten::{operator}" if first[1].startswith("aten::") else f"{first[1]}: aten::{operator}"


def operator_of(functions: Sequence[str]) -> str | None:
    """The innermost operator of ATen that is no mere factory; a factory where there is no other."""
    found = [name for function in functions if (name := _operator(function)) is not None]
    return next((name for name in found if name not in _FACTORIES), found[0] if found else None)


@lru_cache(maxsize=1 << 16)
def _said(function: str) -> tuple[int, str] | None:
    """The number of the first rule that fits a frame, and the rule's words."""
    for number, rule in enumerate(_rules()):
        match = rule.function.search(function[:_LONGEST])
        if match is not None:
            return number, rule.says.format(*(group or "" for group in match.groups())).rstrip(":")
    return None


@lru_cache(maxsize=1 << 16)
def _operator(function: str) -> str | None:
    match = _OPERATOR.search(function[:_LONGEST])
    return None if match is None else match[1]


@lru_cache(maxsize=1 << 16)
def _words(function: str) -> str | None:
    """The name without its arguments, of a function that is no plumbing of torch's or Python's."""
    if _PLUMBING.search(function[:_LONGEST]):
        return None
    return re.split(r"[(<]", function[:_LONGEST].removeprefix("void "), maxsplit=1)[0].strip() or None
