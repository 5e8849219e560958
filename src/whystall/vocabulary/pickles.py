"""Instructions of a pickle that no recording of plain values needs, in words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["REFUSED"]

_CLASS: Final = "makes an object of a class"
_NAME: Final = "names a function or class"
_OUTSIDE: Final = "asks for an object from outside"
_REGISTERED: Final = "names a registered class"

REFUSED: Final[Mapping[int, str]] = MappingProxyType({
    ord("c"): _NAME,
    0x93: _NAME,
    ord("R"): "calls a function",
    ord("b"): "sets the state of an object",
    ord("i"): _CLASS,
    ord("o"): _CLASS,
    0x81: _CLASS,
    0x92: _CLASS,
    ord("P"): _OUTSIDE,
    ord("Q"): _OUTSIDE,
    0x82: _REGISTERED,
    0x83: _REGISTERED,
    0x84: _REGISTERED,
})  # fmt: skip
"""By the instruction's byte, the end of "the pickle …"."""
