"""Which line Python ran in, where a thread gave the interpreter's lock up only behind it."""

from __future__ import annotations

import dis
from functools import lru_cache
from types import CodeType
from typing import Final

# What may run Python besides a call; and where Python of whoever asks for the next value runs.
_UNSURE: Final = ("BINARY_", "COMPARE_OP", "CONTAINS_OP", "FOR_ITER", "STORE_SUBSCR", "RESUME", "SEND", "YIELD_VALUE")


@lru_cache(maxsize=512)
def line_before(code: CodeType, at: int) -> int | None:
    """The last line with a call before the one of the instruction at an offset; ``None`` where it is not certain.

    Certain it is in a straight line of code: where the instruction's own line has called nothing before it, nothing
    in between may be Python of its own, and nobody jumps there.

    >>> def step(rows):
    ...     chosen = sorted(rows)
    ...     return abs(len(chosen))
    >>> calls = [one.offset for one in dis.get_instructions(step) if one.opname.startswith("CALL")]
    >>> line_before(step.__code__, calls[1]) - step.__code__.co_firstlineno
    1
    >>> line_before(step.__code__, calls[0]) is None
    True
    """
    # The offset may be that of a cache behind the instruction.
    instructions = [one for one in dis.get_instructions(code) if one.offset <= at]
    own = line_of(code, at)
    for later, one in zip(instructions[:0:-1], instructions[-2::-1], strict=True):
        if later.is_jump_target or one.opname.startswith(_UNSURE):
            return None
        if one.opname.startswith("CALL"):
            line = line_of(code, one.offset)
            return line if line != own else None
    return None


def line_of(code: CodeType, at: int) -> int | None:
    """The line of the instruction at an offset."""
    return next((line for begin, end, line in code.co_lines() if begin <= at < end), None)
