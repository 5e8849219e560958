"""Which lengths suit a fast Fourier transform: those that are products of small primes."""

from __future__ import annotations

from functools import cache
from itertools import count

_SMOOTH = (2, 3, 5)


@cache
def largest_factor(length: int) -> int:
    """The largest prime factor of a length; 1 of lengths below 2.

    >>> largest_factor(4211), largest_factor(4320), largest_factor(2 * 67)
    (4211, 5, 67)
    """
    largest, left, factor = 1, length, 2
    while factor * factor <= left:
        while left % factor == 0:
            largest, left = factor, left // factor
        factor += 1
    return max(largest, left) if left > 1 else largest


@cache
def next_smooth(length: int) -> int:
    """The smallest length of no less that has no prime factor above 5.

    >>> next_smooth(4211), next_smooth(4096)
    (4320, 4096)
    """
    return next(one for one in count(max(length, 1)) if _is_smooth(one))


def _is_smooth(length: int) -> bool:
    for factor in _SMOOTH:
        while length % factor == 0:
            length //= factor
    return length == 1
