"""Kernel classes: the class of a device event, from its name, by rules that are data."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib.resources import files
from typing import Any, Final, Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.results import EventClass
from whystall.errors import InputError
from whystall.trace.columns import codes, distinct, matching

CLASSES: Final[tuple[EventClass, ...]] = get_args(EventClass)
COMPUTE, COMMUNICATION, MEMORY = range(3)
_LONGEST_NAME: Final = 4096  # characters that a rule sees of a name
_REMEMBERED: Final = 1 << 14  # names whose class is not looked up again


@dataclass(frozen=True, slots=True)
class KernelClass:
    """Names in which ``pattern`` is found belong to ``class_`` and ``family``."""

    class_: EventClass
    family: str
    pattern: re.Pattern[str]


KernelClasses = tuple[KernelClass, ...]

KERNEL_CLASSES_GROUP: Final = "whystall.kernel_classes"
"""The entry point by which other packages bring kernel classes: a `KernelClass`, or several."""


def parse_kernel_classes(text: str) -> KernelClasses:
    """The rules of a TOML file. Raises `InputError` naming the rule that is wrong."""
    try:
        entries = tomllib.loads(text).get("rule", [])
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"the kernel classes are not TOML: {error}") from None
    if not isinstance(entries, list):
        raise InputError("the kernel classes need a list of [[rule]] tables")
    return tuple(_rule(number, entry) for number, entry in enumerate(entries, 1))


def _rule(number: int, entry: object) -> KernelClass:
    class_, family, pattern = (
        entry.get(key) if isinstance(entry, dict) else None for key in ("class", "family", "pattern")
    )
    if class_ not in CLASSES:
        raise InputError(f"kernel class rule {number}: class must be one of {', '.join(CLASSES)}, not {class_!r}")
    if not isinstance(family, str) or not isinstance(pattern, str):
        raise InputError(f"kernel class rule {number}: family and pattern must be given as text")
    try:
        return KernelClass(class_, family, re.compile(pattern, re.IGNORECASE))
    except re.error as error:
        raise InputError(f"kernel class rule {number}: {pattern!r} is no regular expression ({error})") from None


def _shipped() -> str:
    return (files("whystall.analysis") / "kernel_classes.toml").read_text("utf-8")


@cache
def shipped_kernel_classes() -> KernelClasses:
    """The classes that ship with whystall."""
    return parse_kernel_classes(_shipped())


class _Remembered:
    """An answer about names, found once per name: kernels have the same names on all ranks."""

    def __init__(self, ask: Callable[[pl.Series], NDArray[Any]]) -> None:
        self._ask = ask
        self._known: dict[str, Any] = {}  # replaced as a whole, never changed: ranks are analysed in several threads

    def __call__(self, names: Sequence[str]) -> list[Any]:
        """The answer for each name."""
        known = self._known if len(self._known) < _REMEMBERED else {}
        new = [name for name in dict.fromkeys(names) if name not in known]
        if new:
            asked = self._ask(pl.Series(new, dtype=pl.String))
            self._known = known = known | dict(zip(new, asked.tolist(), strict=True))
        return [known[name] for name in names]


Trait = Literal["tensor-cores", "tf32", "cuda-cores", "vector-product", "multi-tensor", "layout"]


@dataclass(frozen=True, slots=True)
class KernelTrait:
    """A property of a kernel that its name shows; ``families`` are those that can have the trait, ``None``: all."""

    families: frozenset[str] | None
    among: Callable[[Sequence[str]], list[bool]]
    """Which of some names show it."""

    def told_by(self, name: str) -> bool:
        """Whether a name shows it."""
        return self.among([name[:_LONGEST_NAME]])[0]


@cache
def kernel_traits() -> dict[Trait, KernelTrait]:
    """The traits that names show."""
    return {row["trait"]: _trait(row) for row in tomllib.loads(_shipped())["trait"]}


def _trait(row: dict[str, Any]) -> KernelTrait:
    pattern = re.compile(row["pattern"], re.IGNORECASE)
    but_not = re.compile(row["not"], re.IGNORECASE) if "not" in row else None

    def among(names: pl.Series) -> NDArray[np.bool_]:
        told = found(pattern, names)
        return told if but_not is None else told & ~found(but_not, names)

    return KernelTrait(frozenset(row["families"]) if "families" in row else None, _Remembered(among))


@cache
def _dtypes() -> tuple[tuple[str, re.Pattern[str]], ...]:
    rows = tomllib.loads(_shipped())["dtype"]
    return tuple((row["dtype"], re.compile(row["pattern"], re.IGNORECASE)) for row in rows)


@cache
def _dtype_of() -> _Remembered:
    return _Remembered(partial(first_found, [pattern for _, pattern in _dtypes()]))


def dtype_told_by(name: str) -> str | None:
    """The data type of a product's inputs, from its kernel's name, or ``None``.

    >>> dtype_told_by("ampere_sgemm_128x64_nn"), dtype_told_by("nvjet_tst_144x128_64x6_2x1_v_bz_bias_TNN")
    ('float32', 'bfloat16')
    """
    shown = name[:_LONGEST_NAME]
    return next((dtype for dtype, pattern in _dtypes() if pattern.search(shown)), None)


@dataclass(frozen=True, slots=True)
class Classified:
    """Class and family of every device event; ``names`` lists the distinct names that ``name_of`` counts."""

    class_of: NDArray[np.uint8]
    family_of: NDArray[np.int32]
    name_of: NDArray[np.int64]
    names: list[str]
    families: list[str | None]

    def could_have(self, trait: Trait) -> NDArray[np.bool_]:
        """Which events are of kernels that can have a trait, by their families."""
        of = kernel_traits()[trait].families
        could = np.array([of is None or family in of for family in self.families], np.bool_)
        return could[self.family_of]

    def has(self, trait: Trait) -> NDArray[np.bool_]:
        """Which events have names that show a trait, in any family."""
        return self._by_name(np.array(kernel_traits()[trait].among(self._cut), np.bool_))

    def is_told_to_be(self, dtype: str) -> NDArray[np.bool_]:
        """Which events have names that show a data type."""
        first = np.array(_dtype_of()(self._cut), np.int64)
        of = np.array([told == dtype for told, _ in _dtypes()] + [False], np.bool_)
        return self._by_name(of[first])

    @property
    def _cut(self) -> list[str]:
        return [name[:_LONGEST_NAME] for name in self.names]

    def _by_name(self, told: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return (told if len(told) else np.zeros(1, np.bool_))[self.name_of]


def classify(events: pl.DataFrame, rules: Sequence[KernelClass] = ()) -> Classified:
    """Classes of device events: copies and sets by category, the rest by ``rules``, then the shipped ones."""
    names = distinct(events["name"])
    name_of = codes(events["name"]).astype(np.int64)
    is_copy = matching(events["kind"], ("memcpy", "memset").__contains__)
    is_set = matching(events["kind"], ("memset",).__contains__)
    families: list[str | None] = [None, "copy", "set"]
    class_of_name = np.zeros(max(len(names), 1), np.uint8)
    family_of_name = np.zeros(max(len(names), 1), np.int32)
    for index, rule in enumerate(_rules_for(names, rules)):
        if rule is None:
            continue
        if rule.family not in families:
            families.append(rule.family)
        class_of_name[index] = CLASSES.index(rule.class_)
        family_of_name[index] = families.index(rule.family)
    class_of = np.where(is_copy, MEMORY, class_of_name[name_of]).astype(np.uint8)
    family_of = np.where(is_set, 2, np.where(is_copy, 1, family_of_name[name_of])).astype(np.int32)
    return Classified(class_of, family_of, name_of, names, families)


def _rules_for(names: Sequence[str], rules: Sequence[KernelClass]) -> list[KernelClass | None]:
    """Per name the first of ``rules`` that knows it, else the first shipped one, else ``None``."""
    known = [*shipped_kernel_classes(), None]
    first = _shipped_of()([shown(name) for name in names])
    return [first_match(rules, name) or known[number] for name, number in zip(names, first, strict=True)]


@cache
def _shipped_of() -> _Remembered:
    return _Remembered(partial(first_found, [rule.pattern for rule in shipped_kernel_classes()]))


# The engine of polars has no look-arounds. Without them a pattern is found where it was, and elsewhere.
_LOOK_AROUND: Final = re.compile(r"\(\?<?[=!](?:[^()\\]|\\.)*\)")


def found(pattern: re.Pattern[str], names: pl.Series) -> NDArray[np.bool_]:
    """Which of ``names`` contain a shipped pattern, in time that is linear in their length.

    polars reads each name once, for any pattern; for a pattern that looks around ``re`` confirms the hits.
    """
    bare = _LOOK_AROUND.sub("", pattern.pattern)
    hits: NDArray[np.bool_] = names.str.contains(f"(?i){bare}").to_numpy().copy()
    if bare != pattern.pattern:
        places = np.flatnonzero(hits)
        hits[places] = [bool(pattern.search(name)) for name in names.gather(places)]
    return hits


def first_found(patterns: Sequence[re.Pattern[str]], names: pl.Series) -> NDArray[np.int64]:
    """Per name the number of the first shipped pattern that is found in it; ``len(patterns)`` where none is."""
    first = np.full(len(names), len(patterns), np.int64)
    left = np.arange(len(names))
    for number, pattern in enumerate(patterns):
        if not len(left):
            break
        hits = found(pattern, names.gather(left))
        first[left[hits]] = number
        left = left[~hits]
    return first


def shipped_class(name: str) -> KernelClass | None:
    """The first shipped rule for kernels of this name; ``None`` where none is for it."""
    return _shipped_match(name[:_LONGEST_NAME])


@lru_cache(_REMEMBERED)
def _shipped_match(name: str) -> KernelClass | None:
    return first_match(shipped_kernel_classes(), name)


# In mangled names (Itanium C++ ABI): literals and references to earlier parts hold numbers that are no lengths.
_NO_LENGTHS: Final = re.compile(r"L[a-z]n?\d+E|[ST]\d*_")
_LENGTH: Final = re.compile(r"\d+")


def readable(name: str) -> str:
    """The identifiers of a mangled name, or the name as it is.

    >>> readable("_ZN5cudnn25bn_fw_tr_1C11_kernel_NCHWIffLi512EEEvPKT_")
    'cudnn::bn_fw_tr_1C11_kernel_NCHW'
    """
    if not name.startswith("_Z"):
        return name
    text, at, found = _NO_LENGTHS.sub(" ", name), 2, []
    while length := _LENGTH.search(text, at):
        begin = length.end()
        end = begin + int(length[0][:4])
        at = end if text[begin:end].isidentifier() and end <= len(text) else begin
        if at == end:
            found.append(text[begin:end])
    return "::".join(found) or name


def shown(name: str) -> str:
    """The part of a name that rules see: its first characters, or its identifiers where it is mangled."""
    return readable(name[:_LONGEST_NAME])


def first_match(rules: Sequence[KernelClass], name: str) -> KernelClass | None:
    """The first rule that knows ``name``."""
    seen = shown(name)
    return next((rule for rule in rules if rule.pattern.search(seen)), None)
