"""Times and amounts as people read them, in verdicts as in reports."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal

_MOST_TIMES = 100
UNKNOWN = "\N{EN DASH}"
_DURATIONS = (("ns", 1), ("µs", 10**3), ("ms", 10**6), ("s", 10**9))


def significant(value: Decimal, digits: int = 3) -> str:
    """A number with ``digits`` significant digits and no exponent.

    >>> significant(Decimal("0.012345")), significant(Decimal("12.0")), significant(Decimal(123456))
    ('0.0123', '12.0', '123,456')
    """
    if not value:
        return "0"
    exponent = value.adjusted() - digits + 1
    rounded = value.quantize(Decimal(1).scaleb(min(exponent, 0)), rounding=ROUND_HALF_EVEN)
    if rounded.adjusted() > value.adjusted() and exponent < 0:
        rounded = rounded.quantize(Decimal(1).scaleb(exponent + 1))
    return f"{rounded:,f}"


def scaled(value: Decimal, units: Sequence[tuple[str, int]], step: int) -> str:
    """A number in the largest of some units in which it is at least one; ``step`` is the factor between them."""
    name, scale = units[0]
    for name, scale in units:
        if name == units[-1][0] or abs(value) / scale < step - Decimal("0.5"):
            break
    return f"{significant(value / scale)} {name}".rstrip()


def duration(ns: int | None) -> str:
    """A span of time with three significant digits.

    >>> duration(812), duration(12_345_678), duration(999_999), duration(129_012_000_000)
    ('812 ns', '12.3 ms', '1.00 ms', '129 s')
    """
    if ns is None:
        return UNKNOWN
    return f"{ns} ns" if abs(ns) < 1000 else scaled(Decimal(ns), _DURATIONS, 1000)


def times(speedup: float) -> str:
    """A speed-up. If a replay leaves next to nothing, the cause is nearly everything, and the exact factor is unknown.

    >>> times(1.234), times(241.6)
    ('1.23', 'over 100')
    """
    return f"{speedup:.2f}" if speedup < _MOST_TIMES else f"over {_MOST_TIMES}"
