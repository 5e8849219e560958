"""The mechanical edits: the causes that each removes, the places that it changes, and the risk.

An edit is a row of ``edits.toml``: places of a program, by the name of a call or of an assigned attribute, and their
new values. Where a value comes from elsewhere, `whystall.remedies.settings` changes it there.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final, Literal

import msgspec

from whystall.remedies.caching import kept_samples
from whystall.remedies.program import Change, Program
from whystall.remedies.settings import literal_of, set_options, set_value
from whystall.remedies.source import Source
from whystall.run_folder.settings import target_name

Equality = Literal["exact", "rounding", "statistical", "tf32", "bf16"]
"""How equal the losses must stay: as they were, up to rounding (of these numbers), or on average where other random
numbers are drawn.
"""

_FORMULA: Final = re.compile(r"\{(?P<what>\w+)\}")
_MOST_WORKERS: Final = 8


class Site(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Places of one kind: calls whose dotted name ends like this, or assignments to an attribute or a key of this name.

    ``set`` holds keywords of the call with their new values, ``argument`` a new value of its first argument,
    ``instead`` a text in place of the whole call; ``dropped`` statements of it become ``pass``. With ``where`` only
    calls count in which that keyword (``0``: the first argument) has such a literal.

    Instead of a call, ``options`` are names of the program's own options and constants, whose whole number becomes
    tenfold; ``line`` is one to put behind the imports of the file that the command runs, unless the program calls its
    function already; ``model`` are names of variables that a call gives a model, with ``then`` behind that; with
    ``samples`` data sets keep theirs.
    """

    call: str | None = None
    options: str | None = None
    line: str | None = None
    model: str | None = None
    then: str = ""
    samples: bool = False
    assigned: str | None = None
    set: dict[str, str] = {}
    argument: str | None = None
    instead: str | None = None
    dropped: bool = False
    where: dict[str, str] = {}
    imports: str | None = None
    """A text that the file must hold: the package that a common name comes from."""


