"""Finds the module whose forward passes are the steps of a job without an optimizer, by a clock.

First the largest module is guessed, and again as others are made; if that is not called, it is the one that is. If
models are made again and again, and dropped, the next one called is followed by its class.
"""

from __future__ import annotations

from typing import Final, Literal

_IS_COMPLETE_NS: Final = 500_000_000
# If the guessed model of a job without an optimizer is not called for this time, it is another one.
_GUESS_HOLDS_NS: Final = 1_500_000_000
# If modules are made repeatedly, more of them are gone than alive.
_MOSTLY_GONE: Final = 0.5


class ModuleSearch:
    """The progress of the search; times are nanoseconds of one clock."""

    def __init__(self) -> None:
        self._made = self._made_ns = 0
        self._guessed_at = -1
        self._guessed_ns: int | None = None
        self._by_call = False
        self._first_ns: int | None = None
        self._gone = 0

    def heard(self, made: int, living: int, now_ns: int) -> None:
        """Records the numbers of modules made until now, and still alive."""
        if made != self._made:
            self._made, self._made_ns = made, now_ns
        if made > 0 and self._first_ns is None:
            self._first_ns = now_ns
        self._gone = made - living

    def makes_them_anew(self, now_ns: int) -> bool:
        """Whether models are made repeatedly: every look finds new ones, and most earlier ones are gone."""
        lately = now_ns - self._made_ns <= _IS_COMPLETE_NS
        lasting = self._first_ns is not None and now_ns - self._first_ns > _GUESS_HOLDS_NS
        return lately and lasting and self._gone > _MOSTLY_GONE * self._made

    def is_complete(self, now_ns: int) -> bool:
        """Whether there is a model, and nothing was added to it lately."""
        return self._made > 0 and now_ns - self._made_ns > _IS_COMPLETE_NS

    def next(self, now_ns: int) -> Literal["guess", "by call", "by kind"] | None:
        """The next action while no forward pass is observed."""
        if self.makes_them_anew(now_ns):
            first, self._by_call = not self._by_call, True
            return "by kind" if first else None
        if self._guessed_ns is None:
            self._guessed_ns = now_ns
        if not self._by_call and now_ns - self._guessed_ns > _GUESS_HOLDS_NS:
            self._by_call = True
            return "by call"
        if self._made != self._guessed_at:
            self._guessed_at = self._made
            return "guess"
        return None

    def later(self) -> None:
        """A guess could not be made just now."""
        self._guessed_at = -1
