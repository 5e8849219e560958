"""Functions of torch's that report their begin and end, and stay themselves.

A function keeps its identity, name, signature, place and lines: only its code is replaced for a while, compiled from
the function's own source with a call at its beginning and one at its end. So it is pickled, copied, inspected and shown
in tracebacks as ever, existing references report too, and no function is replaced. While torch's compiler follows it,
it makes no call: the compiler knows none of ours.
"""

from __future__ import annotations
import __future__

import ast
import dis
import inspect
import sys
import tokenize
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FunctionType
from typing import Any, Final

from whystall.capture.faults import suppress

_SMALL: Final = dis.opmap.get("LOAD_SMALL_INT")
_FUTURE: Final = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
# Stands in the code where the calls are to be: a constant that no source contains.
_MARK: Final = "whystall\0heard"
Before = Callable[..., object]
After = Callable[..., object]


class _Heard:
    """The calls that one function's code makes."""

    def __init__(self, original: CodeType) -> None:
        self.original = original
        self.listeners: tuple[tuple[Before, After], ...] = ()

    def begins(self, *first: object) -> None:
        """The function is called; ``first`` is its first argument, if it has one."""
        for before, _ in self.listeners:
            with suppress(Exception):  # this runs in the user's job, whose call must not fail
                before(*first)

    def ends(self, *result: Any) -> Any:
        """The function returns ``result``, which is handed on; or, given nothing, it raises."""
        given = result[0] if result else None
        for _, after in self.listeners:
            with suppress(Exception):
                after(given)
        return given


_heard: dict[FunctionType, tuple[_Heard, CodeType]] = {}


def hear(function: Any, before: Before, after: After) -> Callable[[], None]:
    """Makes a function call ``before`` and ``after`` from now on; returns a function that stops it.

    ``before`` receives the first argument, where the function takes any by position; ``after`` the returned value, or
    ``None`` where it raises. Their exceptions are dropped. For a decorated function the innermost one is changed.
    Raises ``TypeError`` for an object that is no function written in Python, and ``OSError`` where its source is
    missing.
    """
    found = inspect.unwrap(function)
    if not isinstance(found, FunctionType):
        raise TypeError(f"{found!r} is no function written in Python: its calls cannot be heard")
    known = _heard.get(found)
    if known is None or found.__code__ is not known[1]:
        calls = _Heard(found.__code__)
        known = calls, _telling(found.__code__, calls, may_be_compiled=_knows_torch(found))
        _heard[found] = known
        found.__code__ = known[1]
    calls, code = known
    pair = (before, after)
    calls.listeners = (*calls.listeners, pair)

    def end() -> None:
        calls.listeners = tuple(each for each in calls.listeners if each is not pair)
        if not calls.listeners and found.__code__ is code:
            found.__code__ = calls.original
            _heard.pop(found, None)

    return end


def _knows_torch(function: FunctionType) -> bool:
    """Whether a function can check for torch's compiler itself, by ``torch.compiler.is_compiling``."""
    code = function.__code__
    torch = None if "torch" in {*code.co_varnames, *code.co_cellvars, *code.co_freevars} else sys.modules.get("torch")
    known = torch is not None and function.__globals__.get("torch") is torch
    return known and hasattr(getattr(torch, "compiler", None), "is_compiling")


def _telling(code: CodeType, calls: _Heard, *, may_be_compiled: bool) -> CodeType:
    """The code of a function that calls ``calls`` at its beginning and its end, and is otherwise the same."""
    flags = code.co_flags & _FUTURE
    names = getattr(code, "co_qualname", code.co_name).split(".")
    owner = names[-2] if len(names) > 1 and names[-2] != "<locals>" else None
    try:
        tree = _source(code, owner)
        functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == code.co_name]
        plain = _compiled(tree, code, flags)
        if plain is None or not functions or _shape(plain) != _shape(code):
            raise OSError(f"{code.co_name}: what runs is not its source by itself")
    except SyntaxError as error:
        raise OSError(f"{code.co_name}: what runs is not its source ({error})") from None
    _instrument(functions[0], may_be_compiled=may_be_compiled)
    made = _compiled(tree, code, flags)
    if made is None:
        raise OSError(f"{code.co_name}: no code was compiled")
    consts = tuple(calls if isinstance(const, str) and const == _MARK else const for const in made.co_consts)
    kept: dict[str, Any] = {"co_qualname": code.co_qualname} if sys.version_info >= (3, 11) else {}
    return made.replace(co_consts=consts, co_firstlineno=code.co_firstlineno, **kept)


