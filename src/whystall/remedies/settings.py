"""Sets a value where it comes from: the call, a constant, a parser's default, a field, a settings file, the command.

An option that the command gives is set in the command, which overrides the program's own default.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from whystall.remedies.program import COMMAND, Change, Program
from whystall.remedies.source import Source, Splice, dotted

_PARSED: Final = re.compile(r"(?:.*\.)?add_argument|click\.option")
_KEY: Final = re.compile(rb"""(?m)(?:^[ \t-]*|[{,]\s*)["']?(\w+)["']?\s*:""")
_FLAGS: Final = {"True": "store_true", "False": "store_false"}
_CONVERTS: Final = frozenset({"int", "bool", "float", "str"})


def set_value(program: Program, source: Source, given: ast.expr, value: str) -> list[Change]:
    """The changes by which an expression has another value (Python source); none where it cannot, or has it already."""
    if isinstance(given, ast.Call) and dotted(given.func) in _CONVERTS:
        return []  # of another type where it is set
    origin = _origin(given)
    if isinstance(origin, _Option):
        return _set_option(program, origin.name, value)
    found = _constants(source, origin) if isinstance(origin, str) else [origin]
    node = found[0] if len(found) == 1 else None
    return [] if node is None or ast.unparse(node) == value else [(source.name, source.replaced(node, value))]


def literal_of(program: Program, given: ast.expr | None, source: Source) -> str | None:
    """The literal that an expression stands for, as Python source; ``None`` where it is not known, or absent."""
    origin = None if given is None else _origin(given)
    if isinstance(origin, _Option):
        return _option(program, origin.name)
    found = _constants(source, origin) if isinstance(origin, str) else [origin]
    return ast.unparse(found[0]) if len(found) == 1 and found[0] is not None else None


class _Option(NamedTuple):
    """An option by its name: an attribute of parsed arguments or of a configuration, a key of a dictionary."""

    name: str


def _origin(given: ast.expr) -> ast.Constant | str | _Option | None:
    """Where the value of an expression is set: there (the node), by a constant of this name, or by an option."""
    match given:
        case ast.Constant() as node:
            return node
        case ast.Name(id=name):
            return name
        case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return _Option(name)
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(name)), *_]):
            return _Option(name)
        case ast.Call(func=ast.Name(id=name), args=[inner]) if name in _CONVERTS:
            return _origin(inner)
    return None


def option_names(program: Program) -> list[str]:
    """The names of the program's options: of its parsers, fields of its classes, keys of its settings files."""
    found = []
    for source in program.sources:
        for call in source.calls(_PARSED):
            found += [word.lstrip("-").replace("-", "_") for word in _words(call) if word.startswith("--")]
        for node in source.nodes():
            fields = node.body if isinstance(node, ast.ClassDef) else []
            found += [dotted(field.target) for field in fields if isinstance(field, ast.AnnAssign)]
    for data in program.documents.values():
        found += [key.decode("ascii", "replace") for key in _KEY.findall(data)]
    return sorted(set(found))


def set_options(program: Program, names: re.Pattern[str], change: Callable[[str], str | None]) -> list[Change]:
    """The changes by which options and constants of such names have other values; ``change`` is given the literal."""
    changes: list[Change] = []
    for name in filter(names.fullmatch, option_names(program)):
        present = _option(program, name)
        value = None if present is None else change(present)
        changes += [] if value is None else _set_option(program, name, value)
    for source in program.sources:
        for name in sorted({one.id for one in _assigned(source) if names.fullmatch(one.id)}):
            found = _constants(source, name)
            value = change(ast.unparse(found[0])) if len(found) == 1 else None
            changes += [] if value is None else [(source.name, source.replaced(found[0], value))]
    return changes


def _assigned(source: Source) -> Iterator[ast.Name]:
    for node in source.nodes():
        if isinstance(node, ast.Assign):
            yield from (target for target in node.targets if isinstance(target, ast.Name))


def _constants(source: Source, name: str) -> list[ast.Constant]:
    """The values of all assignments to a name; empty where one of them is no literal."""
    values = [
        node.value
        for node in source.nodes()
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and any(
            isinstance(target, ast.Name) and target.id == name
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        )
    ]
    found = [value for value in values if isinstance(value, ast.Constant)]
    return found if len(found) == len(values) else []


def _option(program: Program, name: str) -> str | None:
    """The literal of an option, from the command or its one place in the program."""
    flag = _flag(program, name)
    if flag is not None:
        option, action = flag
        return str((option in program.command) == (action == "store_true"))
    given = _in_command(program, name)
    if given is not None:
        return _literal(given[1])
    places = list(_places(program, name))
    if len(places) == 1:
        node = places[0][1]
        return ast.unparse(node) if isinstance(node, ast.Constant) else None
    keys = list(_keys(program, name)) if not places else []
    return _literal(keys[0][1][2].decode("utf-8", "replace")) if len(keys) == 1 else None


