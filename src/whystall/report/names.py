"""Names from a trace made safe and short, since a stranger's kernel may have any name."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

ELLIPSIS = "…"
_LONGEST_PARSED = 1200
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|\(anonymous namespace\)")
_BREAK = re.compile(r"::|[ ./,<(]")
_LIST = re.compile(r"[<,({]")
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
    """A short name that still identifies a kernel: return type, arguments and inner templates go first.

    >>> shorten("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
    ...         "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>)", 95)
    'at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<…> >(…)'
    """
    name = clean(text)
    if len(name) <= limit:
        return name
    name = _without_arguments(_plain(name), f"({ELLIPSIS})")
    return middle_cut(_outermost_cut(_collapsed(name, _groups(name), limit), limit), limit)


def _plain(name: str) -> str:
    return _ANONYMOUS.sub("", name.removeprefix("void "))


def _without_arguments(name: str, mark: str) -> str:
    """The name with ``mark`` in place of the brackets at its end."""
    groups = _groups(name)
    ends_in_brackets = groups and groups[-1].end == len(name) - 1 and name.endswith(")")
    return name[: groups[-1].start] + mark if ends_in_brackets else name


def cut_apart(names: Sequence[str], limit: int) -> list[str]:
    """The names at most ``limit`` characters long; those that would then look the same are cut where they differ.

    >>> cut_apart(["model.encoder.layers.3.self_attn.q_proj", "model.encoder.layers.4.self_attn.q_proj"], 24)
    ['model.…3.self_att…q_proj', 'model.…4.self_att…q_proj']
    """
    plain = {name: _named(clean(name), limit) for name in names}
    short = {name: _cut(plain[name], limit) for name in plain}
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(plain, key=plain.__getitem__):
        alike[short[name]].append(name)
    for group in alike.values():
        for place, name in enumerate(group if len(group) > 1 else ()):
            beside = (plain[other] for other in group[max(place - 1, 0) : place + 2])
            short[name] = _from(plain[name], _first_difference(plain[name], beside), limit)
    return [short[name] for name in names]


def _named(name: str, limit: int) -> str:
    """The name; if it is too long, without return type and arguments."""
    return name if len(name) <= limit else _without_arguments(_plain(name), "")


def _cut(name: str, limit: int) -> str:
    """The name with its beginning and its end; of a template, its own name comes before the arguments in brackets."""
    base, bracket, inside = name.partition("<")
    if len(name) <= limit or not bracket:
        return _ends(name, limit)
    room = limit - len(base) - 2
    if room < 1:
        return f"{_ends(base, limit - 3)}<{ELLIPSIS}>"
    is_one_word = not _LIST.search(inside.removesuffix(">"))
    return f"{base}<{_ends(inside.removesuffix('>'), room)}>" if is_one_word else shorten(name, limit)


def _ends(name: str, limit: int) -> str:
    """The first third of the room, and the end, since the end of a path or operator identifies it better."""
    head = limit // 3
    return name if len(name) <= limit else f"{name[:head]}{ELLIPSIS}{name[len(name) - (limit - head - 1) :]}"


def _first_difference(name: str, others: Iterable[str]) -> int:
    """Where the name differs from the one most like it."""
    return max((_in_common(name, other) for other in others if other != name), default=0)


def _in_common(one: str, other: str) -> int:
    """How many first characters are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def _from(name: str, start: int, limit: int) -> str:
    """The name's beginning and, after an ellipsis, its text from the word around ``start`` on."""
    near = max(start - limit // 2, 0)
    word = max((found.end() for found in _BREAK.finditer(name, near, start)), default=start)
    head = max(limit // 4, limit - (len(name) - word) - 1)
    if word <= head:
        return middle_cut(name, limit)
    rest, room = name[word:], limit - head - 1
    if len(rest) > room and _LIST.search(rest):  # a list ends with its least informative part
        return f"{name[:head]}{ELLIPSIS}{rest[: room - 1]}{ELLIPSIS}"
    return name[:head] + ELLIPSIS + middle_cut(rest, room)


@dataclass(slots=True)
class _Group:
    """A bracketed span; ``saved`` counts the characters that inner groups already gave up."""

    start: int
    end: int
    depth: int
    parent: _Group | None
    saved: int = 0


def _groups(name: str) -> list[_Group]:
    """The brackets of a name in the order in which they close; an unclosed one ends with the name."""
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


def line_of_code(file: str, line: int | None) -> str:
    """A line as it is named; a cell of a notebook has a number of its own.

    >>> line_of_code("train.py", 7), line_of_code("cell 5", 7), line_of_code("train.py", None)
    ('train.py:7', 'cell 5, line 7', 'train.py')
    """
    if line is None:
        return file
    return f"{file}, line {line}" if file.startswith("cell ") else f"{file}:{line}"


_BETWEEN_SENTENCES: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


def first_sentence(text: str) -> str:
    """The first of some sentences.

    >>> first_sentence("Allow TF32, e.g. by torch. Or train in bf16.")
    'Allow TF32, e.g. by torch.'
    """
    return _BETWEEN_SENTENCES.split(text, maxsplit=1)[0]
