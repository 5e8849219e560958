"""Finds the lines of a user's program that set an option which causes a finding. It parses the program's source.

Samples stop at a framework's door (``trainer.train()``). The line to change is the one with the option. A setting is
written as the causes' entries name it:

- ``eval_steps``: a keyword, a key, an attribute, a default or an option of a command line of this name
- ``padding="max_length"``: the same with this value, or with one that may be it (``"max_length" if long else True``)
- ``DataLoader()``: a call; ``DataLoader(-num_workers)``: a call without this keyword
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from whystall.disk import reading
from whystall.json_text import NotJsonError, parse_json
from whystall.run_folder.description import SettingAt
from whystall.run_folder.observations import MadeAt
from whystall.run_folder.samples import PLACE
from whystall.vocabulary.frames import owner

_LARGEST_SOURCE: Final = 1 << 20
_MOST_FILES: Final = 64
_MOST_LINES: Final = 4
"""Places of one setting."""
_MOST_SAMPLES: Final = 16 << 20
_FILE: Final = list(PLACE).index("file")
_LACKING: Final = re.compile(r"(?P<called>\w+)\(-(?P<keyword>\w+)\)")


class _Given(NamedTuple):
    """An option that a program sets: its line, the text to show, and the names of the settings that it matches."""

    line: int
    text: str
    names: frozenset[str]


def settings_of(folder: Path, samples: Iterable[Path], wanted: Iterable[str]) -> list[SettingAt]:
    """The wanted settings in the user's files that ran, which are those that samples name.

    ``folder`` is where the job was started. Files that cannot be read are left out.
    """
    asked = tuple(wanted)
    found: list[SettingAt] = []
    for name in list(dict.fromkeys(file for path in samples for file in _files_in(path)))[:_MOST_FILES]:
        text = _source(folder, name)
        found += settings_in(text, name, asked) if text is not None else []
    return [one for number, one in enumerate(found) if _before(found[:number], one) < _MOST_LINES]


def settings_in(text: str, file: str, wanted: Iterable[str]) -> list[SettingAt]:
    """The wanted settings of one source, by line.

    >>> [found] = settings_in("Trainer(eval_steps=10)", "train.py", ["eval_steps"])
    >>> found.at.line, found.at.text
    (1, 'Trainer(eval_steps=10)')
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    asked, functions = frozenset(wanted), _functions(tree)
    given = sorted(one for node in ast.walk(tree) for one in _given(node, asked) if one.names & asked)
    return [
        SettingAt(name, MadeAt(file, one.line, _within(functions, one.line), one.text))
        for one in given
        for name in sorted(one.names & asked)
    ]


def _given(node: ast.AST, asked: frozenset[str]) -> list[_Given]:
    """The options that a node sets."""
    match node:
        case ast.Call():
            return _by_call(node, asked)
        case ast.Dict():
            pairs = zip(node.keys, node.values, strict=True)
            return [_option(name, value) for key, value in pairs if (name := _text(key)) is not None]
        case ast.AnnAssign(value=ast.expr() as value):
            return _assigned([node.target], value)
        case ast.Assign():
            return _assigned(node.targets, node.value)
        case _:
            return []


def _assigned(targets: Iterable[ast.expr], value: ast.expr) -> list[_Given]:
    return [_option(name, value) for name in map(target_name, targets) if name is not None]


def _by_call(call: ast.Call, asked: frozenset[str]) -> list[_Given]:
    """The call itself, its keywords, and the option of a command line's parser."""
    called = target_name(call.func)
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    out = [_option(name, value, called) for name, value in keywords.items() if name is not None]
    if called is None:
        return out
    lacking = (found for one in asked if (found := _LACKING.fullmatch(one)) and found["called"] == called)
    # The keywords in **options are not known.
    without = {found[0] for found in lacking if None not in keywords and found["keyword"] not in keywords}
    out.append(_Given(call.lineno, f"{called}(…)", frozenset({f"{called}()", *without})))
    options = [
        option for one in call.args if called == "add_argument" and (option := _text(one) or "").startswith("--")
    ]
    names = [option.removeprefix("--").replace("-", "_") for option in options]
    return out + [_Given(call.lineno, f"--{name}", frozenset({name})) for name in names]


def _option(name: str, value: ast.expr, called: str | None = None) -> _Given:
    """An option; of its value only a number, a flag or ``None`` is shown: texts may be secrets."""
    plain = isinstance(value, ast.Constant) and isinstance(value.value, bool | int | float | None)
    shown = f"{name}={ast.unparse(value) if plain else '…'}"
    names = frozenset({name, *(f"{name}={literal}" for literal in _literals(value))})
    return _Given(value.lineno, f"{called}({shown})" if called else shown, names)


def _literals(value: ast.expr) -> list[str]:
    """The literals that a value may have."""
    match value:
        case ast.Constant(value=str(text)):
            return [json.dumps(text)]
        case ast.IfExp(body=one, orelse=other):
            return [*_literals(one), *_literals(other)]
        case ast.UnaryOp(op=ast.Not()) | ast.Compare():
            return ["True", "False"]
        case _:
            return [ast.unparse(value)]


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def target_name(node: ast.expr) -> str | None:
    """The last name of a call's or an assignment's target: of ``c.padding`` and of ``c["padding"]`` ``padding``."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
    return None


def _functions(tree: ast.AST) -> list[tuple[int, int, str]]:
    """The first and last line of each function, the outer ones first."""
    return sorted(
        (node.lineno, -(node.end_lineno or node.lineno), node.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def _within(functions: list[tuple[int, int, str]], line: int) -> str:
    inside = [name for first, last, name in functions if first <= line <= -last]
    return inside[-1] if inside else "<module>"


def _before(found: list[SettingAt], one: SettingAt) -> int:
    return sum(other.name == one.name for other in found)


def _files_in(samples: Path) -> Iterator[str]:
    """The user's files that a samples file names; a damaged line names none."""
    try:
        with reading.opened(samples) as stream:
            lines = stream.read(_MOST_SAMPLES).splitlines()
    except OSError:
        return
    for line in lines:
        if b'"stacks"' not in line:
            continue
        try:
            stacks = parse_json(line, type=dict).get("stacks")
        except NotJsonError:
            continue
        for row in stacks if isinstance(stacks, list) else ():
            name = row[_FILE] if isinstance(row, list) and len(row) > _FILE else None
            if isinstance(name, str) and owner(name) == "user":
                yield name


def _source(folder: Path, name: str) -> str | None:
    """A Python file below the folder; ``None`` where there is none."""
    path = Path(name)
    if path.suffix != ".py" or path.is_absolute() or ".." in path.parts:
        return None
    try:
        with reading.opened(folder / path) as stream:
            return stream.read(_LARGEST_SOURCE).decode("utf-8")
    except (OSError, ValueError):
        return None
