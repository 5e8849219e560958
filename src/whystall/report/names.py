"""Names from a trace made safe and short: nobody controls what a stranger's kernel is called."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

ELLIPSIS = "…"
_LONGEST_PARSED = 1200
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|\(anonymous namespace\)")
_OPENING, _CLOSING = "<(", ">)"


def clean(text: str, limit: int = _LONGEST_PARSED) -> str:
    r"""The text on one line, with control, bidirectional and unprintable characters spelled out.

    >>> clean("a\x1b[31mb\nc")
    'a\\x1b[31mb\\nc'
    """
    kept = text[:limit]
    if not kept.isascii() or not kept.isprintable():
        kept = "".join(map(_visible, kept))
    return middle_cut(kept, limit) if len(text) <= limit else middle_cut(kept, limit - 1) + ELLIPSIS


def _visible(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE:
        return character
    return character.encode("unicode_escape").decode("ascii")


def middle_cut(text: str, limit: int) -> str:
    """The text without its middle, at most ``limit`` characters long.

    >>> middle_cut("abcdefghij", 7)
    'abcd…ij'
    """
    if len(text) <= limit:
        return text
    head = (limit * 3) // 5
    tail = max(limit - head - 1, 0)
    return text[:head] + ELLIPSIS + (text[-tail:] if tail else "")


@lru_cache(maxsize=16_384)
def shorten(text: str, limit: int) -> str:
    """A name that still tells one kernel from another: return type, arguments and inner templates go first.

    >>> shorten("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
    ...         "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>)", 95)
    'at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<…> >(…)'
    """
    name = clean(text)
    if len(name) <= limit:
        return name
    name = _ANONYMOUS.sub("", name.removeprefix("void "))
    groups = _groups(name)
    if groups and groups[-1].end == len(name) - 1 and name.endswith(")"):
        name = f"{name[: groups[-1].start]}({ELLIPSIS})"
        groups = _groups(name)
    return middle_cut(_outermost_cut(_collapsed(name, groups, limit), limit), limit)


@dataclass(slots=True)
class _Group:
    """A bracketed span; ``saved`` counts the characters that inner groups already gave up."""

    start: int
    end: int
    depth: int
    parent: _Group | None
    saved: int = 0


def _groups(name: str) -> list[_Group]:
    """The brackets of a name in the order in which they close; what never closes ends with the name."""
    found: list[_Group] = []
    innermost: _Group | None = None
    for index, character in enumerate(name):
        if character in _OPENING:
            innermost = _Group(index, -1, innermost.depth + 1 if innermost else 0, innermost)
        elif character in _CLOSING and innermost and name[index - 1] != "-":
            innermost.end = index
            found.append(innermost)
            innermost = innermost.parent
    while innermost:
        innermost.end = len(name)
        found.append(innermost)
        innermost = innermost.parent
    return found


def _collapsed(name: str, groups: list[_Group], limit: int) -> str:
    """The name with groups reduced to their brackets, deepest and longest first, until it fits."""
    excess = len(name) - limit
    ends: dict[int, int] = {}
    inner = [group for group in groups if group.depth > 0]
    for group in sorted(inner, key=lambda group: (-group.depth, group.start - group.end)):
        gain = group.end - group.start - 2
        if excess <= 0:
            break
        if gain > 0:
            ends[group.start] = group.end
            excess -= gain - group.saved
            if group.parent:
                group.parent.saved += gain
    return _without(name, ends)


def _outermost_cut(name: str, limit: int) -> str:
    """The name with the end of its longest outermost brackets' content left out."""
    groups = [group for group in _groups(name) if group.depth == 0]
    if len(name) <= limit or not groups:
        return name
    group = max(groups, key=lambda group: group.end - group.start)
    room = limit - (len(name) - (group.end - group.start - 1)) - 1
    return name if room < 0 else name[: group.start + 1 + room].rstrip() + ELLIPSIS + name[group.end :]


def _without(name: str, ends: dict[int, int]) -> str:
    kept: list[str] = []
    index = 0
    while index < len(name):
        kept.append(name[index])
        if index in ends:
            kept.append(ELLIPSIS)
            index = ends[index] - 1
        index += 1
    return "".join(kept)