def _set_option(program: Program, name: str, value: str) -> list[Change]:
    flag = _flag(program, name)
    if flag is not None:
        return _set_flag(program, *flag, value)
    given = _in_command(program, name)
    if given is not None:
        place, old = given
        word, new = program.command[place], _plain(value)
        text = f"{word.partition('=')[0]}={new}" if "=" in word else new
        return [(COMMAND, Splice(place, place + 1, text))] if old != new and value != "None" else []
    places = list(_places(program, name))
    keys = list(_keys(program, name)) if not places else []
    if len(places) == 1:
        source, node = places[0]
        if isinstance(node, ast.Call):  # a parser's option without a default
            splice = source.with_arguments(node, {"default": value}) if _PARSED.fullmatch(dotted(node.func)) else None
            return [] if splice is None else [(source.name, splice)]
        literal = isinstance(node, ast.Constant) and ast.unparse(node) != value
        return [(source.name, source.replaced(node, value))] if literal else []
    if len(keys) == 1:
        document, found = keys[0]
        return [(document, Splice(found.start(2), found.end(2), _plain(value, quoted=document.endswith(".json"))))]
    return []


def _words(call: ast.Call) -> list[str]:
    """The texts among a call's arguments by position."""
    return [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def _in_command(program: Program, name: str) -> tuple[int, str] | None:
    """The word of the command that holds an option's value, and the value; a flag without one has none."""
    options = {f"--{name}", f"--{name.replace('_', '-')}"}
    options |= {word for _, call, _ in _parsers(program, name) for word in _words(call) if word.startswith("-")}
    overridden = re.compile(rf"\+{{0,2}}(?:[\w.]+\.)?{re.escape(name)}")  # as Hydra and OmegaConf take it
    command = program.command
    for place, word in enumerate(command):
        option, equals, value = word.partition("=")
        if equals and (option in options or overridden.fullmatch(option)):
            return place, value
        if word in options and place + 1 < len(command) and not command[place + 1].startswith("--"):
            return place + 1, command[place + 1]
    return None


def _parsers(program: Program, name: str) -> Iterator[tuple[Source, ast.Call, str]]:
    """The calls that declare an option of a command line, with the option's text."""
    options = {f"--{name}", f"--{name.replace('_', '-')}"}
    for source in program.sources:
        for call in source.calls(_PARSED):
            yield from ((source, call, word) for word in _words(call) if word in options)


def _flag(program: Program, name: str) -> tuple[str, str] | None:
    """An option without a value and its action, where the program declares one."""
    for _, call, option in _parsers(program, name):
        for keyword in call.keywords:
            if keyword.arg == "action" and isinstance(keyword.value, ast.Constant):
                action = str(keyword.value.value)
                if action in _FLAGS.values():
                    return option, action
    return None


def _set_flag(program: Program, option: str, action: str, value: str) -> list[Change]:
    """The command with or without a flag."""
    wanted = _FLAGS.get(value) == action
    if value not in _FLAGS or wanted == (option in program.command):
        return []
    end = len(program.command)
    place = end if wanted else program.command.index(option)
    return [(COMMAND, Splice(place, place if wanted else place + 1, option if wanted else ""))]


def _places(program: Program, name: str) -> Iterator[tuple[Source, ast.expr]]:
    """Where a program sets the default of an option: a parser's (the call, where it has none), or a field's."""
    for source, call, _ in _parsers(program, name):
        default = next((keyword.value for keyword in call.keywords if keyword.arg == "default"), None)
        yield source, call if default is None else default
    for source in program.sources:
        for node in source.nodes():
            if isinstance(node, ast.ClassDef):
                for field in node.body:
                    if isinstance(field, ast.AnnAssign) and dotted(field.target) == name and field.value is not None:
                        yield source, field.value
            elif isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == name:
                        yield source, value


def _keys(program: Program, name: str) -> Iterator[tuple[str, re.Match[bytes]]]:
    """The scalars of a key in the settings files."""
    key = re.escape(name).encode()
    pattern = re.compile(rb"""(?m)((?:^[ \t-]*|[{,]\s*)["']?""" + key + rb"""["']?\s*:[ \t]*)([^\s,{}\[\]#]+)""")
    for document, data in program.documents.items():
        for found in pattern.finditer(data):
            yield document, found


def _literal(text: str) -> str:
    """A word of a command or a settings file as Python source.

    >>> [_literal(text) for text in ("4", "true", "eager", "null")]
    ['4', 'True', "'eager'", 'None']
    """
    word = text.strip("\"'")
    known = {"true": "True", "false": "False", "null": "None", "none": "None"}.get(word.lower())
    if known is not None:
        return known
    try:
        return repr(ast.literal_eval(word))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return repr(word)


def _plain(value: str, *, quoted: bool = False) -> str:
    """Python source as a word of a command or of a settings file.

    >>> _plain("True"), _plain("'sdpa'"), _plain("'sdpa'", quoted=True)
    ('true', 'sdpa', '"sdpa"')
    """
    found = ast.literal_eval(value)
    if isinstance(found, bool) or found is None or quoted:
        return json.dumps(found)
    return str(found)
