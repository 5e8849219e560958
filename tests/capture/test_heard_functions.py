"""A function that is heard stays the function it is: for pickles, copies, inspection, tracebacks and type hints."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import os
import pickle
import subprocess
import sys
import traceback
import typing
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from whystall.capture.heard_functions import hear

SOURCE = '''\
from __future__ import annotations
import contextlib, functools

def gives(number: int, *more: int, by: float = 2.0) -> list[float]:
    """Divides."""
    def within():
        return "of its own"
    if number < 0:
        return
    found = [
        each / by
        for each in (number, *more)
    ]
    return found

def says(): "Only says."

def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **named):
        return function(*args, **named)
    return wrapper

@decorated
def shout(word):
    return word.upper()

class Base:
    def __enter__(self): return "base"

class Child(Base):
    __secret = 3

    def __enter__(self):
        try:
            return super().__enter__(), self.__secret
        finally:
            self.left = True

def enclosed(kept):
    def function():
        return kept
    return function
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    path = tmp_path / "heard_here.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("heard_here", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "heard_here", made)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def told() -> list[Any]:
    return []


def heard(function: Any, told: list[Any]) -> Any:
    return hear(function, lambda *first: told.append(first), told.append)


def about(function: Any) -> dict[str, Any]:
    """What a program can ask of a function."""
    code = inspect.unwrap(function).__code__
    return {
        "signature": inspect.signature(function),
        "hints": typing.get_type_hints(function),
        "pickle": pickle.dumps(function),
        "source": inspect.getsource(function),
        "names": (function.__name__, function.__qualname__, function.__module__, function.__doc__),
        "kind": (inspect.isfunction(function), inspect.isroutine(function), type(function)),
        "code": (code.co_filename, code.co_firstlineno, code.co_name, code.co_argcount, code.co_flags),
        "arguments": inspect.getfullargspec(function),
        "attributes": dict(vars(function)),
        "defaults": (function.__defaults__, function.__kwdefaults__),
    }


@pytest.mark.parametrize("name", ["gives", "says", "shout", "Child.__enter__"])
def test_nothing_that_can_be_asked_of_it_changes(module: ModuleType, told: list[Any], name: str) -> None:
    function: Any = module
    for part in name.split("."):
        function = getattr(function, part)
    before, code = about(function), inspect.unwrap(function).__code__
    end = heard(function, told)
    assert about(function) == before
    assert copy.deepcopy(function) is pickle.loads(pickle.dumps(function)) is weakref.ref(function)() is function  # noqa: S301
    assert inspect.unwrap(function).__code__ is not code
    end()
    assert inspect.unwrap(function).__code__ is code


def test_its_calls_are_told_and_give_what_they_gave(module: ModuleType, told: list[Any]) -> None:
    end = heard(module.gives, told)
    assert module.gives(4, 6) == [2.0, 3.0]
    assert module.gives(-1) is None
    with pytest.raises(ZeroDivisionError):
        module.gives(1, by=0)
    assert told == [(4,), [2.0, 3.0], (-1,), None, (1,), None]
    told.clear()
    endings = [heard(module.says, told), heard(module.shout, told), heard(module.Child.__enter__, told)]
    child = module.Child()
    assert (module.says(), module.shout("a"), child.__enter__()) == (None, "A", ("base", 3))
    assert told == [(), None, ("a",), "A", (child,), ("base", 3)]
    assert child.left
    for each in (end, *endings):
        each()
    told.clear()
    module.gives(4), module.shout("a")
    assert told == []


def test_one_that_takes_from_a_function_around_it_is_heard(module: ModuleType, told: list[Any]) -> None:
    one, other = module.enclosed(3), module.enclosed(4)
    end = heard(one, told)
    assert (one(), other(), told) == (3, 4, [(), 3])
    end()


def test_several_may_hear_and_each_ends_by_itself(module: ModuleType, told: list[Any]) -> None:
    code = module.gives.__code__
    first, second = heard(module.gives, told), heard(module.gives, told)
    module.gives(1)
    assert len(told) == 4
    first()
    first()
    module.gives(1)
    assert len(told) == 6
    second()
    assert module.gives.__code__ is code


def test_a_traceback_is_the_same(module: ModuleType, told: list[Any]) -> None:
    def raised() -> str:
        try:
            module.gives("word")
        except TypeError:
            return traceback.format_exc()
        raise AssertionError

    def within() -> str:
        try:
            module.gives(2, by=0)
        except ZeroDivisionError:
            return traceback.format_exc()
        raise AssertionError

    before = raised(), within()
    end = heard(module.gives, told)
    assert (raised(), within()) == before
    end()


def test_what_listeners_raise_is_dropped(module: ModuleType) -> None:
    end = hear(module.gives, lambda _: 1 / 0, lambda _: 1 / 0)
    assert module.gives(4) == [2.0]
    end()


def test_what_cannot_be_heard_is_refused_and_stays_as_it_is(module: ModuleType, told: list[Any]) -> None:
    with pytest.raises(TypeError, match="no function written in Python"):
        heard(len, told)
    made = eval("lambda number: number")  # noqa: S307 - of no file
    with pytest.raises(OSError, match=r".+"):
        heard(made, told)
    path = Path(module.gives.__code__.co_filename)
    path.write_text(SOURCE.replace("each / by", "each / by + 1"))
    with pytest.raises(OSError, match="gives: what runs is not its source"):
        heard(module.gives, told)
    path.write_text("\n" + SOURCE)
    with pytest.raises(OSError, match="gives: what runs is not its source"):
        heard(module.gives, told)


def test_a_code_that_somebody_else_put_there_stays(module: ModuleType, told: list[Any]) -> None:
    end = heard(module.gives, told)
    module.gives.__code__ = theirs = (lambda number, *more, by=2.0: "theirs").__code__
    end()
    assert module.gives.__code__ is theirs
    assert module.gives(1) == "theirs"


EXITS = """
import copy, inspect, os, pickle, sys
from whystall._native import hear_exit
before = os._exit
hear_exit(os._exit, lambda: print("ends", flush=True))
assert os._exit is before is copy.deepcopy(os._exit) is pickle.loads(pickle.dumps(os._exit))
assert inspect.isbuiltin(os._exit) and os._exit.__name__ == "_exit" and str(inspect.signature(os._exit)) == "(status)"
for wrong in ((), ("x",), (1, 2)):
    try:
        os._exit(*wrong)
    except TypeError:
        print("goes on")
os._exit(*[7] if sys.argv[1] == "place" else [], **{} if sys.argv[1] == "place" else {"status": 7})
"""


@pytest.mark.parametrize("how", ["place", "name"])
def test_the_end_of_a_process_is_heard_and_os_exit_is_itself(how: str) -> None:
    done = subprocess.run([sys.executable, "-c", EXITS, how], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "goes on\n" * 3 + "ends\n", "")
    assert inspect.isbuiltin(os._exit)
