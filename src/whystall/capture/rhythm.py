"""The period of a loop: which of several optimizers ends an iteration, and which forward pass begins a request.

Both are decided from the events alone, without torch and without a clock: the order in which optimizers step, and the
shapes of a module's inputs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, Literal

Shapes = tuple[tuple[int, ...], ...]
"""The shapes of the tensors that a module is called with."""

# After this many steps of one optimizer alone no other one is expected (WGAN's critic: five times).
MOST_STEPS_ALONE: Final = 8
# Forward passes of one request are separated from others up to this number; longer requests are taken pass by pass.
MOST_IN_REQUEST: Final = 32
# Calls whose shapes all agree are steps of their own after this many.
FORWARDS_BEFORE_STEPS: Final = 8
_PERIODS_SEEN: Final = 3
# The dimensions of tokens, and of their embeddings: samples, places, numbers of a place.
_SEQUENCES: Final = (2, 3)
# Most numbers of one place; one channel of sound has more.
_OF_A_PLACE: Final = 256
# A sequence of prompts that is one token longer once is no decoding; twice in a row it is.
_LEAST_GROWTHS: Final = 2


class Optimizers:
    """Chooses the optimizer that ends an iteration: of those that step in turn the rarest, of equals the last."""

    def __init__(self) -> None:
        self._heard: list[int] = []

    @property
    def any_heard(self) -> bool:
        """Whether an optimizer has stepped that may or may not end iterations."""
        return bool(self._heard)

    def choose(self, optimizer: int, *, several: bool) -> int | None:
        """The one that ends iterations, now that ``optimizer`` has stepped; ``None``: not known yet.

        ``several`` means that more than one was made, so that others may step.
        """
        heard = self._heard
        if not several or heard[-MOST_STEPS_ALONE:] == [optimizer] * MOST_STEPS_ALONE:
            return optimizer
        if optimizer in heard and heard[-1] != optimizer:  # it is its turn again: all others have had theirs
            return min(reversed(list(dict.fromkeys(heard))), key=heard.count)
        heard.append(optimizer)
        return None


def grows(before: Shapes, now: Shapes) -> bool:
    """Whether a call's input is that of the one before, plus one place: a token is appended to a sequence."""
    if len(before) != len(now) or not now:
        return False
    grown = 0
    for old, new in zip(before, now, strict=True):
        if old == new:
            continue
        if len(old) != len(new) or sum(new) != sum(old) + 1 or sum(map(int.__ne__, old, new)) != 1:
            return False
        if len(new) > 1 and old[0] != new[0]:
            return False  # a batch with one more
        grown += 1
    return grown > 0


def shrinks_to_one(before: Shapes, now: Shapes) -> bool:
    """Whether a call receives one place after one with many: the model remembers the rest."""
    if not before or not now or len(before[0]) != len(now[0]) or len(now[0]) < 2:
        return False
    old, new = before[0], now[0]
    return old[0] == new[0] and old[1] > 1 and new[1] == 1 and old[2:] == new[2:]


class Requests:
    """Receives the shapes of every forward pass, and finds those that begin a request.

    ``mode`` is ``None`` until that is known, then ``"each"`` (every pass is a step), ``"decoding"`` (passes that
    continue a sequence belong to the one that began it), ``"in turn"`` (shapes that repeat in the same order) or
    ``"batches"`` (the first pass after a data loader's batch).
    """

    def __init__(self) -> None:
        self.mode: Literal["each", "decoding", "in turn", "batches"] | None = None
        self._heard: list[Shapes] = []
        self._starts: list[int] = []
        self._after_batch: list[int] = []
        self._fetched = self._remembers = False
        self._last: Shapes = ()
        self._key: tuple[Shapes, Shapes] | None = None
        self._since = 0

    def batch_comes(self) -> None:
        """A data loader has handed out a batch."""
        self._fetched = True

    def begins(self, shapes: Shapes) -> bool:
        """Whether a pass begins a request, where passes are not steps one by one."""
        before, fetched = self._last, self._fetched
        self._last, self._fetched = shapes, False
        if self.mode == "each":
            return False
        continues = self._continues(before, shapes)
        if self.mode is None:
            self._learn(shapes, continues=continues, fetched=fetched)
            return False
        if self.mode == "decoding" and continues:
            return False  # however many tokens an answer has
        self._since += 1
        begun = {"decoding": not continues, "in turn": (before, shapes) == self._key, "batches": fetched}[self.mode]
        if begun:
            self._since = 0
        elif self._since > 2 * MOST_IN_REQUEST:
            self.mode = "each"
        return begun

    def _continues(self, before: Shapes, now: Shapes) -> bool:
        if shrinks_to_one(before, now):
            self._remembers = True
            return True
        if grows(before, now):
            return True
        self._remembers = self._remembers and now == before
        return self._remembers

    def _learn(self, shapes: Shapes, *, continues: bool, fetched: bool) -> None:
        heard = self._heard
        if not continues:
            self._starts.append(len(heard))
        if fetched:
            self._after_batch.append(len(heard))
        heard.append(shapes)
        self.mode = self._mode()

    def _mode(self) -> Literal["each", "decoding", "in turn", "batches"] | None:
        heard, count = self._heard, len(self._heard)
        longest = max((b - a for a, b in pairwise(self._starts)), default=0)
        if longest > _LEAST_GROWTHS and len(self._starts) > _LEAST_GROWTHS:
            return "decoding"
        if count > FORWARDS_BEFORE_STEPS and _LEAST_GROWTHS < len(self._after_batch) <= count // 2:
            return "batches"
        by_batch = len(self._after_batch) > count // 2
        if count <= FORWARDS_BEFORE_STEPS or (not by_batch and self._may_go_on()):
            return None
        if len(set(heard)) == 1 or by_batch:
            return "each"
        for period in range(2, count // _PERIODS_SEEN + 1):
            if heard[period:] == heard[:-period]:
                self._key = _unique(heard[: period + 1])
                return "in turn" if self._key is not None else "each"
        alone = len(set(heard)) == count == len(self._starts)  # nothing comes twice or goes on: no request of several
        return "each" if alone or count > MOST_IN_REQUEST else None

    def _may_go_on(self) -> bool:
        """Whether an answer of many places may be under way, from its midst or for the first time.

        The next call decides.
        """
        last, count = self._heard[-1], len(self._heard)
        one_place = last and len(last[0]) in _SEQUENCES and last[0][1] == 1 and last[0][-1] <= _OF_A_PLACE
        if len(set(self._heard)) == 1:
            return bool(one_place) and count <= MOST_IN_REQUEST
        going = max((b - a for a, b in pairwise([*self._starts, count])), default=0)
        several = len(self._starts) > 1 and _LEAST_GROWTHS < going <= MOST_IN_REQUEST
        return several and MOST_IN_REQUEST <= count <= _PERIODS_SEEN * MOST_IN_REQUEST


def _unique(period: list[Shapes]) -> tuple[Shapes, Shapes] | None:
    """Two shapes in a row that come once in a period: there a request is taken to begin, rather where the first did."""
    pairs = list(pairwise(period))
    pairs = [pairs[-1], *pairs[:-1]]
    return next((pair for pair in pairs if pairs.count(pair) == 1), None)
