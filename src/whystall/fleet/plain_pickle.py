"""Pickles of plain values, read without running anything.

A pickle is a program. This reader accepts only the instructions that build dicts, lists, tuples, strings, numbers,
booleans and None, checks all of them before the first is carried out, and then knows no class. Memory and time are
bounded too: no instruction may need a memo larger than any dump fills, no key is a tuple (the hash of tuples that hold
each other takes for ever), and nested values cannot exceed the size of their text.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import re
from typing import Any, Final, NoReturn

from whystall._native import pickle_trap
from whystall.errors import InputError
from whystall.vocabulary.pickles import REFUSED

__all__ = ["loads"]

_STOP: Final = ord(".")
_LONGEST_STRING: Final = 1 << 20  # bytes; a dump's longest are paths
_LONGEST_INTEGER: Final = 16  # bytes; torch writes 64-bit numbers
_PROTOCOLS: Final = (2, 3, 4, 5)  # 2 is torch's; the others are Python's own of today

# Instructions of a fixed length: marks, containers and constants; numbers; frames; the memo, in which no number may be
# higher than 4,194,303, since room is made for all below it.
_FIXED: Final = re.compile(
    rb"(?:[()\]}taesu\x85\x86\x87N\x88\x89\x94]|[Khq].|M..|J....|[G\x95].{8}|[jr]..[\x00-\x3f]\x00){1,4096}+",
    re.DOTALL,
)
# Instructions followed by a length and that many bytes: how long the length is, and how long the rest may be.
_COUNTED: Final = {
    ord("X"): (4, _LONGEST_STRING),
    0x8C: (1, _LONGEST_STRING),
    0x8A: (1, _LONGEST_INTEGER),
}


class _NoClasses(pickle.Unpickler):
    """An unpickler that resolves no name: the second lock behind the check of every instruction."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        """Raises for any name."""
        raise pickle.UnpicklingError(f"{module}.{name} is asked for")

    def persistent_load(self, pid: Any, /) -> NoReturn:
        """Raises for any object."""
        raise pickle.UnpicklingError(f"the object {pid!r} is asked for")


def loads(data: bytes) -> Any:
    """The plain value in a pickle. Raises ``InputError`` where it would run something, or is damaged.

    >>> loads(pickle.dumps({"entries": [1, (2.5, None)]}))
    {'entries': [1, (2.5, None)]}
    >>> loads(pickle.dumps(len))
    Traceback (most recent call last):
    ...
    whystall.errors.InputError: the pickle names a function or class (at byte 28), which no dump does: it was not run
    """
    _check(data)
    if (trap := pickle_trap(data)) is not None:
        raise InputError(f"the pickle is damaged, or no dump: {trap}")
    copyreg.clear_extension_cache()  # its entries would bypass find_class
    try:
        return _NoClasses(io.BytesIO(data)).load()
    # Errors of a damaged stack of values: an index, a key that is a list, a number out of range.
    except (pickle.UnpicklingError, ValueError, TypeError, LookupError, EOFError, AttributeError) as error:
        raise InputError(f"the pickle is damaged: {error}") from error
    except (MemoryError, RecursionError, OverflowError) as error:
        raise InputError("the pickle is damaged: its values are too large or too deep") from error


def _check(data: bytes) -> None:
    """Raises ``InputError`` unless every instruction is one that builds a plain value."""
    if data[:1] != b"\x80" or len(data) < 2 or data[1] not in _PROTOCOLS:
        raise InputError("it does not begin like a pickle of protocol 2 or later")
    place = 2
    while place < len(data):
        run = _FIXED.match(data, place)
        if run is not None:
            place = run.end()
            continue
        code = data[place]
        if code == _STOP:
            return
        if code not in _COUNTED:
            _refuse(code, place)
        width, most = _COUNTED[code]
        length = int.from_bytes(data[place + 1 : place + 1 + width], "little")
        if length > most:
            raise InputError(f"the pickle is damaged: a value of {length:,} bytes at byte {place:,}")
        place += 1 + width + length
    raise InputError("the pickle ends before its last instruction: was the dump cut off?")


def _refuse(code: int, place: int) -> NoReturn:
    told = REFUSED.get(code)
    if told is None:
        raise InputError(f"the pickle is damaged, or no dump: unexpected instruction {code:#04x} at byte {place:,}")
    raise InputError(f"the pickle {told} (at byte {place:,}), which no dump does: it was not run")
