"""The job's containers and modules, read without a call of any method of the job's classes.

A batch may hand its tensors out once, and a module may override ``parameters()``: what we call, the job would notice.
"""

from __future__ import annotations

import sys
from collections import UserDict
from collections.abc import Iterator
from typing import Any, cast


def items_in(thing: object) -> list[Any] | None:
    """The items of a list or tuple, or the values of a dict; of a subclass those that the built-in class holds.

    ``None`` for anything else; of dicts behind another class (``UserDict``, as tokenizers return) the dict's.
    """
    kind, given = type(thing), cast("Any", thing)  # isinstance() asks an object for its class
    if issubclass(kind, dict):
        return list(dict.values(given))
    if issubclass(kind, list):
        return list(list.__iter__(given))
    if issubclass(kind, tuple):
        return list(tuple.__iter__(given))
    if issubclass(kind, UserDict):
        held = attributes_of(thing).get("data")
        return None if held is None or issubclass(type(held), UserDict) else items_in(held)
    return None


def parts_of(module: Any) -> Iterator[Any]:
    """A module and all modules in it, once each, as ``Module.modules()`` yields them."""
    seen, stack = set[int](), [module]
    while stack:
        part = stack.pop()
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        stack += reversed(_held(part, "_modules"))


def parameters_of(module: Any) -> Iterator[Any]:
    """The parameters of a module and of all modules in it, once each."""
    seen = set[int]()
    for part in parts_of(module):
        for parameter in _held(part, "_parameters"):
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter


def _held(part: Any, name: str) -> list[Any]:
    """The values of one of a module's own dicts; TorchScript keeps its modules elsewhere."""
    held = attributes_of(part).get(name)
    found = None if held is None else items_in(held)
    if found is not None:
        return found
    script = getattr(getattr(sys.modules.get("torch"), "jit", None), "ScriptModule", ())
    return [] if not isinstance(part, script) else list(getattr(part, name, {}).values())


def attributes_of(thing: object) -> dict[str, Any]:
    """An object's own attributes, read without a method of its class."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}
