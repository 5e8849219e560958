"""Sentences of the project's texts, and those whose grammar a reader must untangle.

A sentence should have its subject first and use the field's terms. Marked are sentences that open with a fronted
genitive ("Of what …") or a free relative ("What …", "Whoever …"), and words that hide who does what.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

Kind = Literal["docstring", "comment", "text", "entry", "page"]

_OPENING: Final = re.compile(
    r"(?:(?:By|To|In|At|With|From) (?:what|which|whom|whatever)|What(?:ever)?|Who(?:ever)?|Whose|Of)\b"
)
_WORDS: Final = re.compile(
    r"\b(?:anew|told|tells?|telling|likewise|nobody|so many|so much|as many|as much|whatever|whoever)\b", re.IGNORECASE
)
_CODE: Final = re.compile(r"``[^`]*``|`[^`]*`")
_DOCTEST: Final = re.compile(r"^[ \t]*>>> .*(?:\n[ \t]*\S.*)*", re.MULTILINE)
_PARAGRAPH: Final = re.compile(r"\n\s*\n|^\s*(?:[-*]|\d\.) ", re.MULTILINE)
_END: Final = re.compile(r"(?<=[.!?;:])\s+(?=[A-Z\"'`])")
_NO_PROSE: Final = re.compile(r"```[\s\S]*?```|^    .*$|^\|.*$|^#.*$", re.MULTILINE)
_DIRECTIVE: Final = ("noqa", "type:", "fmt:", "ruff:", "mypy:")
_FEWEST_WORDS: Final = 3


class Text(NamedTuple):
    """A text of the project: its file, its line (0 where a page or an entry is meant), its kind and its words."""

    path: Path
    line: int
    kind: Kind
    words: str


def sentences(words: str) -> Iterator[str]:
    """The sentences of a text, with code taken out.

    >>> list(sentences("Reads a file. Of `x` it\\n    keeps all."))
    ['Reads a file.', 'Of X it keeps all.']
    """
    plain = _DOCTEST.sub("", _CODE.sub("X", words))
    for paragraph in _PARAGRAPH.split(plain):
        for sentence in _END.split(" ".join(paragraph.split())):
            if len(sentence.split()) >= _FEWEST_WORDS:
                yield sentence


def fault(sentence: str) -> str | None:
    """The opening or word that a plain sentence avoids; ``None`` if there is none.

    >>> fault("What is padded is hidden."), fault("It is told anew."), fault("What is a step?"), fault("Of course.")
    ('What', 'told', None, 'Of')
    """
    opening = None if sentence.endswith("?") else _OPENING.match(sentence)
    found = opening or _WORDS.search(sentence)
    return None if found is None else found[0]


def of_python(path: Path) -> Iterator[Text]:
    """Docstrings, comments and other strings of at least four words."""
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    documented: set[ast.AST] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for part in body if isinstance(body, list) else ():
            if (
                isinstance(part, ast.Expr)
                and isinstance(part.value, ast.Constant)
                and isinstance(part.value.value, str)
            ):
                documented.add(part.value)
                yield Text(path, part.lineno, "docstring", part.value.value)
    for node in ast.walk(tree):
        match node:
            case ast.Constant(str(words)) if node not in documented and len(words.split()) > _FEWEST_WORDS:
                yield Text(path, node.lineno, "text", words)
    yield from _comments(path, source)


def _comments(path: Path, source: str) -> Iterator[Text]:
    block: list[str] = []
    begins = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        words = token.string.lstrip("# ")
        if words.startswith(_DIRECTIVE):
            continue
        if block and token.start[0] != last + 1:
            yield Text(path, begins, "comment", " ".join(block))
            block = []
        begins = begins if block else token.start[0]
        last = token.start[0]
        block.append(words)
    if block:
        yield Text(path, begins, "comment", " ".join(block))


def of_entry(path: Path) -> Iterator[Text]:
    """The texts of a TOML file."""

    def below(value: object) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            for one in value.values():
                yield from below(one)
        elif isinstance(value, list):
            for one in value:
                yield from below(one)

    for words in below(tomllib.loads(path.read_text("utf-8"))):
        yield Text(path, 0, "entry", words)


def of_page(path: Path) -> Iterator[Text]:
    """The prose of a Markdown page: without code, tables and headings."""
    yield Text(path, 0, "page", _NO_PROSE.sub("", path.read_text("utf-8")))


def texts(folder: Path) -> Iterator[Text]:
    """All texts of the files below a folder."""
    readers = {".py": of_python, ".toml": of_entry, ".md": of_page}
    for path in sorted(folder.rglob("*")):
        if path.suffix in readers and "__pycache__" not in path.parts:
            yield from readers[path.suffix](path)


def faults(folder: Path, kinds: tuple[Kind, ...]) -> list[str]:
    """The marked sentences of some kinds below a folder, with file, line and the word."""
    return [
        f"{one.path.relative_to(folder)}:{one.line} ({word}): {sentence}"
        for one in texts(folder)
        if one.kind in kinds
        for sentence in sentences(one.words)
        if (word := fault(sentence)) is not None
    ]
