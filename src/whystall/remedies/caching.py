"""Keeps the samples of a map-style data set, or what it reads for one, where making it has the same result each time.

Only repeatable code is trusted: calls of libraries that draw nothing at random, methods of values, the program's
own functions of these. Anything else may vary from epoch to epoch, and the data set is left alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from whystall.remedies.program import Change, Program
from whystall.remedies.source import dotted

_VARIES: Final = re.compile(
    r"\w*rand\w*|\w*rng\w*|gen\w*|shuffle\w*|choices?|sample|uniform|normal|bernoulli|exponential|perm(?!ute$)\w*|\w*aug\w*"
    r"|\w*transforms?|\w*jitter\w*|\w*noise\w*|\w*dropout\w*|\w*mask\w*|next|time\w*|\w*counter\w*|now|today|urandom"
)
_LIBRARIES: Final = frozenset(
    {"torch", "np", "numpy", "Image", "PIL", "json", "os", "math", "cv2", "F", "functional", "pd", "pandas", "Path"}
)
_BUILTINS: Final = frozenset(
    {"len", "int", "float", "str", "bool", "list", "tuple", "dict", "set", "range", "enumerate", "zip", "min", "max",
     "sum", "sorted", "abs", "round", "isinstance", "open", "ord", "chr", "map", "slice", "bytes", "any", "all"}
)  # fmt: skip
_METHODS: Final = frozenset(
    {"float", "long", "int", "double", "half", "to", "type", "view", "reshape", "permute", "transpose", "contiguous",
     "unsqueeze", "squeeze", "flatten", "astype", "copy", "clone", "tolist", "numpy", "item", "sum", "mean", "convert",
     "resize", "crop", "read", "decode", "encode", "split", "strip", "lower", "upper", "replace", "join", "get", "keys",
     "values", "items", "append", "extend", "format", "startswith", "endswith", "div", "mul", "sub", "add"}
)  # fmt: skip
_TOKENIZERS: Final = re.compile(r"\w*tok(?:enizer)?|\w*vocab|stoi|itos|\w*2\w*")
_WRAPPED: Final = re.compile(r"\w*(?:dataset|base|inner|subset|wrapped)|ds|data")
_READS: Final = re.compile(r"open|(.*\.)?(open|load|loads|imread|read\w*|encode|decode)|.*tok(enizer)?")
_DEEPEST: Final = 4


def kept_samples(program: Program) -> Iterator[Change]:
    """The changes by which the program's data sets keep their samples; none where it has none that may."""
    for source in program.sources:
        owners = (node for node in source.nodes() if isinstance(node, ast.ClassDef))
        lines = [source.before(made, "@functools.cache") for owner in owners if (made := _made(program, owner))]
        imported = any("functools" in _imported(node) for node in source.nodes())
        header = None if imported else source.after_imports("import functools", of=None)
        if not lines or None in lines or (header is None and not imported):
            continue
        yield from ((source.name, line) for line in (*lines, header) if line is not None)


def _imported(node: ast.AST) -> set[str]:
    return {one.asname or one.name for one in node.names} if isinstance(node, ast.Import) else set()


def _made(program: Program, owner: ast.ClassDef) -> ast.FunctionDef | None:
    """The method that makes a sample, or reads what one is made of, where its result can be kept."""
    if owner.decorator_list or not any(re.fullmatch(r"(.*\.)?Dataset", dotted(_plain(base))) for base in owner.bases):
        return None
    methods = {node.name: node for node in owner.body if isinstance(node, ast.FunctionDef)}
    made = methods.get("__getitem__")
    if made is None or made.decorator_list or len(made.args.args) != 2 or "__eq__" in methods:
        return None
    later = (node for name, method in methods.items() if name != "__init__" for node in ast.walk(method))
    if any(_root(target) == "self" for node in later for target in _targets(node)):
        return None
    return made if not _may_vary(program, methods, made, _DEEPEST) else _read(program, methods, made)


def _read(program: Program, methods: dict[str, ast.FunctionDef], made: ast.FunctionDef) -> ast.FunctionDef | None:
    """The method that reads what a sample is made of, where its result is the same each time and the sample is not.

    A picture is read and resized, and then flipped at random. If the sample changes in place what was read, its losses
    differ, and the edit is not kept.
    """
    for call in (node for node in ast.walk(made) if isinstance(node, ast.Call)):
        _, _, name = dotted(call.func).rpartition("self.")
        own = methods.get(name)
        if own is None or own.decorator_list or len(call.args) != 1 or call.keywords or len(own.args.args) != 2:
            continue
        reads = any(isinstance(node, ast.Call) and _READS.fullmatch(dotted(node.func)) for node in ast.walk(own))
        if reads and not _may_vary(program, methods, own, _DEEPEST):
            return own
    return None


def _plain(base: ast.expr) -> ast.expr:
    """A base class without its parameters: ``Dataset[int]``."""
    return base.value if isinstance(base, ast.Subscript) else base


def _targets(node: ast.AST) -> list[ast.expr]:
    """The targets of an assignment."""
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def _root(node: ast.expr) -> str:
    """The variable that an attribute or an element is of."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _may_vary(program: Program, methods: dict[str, ast.FunctionDef], function: ast.FunctionDef, deepest: int) -> bool:
    """Whether two calls of a function may have different results."""
    for node in ast.walk(function):
        if isinstance(node, ast.Yield | ast.YieldFrom | ast.Await | ast.Global | ast.Nonlocal | ast.Delete):
            return True
        wraps = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and _root(node) == "self"
        if wraps and isinstance(node, ast.Subscript) and _WRAPPED.fullmatch(dotted(node.value).rpartition(".")[2]):
            return True
        if isinstance(node, ast.Call) and not _is_known(program, methods, node, function, deepest):
            return True
    return False


def _is_known(
    program: Program, methods: dict[str, ast.FunctionDef], call: ast.Call, inside: ast.FunctionDef, deepest: int
) -> bool:
    """Whether a call is known to have the same result for the same arguments."""
    name = dotted(call.func)
    first, *rest = name.split(".")
    last = call.func.attr if isinstance(call.func, ast.Attribute) else first
    if any(_VARIES.fullmatch(part) for part in (first, *rest, last)):
        return False
    own = methods.get(last) if name == f"self.{last}" else _function(program, name)
    if own is not None:
        return own is inside or (deepest > 0 and not _may_vary(program, methods, own, deepest - 1))
    if name in _BUILTINS or (first in _LIBRARIES and (rest or first == "Path")):
        return True
    if first == "self" and rest and _TOKENIZERS.fullmatch(rest[0]):
        return True
    return isinstance(call.func, ast.Attribute) and last in _METHODS


def _function(program: Program, name: str) -> ast.FunctionDef | None:
    """The program's own function of a name, where there is one of it."""
    found = [
        node
        for source in program.sources
        for node in (source.tree.body if source.tree is not None else ())
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    return found[0] if len(found) == 1 else None
