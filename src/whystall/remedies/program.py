"""The text of a user's program: its Python files, its settings files, and the command that runs it."""

from __future__ import annotations

import ast
import difflib
import hashlib
import os.path
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePosixPath

from whystall.remedies.source import Source, Splice, source_of, spliced


@dataclass(frozen=True)
class Program:
    """Files by their paths below the root, and the words of the command.

    ``cores`` are those that the command may use, ``on_device`` whether it computes on an accelerator.
    """

    files: Mapping[str, bytes]
    command: tuple[str, ...]
    cores: int = 1
    on_device: bool = False
    below: str = "."
    """The folder in which the command runs, below the root."""

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The Python files that the command's main file imports, directly or not; all where it is not known."""
        every = {name: source_of(name, data) for name, data in sorted(self.files.items()) if name.endswith(".py")}
        if self.main is None:
            return tuple(every.values())
        found: dict[str, Source] = {}
        waiting = [self.main]
        while waiting:
            name = waiting.pop()
            if name in every and name not in found:
                found[name] = every[name]
                waiting += imported(every[name], str(PurePosixPath(self.main).parent))
        return tuple(found[name] for name in sorted(found))

    @cached_property
    def documents(self) -> dict[str, bytes]:
        """The settings files whose names stand in the command, or in the Python that it runs."""
        text = b"\0".join((" ".join(self.command).encode("utf-8", "replace"), *(one.data for one in self.sources)))
        return {
            name: data
            for name, data in sorted(self.files.items())
            if name.endswith(SETTINGS) and _named(PurePosixPath(name).name).search(text)
        }

    @property
    def main(self) -> str | None:
        """The Python file that the command runs: its first word that is one, or the module behind ``-m``."""
        for place, word in enumerate(self.command[1:], 1):
            module = word.replace(".", "/") if self.command[place - 1] == "-m" else None
            names = (word,) if module is None else (f"{module}.py", f"{module}/__main__.py", f"src/{module}.py")
            for name in names:
                path = os.path.normpath(f"{self.below}/{name}")
                if path.endswith(".py") and path in self.files:
                    return path
        return None

    @cached_property
    def digest(self) -> str:
        """The identity of the program: a digest of its files and its command."""
        found = hashlib.sha256("\0".join(self.command).encode("utf-8", "surrogateescape"))
        for name, data in sorted(self.files.items()):
            found.update(f"\0{name}\0".encode("utf-8", "surrogateescape") + hashlib.sha256(data).digest())
        return found.hexdigest()[:16]

    def with_changes(self, changes: Sequence[Change]) -> Program | None:
        """The program with all of them; ``None`` for none, and where two of them change the same place."""
        files: dict[str, set[Splice]] = {}
        for name, splice in changes:
            files.setdefault(name, set()).add(splice)
        changed = self
        for name, splices in files.items():
            if name == COMMAND:
                words = list(self.command)
                for begin, end, text in sorted(splices, reverse=True):
                    words[begin:end] = [text] if text else []
                changed = replace(changed, command=tuple(words))
                continue
            data = spliced(self.files[name], splices)
            if data is None or (name.endswith(".py") and source_of(name, data).tree is None):
                return None
            changed = changed.with_file(name, data)
        return changed if changed.digest != self.digest else None

    def with_file(self, name: str, data: bytes) -> Program:
        """The program with another text in a file."""
        return replace(self, files={**self.files, name: data})

    def changed_from(self, before: Program) -> dict[str, bytes]:
        """The files whose text differs from those of another state of the program."""
        return {name: data for name, data in self.files.items() if before.files.get(name) != data}


SETTINGS = (".yaml", ".yml", ".json")
COMMAND = ""
"""The name by which a change is one of the command's words."""
Change = tuple[str, Splice]
"""A file, or `COMMAND`, and a replacement in it."""


def imported(source: Source, folder: str) -> Iterator[str]:
    """The files that a source may import: beside it, in the main file's ``folder``, below the root, or in ``src``."""
    here = str(PurePosixPath(source.name).parent)
    for node in source.nodes():
        if isinstance(node, ast.Import):
            modules = [(0, one.name) for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            front = f"{node.module}." if node.module else ""
            modules = [(node.level, node.module or ""), *((node.level, front + one.name) for one in node.names)]
        else:
            continue
        for level, module in modules:
            path = module.replace(".", "/")
            above = os.path.normpath("/".join((here, *[".."] * (level - 1)))) if level else ""
            for base in (above,) if level else (here, folder, "", "src"):
                for name in (f"{path}.py", f"{path}/__init__.py") if path else ("__init__.py",):
                    yield os.path.normpath(f"{base or '.'}/{name}")


def _named(name: str) -> re.Pattern[bytes]:
    """A file's name in a text, with or without its ending."""
    stem = re.escape(name.rpartition(".")[0]).encode()
    return re.compile(rb"(?<![\w-])" + stem + rb"(?![\w-])")


def patch(before: Program, after: Program) -> str:
    """The difference as ``git apply`` and ``patch -p1`` read it."""
    return "".join(
        line
        for name in sorted(after.changed_from(before))
        for line in _difference(name, before.files.get(name, b""), after.files[name])
    )


def shown(text: str) -> str:
    """A patch as it can be printed: bytes that are no UTF-8 are replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _difference(name: str, old: bytes, new: bytes) -> Iterator[str]:
    first, second = (_lines(data) for data in (old, new))
    for line in difflib.unified_diff(first, second, f"a/{name}", f"b/{name}"):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(data: bytes) -> Sequence[str]:
    """The lines with their ends: only a line feed ends one, as in a patch."""
    return re.findall(r"[^\n]*\n|[^\n]+", data.decode("utf-8", "surrogateescape"))