class Edit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One edit. ``numerics``: it may change what is computed, and is tried only where the user allows that.

    ``whole``: its gain shows in later epochs, so that whole runs are measured and not their first steps. ``fewer``: the
    program may leave fewer files.
    """

    name: str
    says: str
    causes: list[str]
    equality: Equality
    sites: list[Site]
    numerics: bool = False
    whole: bool = False
    fewer: bool = False
    risk: str = ""
    on: Literal["cpu", "device", "any"] = "any"


@dataclass(frozen=True)
class Proposal:
    """A program with an edit made, and the cause that asks for it."""

    edit: Edit
    cause: str
    program: Program


@cache
def edits() -> tuple[Edit, ...]:
    """All edits, in the order in which those of one cause are tried."""
    text = (files("whystall.remedies") / "edits.toml").read_text("utf-8")
    return tuple(msgspec.convert(row, Edit) for row in tomllib.loads(text)["edit"])


def proposals(program: Program, cause: str) -> Iterator[Proposal]:
    """For each edit that removes a cause, the program with that edit, if it changes something."""
    for edit in edits():
        if cause in edit.causes and edit.on in ("any", "device" if program.on_device else "cpu"):
            changed = applied(edit, program)
            if changed is not None:
                yield Proposal(edit, cause, changed)


def applied(edit: Edit, program: Program) -> Program | None:
    """The program with an edit made at all of its places; ``None`` where there is none."""
    return program.with_changes([change for site in edit.sites for change in _changes(program, site)])


def _changes(program: Program, site: Site) -> Iterator[Change]:
    """The changes of one site, all of the program as it is."""
    if site.options is not None:
        yield from set_options(program, re.compile(site.options, re.IGNORECASE), _tenfold)
    elif site.line is not None:
        yield from _line(program, site.line.replace("{cores}", str(program.cores)))
    elif site.samples:
        yield from kept_samples(program)
    elif site.model is not None:
        yield from _behind_model(program, re.compile(site.model), site.then)
    else:
        for source in program.sources:
            if site.imports is None or site.imports.encode() in source.data:
                for node in _places(program, source, site):
                    yield from _changes_at(program, source, site, node)


def _line(program: Program, line: str) -> Iterator[Change]:
    """A statement behind the imports of the main file, where the program has no such statement."""
    name = re.split(r"[ (]", line)[0].rpartition(".")[2]
    what = re.compile(rf"(?:.*\.)?{re.escape(name)}")
    for source in program.sources:
        assigned = [target for node in source.nodes() if isinstance(node, ast.Assign) for target in node.targets]
        if source.calls(what) or name in map(target_name, assigned):
            return
    main = next((source for source in program.sources if source.name == program.main), None)
    splice = None if main is None else main.after_imports(line)
    if main is not None and splice is not None:
        yield main.name, splice


def _behind_model(program: Program, names: re.Pattern[str], then: str) -> Iterator[Change]:
    """A statement behind the one assignment of a call to a variable of such a name, where it stands nowhere yet."""
    found = [
        (source, node, target)
        for source in program.sources
        if b"torch" in source.data
        for node in source.nodes()
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.Call)
        for target in (ast.unparse(node.targets[0]),)
        if names.fullmatch(target)
    ]
    if len(found) != 1:
        return
    source, node, target = found[0]
    text = then.format(model=target)
    if text.split("=", 1)[-1].strip().encode() in source.data:
        return
    splice = source.behind(node, text)
    if splice is not None:
        yield source.name, splice


def _tenfold(present: str) -> str | None:
    return str(int(present) * 10) if present.isdecimal() and int(present) > 0 else None


def _places(program: Program, source: Source, site: Site) -> Iterator[ast.Call | ast.Assign]:
    if site.assigned is not None:
        assigned = (node for node in source.nodes() if isinstance(node, ast.Assign))
        for node in assigned:
            if site.assigned in map(target_name, node.targets) and _is_meant(program, source, site, {"0": node.value}):
                yield node
        return
    for call in source.calls(re.compile(rf"(?:.*\.)?(?:{site.call})")):
        given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
        first = {"0": call.args[0]} if call.args else {}
        unpacked = len(given) < len(call.keywords) or any(isinstance(one, ast.Starred) for one in call.args)
        if not unpacked and _is_meant(program, source, site, {**given, **first}):
            yield call


def _is_meant(program: Program, source: Source, site: Site, given: dict[str, ast.expr]) -> bool:
    """Whether the values of a place are those that the site asks for."""
    for name, wanted in site.where.items():
        found = literal_of(program, given.get(name), source)
        if re.fullmatch(wanted, found if found is not None else ("" if name not in given else "?")) is None:
            return False
    return True


def _changes_at(program: Program, source: Source, site: Site, node: ast.Call | ast.Assign) -> Iterator[Change]:
    """The changes at one place."""
    if isinstance(node, ast.Assign):
        yield from set_value(program, source, node.value, _value(program, source, node.value, site.argument or ""))
    elif site.dropped:
        statements = (one for one in source.nodes() if isinstance(one, ast.Expr) and one.value is node)
        yield from ((source.name, source.replaced(one, "pass")) for one in statements)
    elif site.instead is not None:
        yield source.name, source.replaced(node, site.instead)
    elif site.argument is not None and node.args:
        yield from set_value(program, source, node.args[0], _value(program, source, node.args[0], site.argument))
    given = {keyword.arg: keyword.value for keyword in node.keywords} if isinstance(node, ast.Call) else {}
    if isinstance(node, ast.Call):
        lacking = {name: _value(program, source, None, text) for name, text in site.set.items() if name not in given}
        splice = source.with_arguments(node, lacking)
        if splice is not None:
            yield source.name, splice
    for name, text in site.set.items():
        if name in given:
            yield from set_value(program, source, given[name], _value(program, source, given[name], text))


def _value(program: Program, source: Source, given: ast.expr | None, text: str) -> str:
    """The new value: ``{cores}``, ``{workers}``, or ``{tenfold}`` of the present one."""

    def filled(found: re.Match[str]) -> str:
        match found["what"]:
            case "cores":
                return str(program.cores)
            case "workers":
                return str(max(1, min(program.cores, _MOST_WORKERS) if program.on_device else program.cores // 2))
            case _:
                present = literal_of(program, given, source)
                return (None if present is None else _tenfold(present)) or str(present)

    return _FORMULA.sub(filled, text)
