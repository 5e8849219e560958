"""Edits of Python source by the places of its syntax tree: all else stays as it was, byte by byte.

Places of `ast` are in bytes of UTF-8, so that the text is kept as bytes.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

LARGEST: Final = 1 << 20
"""Bytes of the largest file whose text is read."""
_OTHER_ENDS: Final = re.compile(rb"\r(?!\n)|\f")
"""Characters that end a line for Python and not for this module."""
_PLAIN: Final = re.compile(r"'[^'\"\\\n]*'")
_REST: Final = re.compile(rb"\s*(?:#[^\n]*\n\s*)*,")
_CLOSED: Final = re.compile(rb"\s*(?:#[^\n]*\n\s*)*\)")


class Splice(NamedTuple):
    """A replacement of bytes ``begin`` to ``end`` of a file, or of such words of a command."""

    begin: int
    end: int
    text: str


@dataclass(frozen=True)
class Source:
    """One Python file; ``name`` is its path below the root of the program."""

    name: str
    data: bytes

    @cached_property
    def tree(self) -> ast.Module | None:
        """The syntax tree; ``None`` for a file that is none, is too large, or is not UTF-8."""
        if len(self.data) > LARGEST or self.data.startswith(b"\xef\xbb\xbf") or _OTHER_ENDS.search(self.data):
            return None
        try:
            return ast.parse(self.data.decode())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    @cached_property
    def _lines(self) -> list[int]:
        return [0, *(found.end() for found in re.finditer(rb"\n", self.data))]

    @property
    def _end(self) -> str:
        """The end of a line, as the file has it."""
        return "\r\n" if b"\r\n" in self.data else "\n"

    def nodes(self) -> Iterator[ast.AST]:
        """All nodes of the tree."""
        return ast.walk(self.tree) if self.tree is not None else iter(())

    def calls(self, name: re.Pattern[str]) -> list[ast.Call]:
        """Calls whose dotted name matches to its end (``torch.utils.data.DataLoader``, ``DataLoader``)."""
        found = (node for node in self.nodes() if isinstance(node, ast.Call))
        return sorted(
            (node for node in found if name.fullmatch(dotted(node.func))),
            key=lambda node: (node.lineno, node.col_offset),
        )

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """The first byte of a node and the one after its last."""
        begin = self._lines[node.lineno - 1] + node.col_offset
        return begin, self._lines[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def replaced(self, node: ast.expr | ast.stmt, text: str) -> Splice:
        """A node with another text in its place."""
        return Splice(*self.span(node), self._quoted(text))

    def with_arguments(self, call: ast.Call, arguments: dict[str, str]) -> Splice | None:
        """A call with further keywords behind its arguments; ``None`` for none."""
        given = ", ".join(f"{name}={self._quoted(value)}" for name, value in arguments.items())
        return self._appended(call, given) if given else None

    def _quoted(self, text: str) -> str:
        """A plain string in the quotes that the file mostly has."""
        if not _PLAIN.fullmatch(text) or self.data.count(b'"') <= self.data.count(b"'"):
            return text
        return f'"{text[1:-1]}"'

    def _appended(self, call: ast.Call, argument: str) -> Splice:
        """A further argument behind the last one, on a line of its own where that one has one."""
        end = self.span(call)[1] - 1
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if not given:
            return Splice(end, end, argument)
        last = max(given, key=lambda node: self.span(node)[1])
        after = self._outside(self.span(last)[1], end)
        comma = _REST.match(self.data, after, end)
        if comma is None:
            return Splice(after, after, f", {argument}")
        if b"\n" not in self.data[comma.end() : end]:
            return Splice(comma.end(), comma.end(), f" {argument},")
        line = self._lines[last.lineno - 1]
        indent = re.match(rb"[ \t]*", self.data[line:])
        margin = indent[0].decode() if indent is not None else ""
        return Splice(comma.end(), comma.end(), f"{self._end}{margin}{argument},")

    def _outside(self, after: int, end: int) -> int:
        """The byte after the parentheses that an argument stands in by itself."""
        while (closed := _CLOSED.match(self.data, after, end)) is not None:
            after = closed.end()
        return after

    def before(self, node: ast.stmt, line: str) -> Splice | None:
        """A line of its own in front of a statement, equally indented; ``None`` where others share its line."""
        begin = self.span(node)[0]
        first = self._lines[node.lineno - 1]
        margin = self.data[first:begin]
        return None if margin.strip() else Splice(first, first, f"{margin.decode()}{line}{self._end}")

    def after_imports(self, line: str, of: str | None = "torch") -> Splice | None:
        """A line behind the first block of imports, which imports the module ``of``; ``None`` where it does not."""
        body = self.tree.body if self.tree is not None else []
        header = list(itertools.takewhile(_may_stand_before, body))
        imports = [node for node in header if isinstance(node, ast.Import | ast.ImportFrom)]
        named = (one.name == of and one.asname is None for node in imports for one in node.names)
        if not imports or (of is not None and not any(named)):
            return None
        return self.behind(imports[-1], line)

    def behind(self, node: ast.stmt, line: str) -> Splice | None:
        """A line of its own behind a statement, equally indented; ``None`` where others share its lines."""
        begin, end = self.span(node)
        first = self._lines[node.lineno - 1]
        margin, rest = self.data[first:begin], self.data[end:].partition(b"\n")[0].strip()
        if margin.strip() or (rest and not rest.startswith(b"#")):
            return None
        at = self.data.find(self._end.encode(), end)
        at = end if at < 0 else at  # the last line of a file may have no end
        return Splice(at, at, f"{self._end}{margin.decode()}{line}")


def spliced(data: bytes, splices: Iterable[Splice]) -> bytes | None:
    """A text with all replacements; ``None`` where two overlap."""
    next_begin = len(data)
    for begin, end, text in sorted(set(splices), reverse=True):
        if end > next_begin:
            return None
        data, next_begin = data[:begin] + text.encode() + data[end:], begin
    return data


@lru_cache(maxsize=1024)
def source_of(name: str, data: bytes) -> Source:
    """The source of a file, parsed once."""
    return Source(name, data)


def _may_stand_before(node: ast.stmt) -> bool:
    """Whether a statement may stand in a file's first block of imports: imports, and its docstring."""
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return text or isinstance(node, ast.Import | ast.ImportFrom)


def dotted(node: ast.expr) -> str:
    """The dotted name of an expression; empty where it is none.

    >>> dotted(ast.parse("torch.optim.AdamW", mode="eval").body)
    'torch.optim.AdamW'
    """
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            front = dotted(value)
            return f"{front}.{name}" if front else name
    return ""