def _shape(code: CodeType) -> tuple[Any, ...]:
    """The common traits of two codes of one source, apart from the compiler's jumps."""
    within = tuple(_shape(const) for const in code.co_consts if isinstance(const, CodeType))
    plain = {repr(const) for const in code.co_consts if not isinstance(const, CodeType)}
    # From Python 3.14 on the smallest numbers stand in the instructions and not among the constants.
    plain |= {
        repr(number) for what, number in zip(code.co_code[::2], code.co_code[1::2], strict=True) if what == _SMALL
    }
    lines = {line for _, _, line in code.co_lines() if line is not None}
    return code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, plain, lines, within


def _compiled(tree: ast.Module, code: CodeType, flags: int) -> CodeType | None:
    return _named(compile(tree, code.co_filename, "exec", flags=flags, dont_inherit=True), code.co_name)


def _source(code: CodeType, owner: str | None) -> ast.Module:
    """The tree of the source of one function, with its own lines and columns; for a method, in a class of that name."""
    with tokenize.open(code.co_filename) as file:
        lines = file.readlines()
    block = inspect.getblock(lines[code.co_firstlineno - 1 :])
    indented = block[0][:1].isspace() if block else False
    around = f"def around({', '.join(code.co_freevars)}):\n"  # variables from an enclosing function are defined here
    head = f"class {owner}:\n" if owner is not None else around
    text = (head if indented else "\n") + "".join(block)
    return ast.increment_lineno(ast.parse(text), code.co_firstlineno - 2)


def _instrument(function: ast.FunctionDef, *, may_be_compiled: bool) -> None:
    """Puts a call at the beginning of a function, at every return and where it raises."""
    call = partial(_call, may_be_compiled=may_be_compiled)
    body = function.body
    documented = [body[0]] if ast.get_docstring(function, clean=False) is not None else []
    rest = body[len(documented) :] or [ast.copy_location(ast.Pass(), body[0])]
    place = rest[0]
    arguments = function.args
    first = [*arguments.posonlyargs, *arguments.args][:1]
    begins = _at(place, ast.Expr(call("begins", *(ast.Name(each.arg, ast.Load()) for each in first))))
    returns = _Returns(call)
    for each in rest:
        returns.visit(each)
    if not isinstance(rest[-1], ast.Return | ast.Raise):
        rest.append(_at(rest[-1], ast.Return(call("ends", ast.Constant(None)))))
    raised = ast.ExceptHandler(
        type=_at(place, ast.Name("BaseException", ast.Load())),
        name=None,
        body=[_at(place, ast.Expr(call("ends"))), _at(place, ast.Raise())],
    )
    guarded = _at(place, ast.Try(body=rest, handlers=[_at(place, raised)], orelse=[], finalbody=[]))
    function.body = [*documented, begins, guarded]
    function.decorator_list = []


class _Returns(ast.NodeTransformer):
    """Passes a function's return values through ``ends``; functions within it are left alone."""

    def __init__(self, call: Callable[..., ast.expr]) -> None:
        self._call = call

    def visit_Return(self, node: ast.Return) -> ast.Return:
        value = node.value if node.value is not None else ast.copy_location(ast.Constant(None), node)
        node.value = _at(node, self._call("ends", value))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        return node


def _call(method: str, *arguments: ast.expr, may_be_compiled: bool) -> ast.expr:
    """A call of ours; while torch's compiler follows the function, the call's argument instead."""
    call = ast.Call(_attribute(ast.Constant(_MARK), method), list(arguments), [])
    if not may_be_compiled:
        return call
    is_compiling = _attribute(_attribute(ast.Name("torch", ast.Load()), "compiler"), "is_compiling")
    return ast.IfExp(ast.Call(is_compiling, [], []), arguments[0] if arguments else ast.Constant(None), call)


def _attribute(of: ast.expr, name: str) -> ast.Attribute:
    return ast.Attribute(of, name, ast.Load())


def _at(place: ast.AST, made: Any) -> Any:
    """A made node and those below it that have no place yet, at the place of another."""
    for node in _unplaced(made):
        ast.copy_location(node, place)
    return made


def _unplaced(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.stmt | ast.expr | ast.excepthandler) and getattr(node, "lineno", None) is None:
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _unplaced(child)


def _named(code: CodeType, name: str) -> CodeType | None:
    """The code of a function among the constants of a module's or a class's."""
    for const in code.co_consts:
        if isinstance(const, CodeType):
            if const.co_name == name:
                return const
            within = _named(const, name)
            if within is not None:
                return within
    return None
