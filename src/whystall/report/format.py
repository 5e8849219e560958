"""Numbers for people: one place decides units, digits and the word for an unknown value."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from whystall.analysis.tenths import tenths
from whystall.diagnosis.units import UNKNOWN, duration, scaled, significant

__all__ = [
    "OVER",
    "UNKNOWN",
    "count",
    "duration",
    "percent_of_tenths",
    "plural",
    "quantity",
    "rate",
    "ratio",
    "roofline",
    "share",
    "significant",
    "size",
    "tenths",
]

_SIZES = (("B", 1), ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("TiB", 2**40), ("PiB", 2**50))
_RATES = (("", 1), ("k", 10**3), ("M", 10**6), ("G", 10**9), ("T", 10**12), ("P", 10**15), ("E", 10**18))


def size(n_bytes: int | None) -> str:
    """An amount of memory in IEC units.

    >>> size(512), size(1536), size(80 * 2**30)
    ('512 B', '1.50 KiB', '80.0 GiB')
    """
    if n_bytes is None:
        return UNKNOWN
    return f"{n_bytes} B" if abs(n_bytes) < 1000 else scaled(Decimal(n_bytes), _SIZES, 1000)


def rate(value: float | None, unit: str) -> str:
    """A rate in SI units.

    >>> rate(4.56e11, "B/s"), rate(9.89e14, "FLOP/s")
    ('456 GB/s', '989 TFLOP/s')
    """
    if value is None:
        return UNKNOWN
    exact = Decimal(value)
    if not exact.is_finite():
        return UNKNOWN
    number, _, prefix = scaled(exact, _RATES, 1000).partition(" ")
    return f"{number} {prefix}{unit}"


def quantity(value: float | None) -> str:
    """An amount that need not be whole, to four digits.

    >>> quantity(1536.0), quantity(433.061), quantity(0.012346)
    ('1,536', '433.1', '0.01235')
    """
    if value is None or not Decimal(value).is_finite():
        return UNKNOWN
    return significant(Decimal(value), 4)


def count(value: int | None) -> str:
    """A whole number with its thousands set apart.

    >>> count(1234567)
    '1,234,567'
    """
    return UNKNOWN if value is None else f"{value:,}"


def plural(value: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "rank"), plural(2000, "event")
    ('1 rank', '2,000 events')
    """
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}s"


_WHOLE: Final = 1.0005


def share(fraction: float | None) -> str:
    """A fraction as a percentage; a positive one that rounds to nothing is marked.

    >>> share(0.4567), share(0.0001), share(0.0)
    ('45.7 %', '<0.1 %', '0.0 %')
    """
    if fraction is None:
        return UNKNOWN
    return "<0.1 %" if 0 < fraction < 0.0005 else f"{fraction * 100:.1f} %"


OVER: Final = "over 100 %: from a cache, or by an algorithm with less arithmetic (Winograd)"
"""Why a kernel may be faster than the bytes and FLOPs of its operator allow."""


def roofline(fraction: float | None) -> str:
    """The share of what a device allows as a percentage; more is marked, and is no speed (`OVER`).

    >>> roofline(0.703), roofline(2.28)
    ('70.3 %', '>100 %')
    """
    return ">100 %" if fraction is not None and fraction > _WHOLE else share(fraction)


def ratio(part: int, whole: int) -> float | None:
    """A part of a whole as a fraction, unknown where there is no whole."""
    return part / whole if whole else None


def percent_of_tenths(value: int) -> str:
    """Tenths of a percent in words.

    >>> percent_of_tenths(334)
    '33.4 %'
    """
    return f"{value // 10}.{value % 10} %"


def money(cents: int, currency: str) -> str:
    """An amount with its currency.

    >>> money(830, "USD"), money(5, "EUR"), money(123456, "USD")
    ('8.30 USD', '0.05 EUR', '1,234.56 USD')
    """
    return f"{cents // 100:,}.{cents % 100:02} {currency}"
