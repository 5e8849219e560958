"""Purpose of each allocation, with the evidence: its stack, its lifetime, its phase, and the code that freed it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.memory.lifetimes import BEFORE, Lifetimes
from whystall.memory.phases import Phase, Phases
from whystall.memory.results import Category
from whystall.memory.snapshot import Action, DeviceRecord
from whystall.memory.stacks import Mark, Stacks

__all__ = ["CATEGORIES", "NUMBERS", "Judge", "Purposes"]

CATEGORIES: Final = tuple(Category)
NUMBERS: Final = {category: number for number, category in enumerate(CATEGORIES)}

Flags = NDArray[np.bool_]
Rows = NDArray[np.int64]

# A pass without gradients frees the results of its lines as it goes on, except those of a few lines (a cache of keys
# and values, an output).
_REPEATED: Final = 4  # calls of a line in a pass: fewer do not show whether it keeps or frees
_LEAST_REPEATED: Final = 3  # lines with that many calls that keep: more than a cache of keys and values needs
_SHARE_REPEATED: Final = 0.2  # of the lines with that many calls
_LEAST_LINES: Final = 8  # lines of a pass without repetition
_SHARE_LINES: Final = 0.5
_MANY: Final = 4  # allocations of one line that a step of an optimizer holds at a time

_MADE_FORWARD: Final = "made in a forward pass, and still there in the backward pass"
_NO_SIGN: Final = (
    "made in a forward pass and still held; no backward pass follows in the record, and too few lines keep their "
    "results to conclude that gradients are on"
)


@dataclass(frozen=True, slots=True)
class Purposes:
    """By allocation: the number of its category in `CATEGORIES`, and that of its reason in ``because``."""

    category: NDArray[np.int8]
    reason: NDArray[np.int16]
    because: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Pass:
    """A forward pass up to an event: the calls that keep their allocations, and the signs that gradients are on."""

    keeping: Rows
    signs: str | None


@dataclass(frozen=True, slots=True)
class _Rule:
    holds: Flags
    category: Category
    because: str


class Judge:
    """Finds the purpose of the allocations of one device."""

    def __init__(self, record: DeviceRecord, alive: Lifetimes, stacks: Stacks, phases: Phases) -> None:
        self._alive, self._stacks, self._phases = alive, stacks, phases
        self._events = len(phases.at)
        self._marks = stacks.marks_of(alive.stack)
        self._recorded = alive.begin != BEFORE
        self._phase = np.append(phases.at, np.int8(Phase.UNKNOWN))[np.where(self._recorded, alive.begin, -1)]
        self._stays = alive.end >= self._events
        self._left_phase = alive.end >= self._next(_changes(phases.at))
        self._sees_optimizer = alive.end >= self._next(phases.starts(Phase.OPTIMIZER))
        self._sees_backward = alive.end >= self._next(phases.starts(Phase.BACKWARD))
        self._is_forward = self._recorded & (self._phase == Phase.FORWARD)
        self._is_backward = self._recorded & (self._phase == Phase.BACKWARD)
        self._saved = self._freed_by(record, Mark.SAVED)
        self._ran_out = bool((record.events.action == Action.OOM).any())
        self._calls = stacks.calls_of(alive.stack)

    def of(self, rows: Rows, at: int | None) -> Purposes:
        """Purpose of the allocations ``rows``, all of which hold memory right after the event ``at``."""
        under_way = _Pass(np.zeros(0, np.int64), None) if at is None else self._pass_at(at)
        rules = [*self._made_for_good(), *self._made_before(under_way), *self._made_in_a_pass(under_way)]
        reasons = (*dict.fromkeys(rule.because for rule in rules), self._untold())
        numbers = {because: number for number, because in enumerate(reasons)}
        holds = [rule.holds[rows] for rule in rules]
        category = np.select(holds, [NUMBERS[rule.category] for rule in rules], NUMBERS[Category.UNKNOWN])
        reason = np.select(holds, [numbers[rule.because] for rule in rules], len(reasons) - 1)
        return Purposes(category.astype(np.int8), reason.astype(np.int16), reasons)

    # --- rules, the first that holds counts ---------------------------------------------------------------------------

    def _made_for_good(self) -> list[_Rule]:
        """Purposes known from frames, in any pass."""
        stays, left = self._stays, self._left_phase
        unfinished = self._has(Mark.OPTIMIZER) & self._recorded & stays & ~left & self._ran_out
        works = unfinished & self._has(Mark.OPTIMIZER_WORK) & ~self._has(Mark.OPTIMIZER_STATE)
        few = unfinished & ~self._has(Mark.OPTIMIZER_STATE) & ~self._many_held()
        made = self._has(Mark.PARAMETERS) & ~self._has(Mark.FORWARD) & stays
        reduced = self._has(Mark.COMMUNICATION) & self._is_backward & self._sees_optimizer & ~self._kept()
        return [
            _Rule(works | few, Category.TEMPORARIES, "made by the optimizer for the step that was under way"),
            _Rule(self._has(Mark.OPTIMIZER | Mark.OPTIMIZER_STATE) & (stays | left), Category.OPTIMIZER_STATE,
                  "made by the optimizer, and still there after its step"),
            _Rule(self._has(Mark.OPTIMIZER), Category.TEMPORARIES, "freed in the phase in which it was made"),
            _Rule(self._has(Mark.WORKSPACE), Category.WORKSPACE, "asked for by cuBLAS or cuDNN as its workspace"),
            _Rule(reduced, Category.GRADIENTS, "left by a collective of the backward pass to the optimizer"),
            _Rule(self._has(Mark.COMMUNICATION), Category.COMMUNICATION, "asked for by torch.distributed"),
            _Rule(self._has(Mark.INPUT), Category.INPUT, "asked for by torch.utils.data"),
            _Rule(made, Category.PARAMETERS, "made, moved or loaded by torch.nn, and still there at the end"),
        ]  # fmt: skip

    def _made_before(self, under_way: _Pass) -> list[_Rule]:
        """Memory that no event allocates; the other blocks have stacks."""
        kept = np.isin(self._calls, under_way.keeping) & (under_way.signs is not None)
        kept = ~self._recorded & self._has(Mark.FORWARD) & (self._calls >= 0) & (kept | self._kept_earlier())
        return [
            _Rule(~self._recorded & self._saved, Category.ACTIVATIONS,
                  "made before the record began, and given back by autograd, which had saved it for the backward pass"),
            _Rule(kept, Category.ACTIVATIONS,
                  "made by a module's call before the record began; the same call keeps what it makes in the record"),
            _Rule(~self._recorded, Category.BEFORE, "no event of the record allocates it"),
        ]  # fmt: skip

    def _made_in_a_pass(self, under_way: _Pass) -> list[_Rule]:
        """Purposes known from lifetimes and phases."""
        stays, left, forward, backward = self._stays, self._left_phase, self._is_forward, self._is_backward
        recomputed = backward & self._has(Mark.FORWARD)
        seen = forward & self._sees_backward & ~self._kept()
        pending = forward & ~self._sees_backward & ~self._kept()
        earlier = pending & (stays | left) & self._kept_earlier()
        outlived = pending & (stays | left | self._outlives_its_line())
        on = np.full(len(stays), under_way.signs is not None)
        waited = (self._phases.starts(Phase.OPTIMIZER).size > 0) & backward & ~stays
        passing = forward | backward | (self._phase == Phase.SETUP)
        return [
            _Rule(self._has(Mark.GRADIENT), Category.GRADIENTS, "made by autograd's AccumulateGrad"),
            _Rule(backward & ~recomputed & self._sees_optimizer, Category.GRADIENTS,
                  "made in the backward pass, and still there when the optimizer ran"),
            _Rule(self._saved & forward, Category.ACTIVATIONS,
                  "made in a forward pass, and given back by autograd, which had saved it for the backward pass"),
            _Rule(recomputed, Category.ACTIVATIONS, "computed again in the backward pass"),
            _Rule(seen, Category.ACTIVATIONS, _MADE_FORWARD),
            _Rule(earlier, Category.ACTIVATIONS,
                  "made in a forward pass and still held; earlier passes kept this line's for the backward pass"),
            _Rule(outlived & on, Category.ACTIVATIONS,
                  f"made in the forward pass under way and still held, and gradients are on: {under_way.signs}"),
            _Rule(backward & ~recomputed & left & ~self._kept(), Category.GRADIENTS,
                  "made in the backward pass, and still there when it had ended"),
            _Rule(passing & ~stays & ~left, Category.TEMPORARIES, "freed in the phase in which it was made"),
            _Rule(waited, Category.TEMPORARIES, "made in the backward pass, and freed before the optimizer ran"),
            _Rule(forward & (stays | left), Category.UNKNOWN, _NO_SIGN),
            _Rule(backward & stays, Category.UNKNOWN,
                  "made in the backward pass that was under way: a gradient, or a value on the way to one"),
            _Rule(self._by_the_program() & self._in_a_constructor() & stays, Category.PARAMETERS,
                  "made in a constructor before the first pass, and still there at the end"),
            _Rule(self._by_the_program() & (stays | left), Category.PROGRAM,
                  "made by a line outside modules, backward pass and optimizer, and still there in the next pass"),
            _Rule(self._by_the_program(), Category.TEMPORARIES, "freed before another pass began"),
        ]  # fmt: skip

    def _untold(self) -> str:
        if not (self._alive.stack >= 0).any():
            return "no call stacks were recorded"
        return "made outside of modules, backward pass and optimizer, with a lifetime that fits several purposes"

    # --- evidence -----------------------------------------------------------------------------------------------------

    def _has(self, mark: Mark) -> Flags:
        return (self._marks & mark) > 0

    def _next(self, rows: Rows) -> Rows:
        """The first of ``rows`` after each beginning."""
        out: Rows = np.append(rows, self._events + 1)[np.searchsorted(rows, self._alive.begin, side="right")]
        return out

    def _kept(self) -> Flags:
        """Memory that outlives the step after its own is no activation."""
        steps = self._phases.steps
        after = np.searchsorted(steps, self._alive.begin, side="right") + 1
        never = self._events + 1
        limit: Rows = np.append(steps, [never, never])[np.minimum(after, len(steps) + 1)]
        out: Flags = self._recorded & (self._alive.end > limit)
        return out

    def _freed_by(self, record: DeviceRecord, mark: Mark) -> Flags:
        """Memory freed under functions of a kind, where frees have stacks of their own."""
        ended = self._alive.end < self._events
        stack = np.full(len(ended), -1, np.int64)
        stack[ended] = record.events.stack[self._alive.end[ended]]
        found: Flags = ended & ((self._stacks.marks_of(stack) & mark) > 0)
        return found

    def _many_held(self) -> Flags:
        """Memory of a line that holds many of its allocations to the end."""
        held = self._recorded & self._stays & (self._calls >= 0)
        number = np.bincount(self._calls[held], minlength=int(self._calls.max(initial=-1)) + 2)
        out: Flags = number[self._calls] >= _MANY
        return out & (self._calls >= 0)

    def _kept_earlier(self) -> Flags:
        """Memory of lines that kept at least half of it to the backward pass, where there was one."""
        known = (
            self._is_forward & (self._calls >= 0) & (self._next(self._phases.starts(Phase.BACKWARD)) <= self._events)
        )
        size = int(self._calls.max(initial=-1)) + 2
        made = np.bincount(self._calls[known], minlength=size)
        kept = np.bincount(self._calls[known & self._sees_backward], minlength=size)
        keeps = (made > 0) & (kept * 2 >= made)
        keeps[-1] = False
        found: Flags = keeps[self._calls]
        return found

    def _by_the_program(self) -> Flags:
        """Memory of Python lines outside of all passes, where passes are known."""
        lines = np.array([*(site.is_line for site in self._stacks.sites), False], np.bool_)
        seen = bool(np.isin(self._phases.at, [Phase.FORWARD, Phase.BACKWARD]).any())
        site = self._stacks.sites_of(self._alive.stack)
        found: Flags = self._recorded & (self._phase == Phase.UNKNOWN) & lines[site] & seen
        return found

    def _in_a_constructor(self) -> Flags:
        """Memory of constructors before the first pass, without a constructor of torch's own on the stack."""
        makes = np.array([*(site.function == "__init__" for site in self._stacks.sites), False], np.bool_)
        passes = np.flatnonzero(np.isin(self._phases.at, [Phase.FORWARD, Phase.BACKWARD]))
        first = int(passes[0]) if len(passes) else -1
        found: Flags = makes[self._stacks.sites_of(self._alive.stack)] & (self._alive.begin < first)
        return found

    def _outlives_its_line(self) -> Flags:
        """Memory still held when its line ran again: no temporary value."""
        order = np.lexsort((self._alive.begin, self._calls))
        calls, begin = self._calls[order], self._alive.begin[order]
        again = np.full(len(order), self._events + 1)
        if len(order):
            again[:-1] = np.where(calls[1:] == calls[:-1], begin[1:], self._events + 1)
        following = np.empty_like(again)
        following[order] = again
        found: Flags = self._recorded & (self._calls >= 0) & (self._alive.end > following)
        return found

    def expects_backward(self, at: int) -> bool:
        """Whether a backward pass will follow the forward pass of an event."""
        if not 0 <= at < self._events or self._phases.at[at] != Phase.FORWARD:
            return False
        return bool((self._phases.at == Phase.BACKWARD).any()) or self._pass_at(at).signs is not None

    def _pass_at(self, at: int) -> _Pass:
        """The forward pass around an event; one with gradients keeps the allocations of its calls."""
        begin = self._pass_begin(at)
        made = self._is_forward & (self._alive.begin > begin) & (self._alive.begin <= at) & (self._calls >= 0)
        made &= ~self._has(Mark.COMMUNICATION | Mark.WORKSPACE | Mark.INPUT)
        calls, number = np.unique(self._calls[made], return_inverse=True)
        times = np.bincount(number, minlength=len(calls))
        held = np.bincount(number[self._alive.end[made] > at], minlength=len(calls))
        keeps = held * 2 >= times
        checkpoints = bool(self._has(Mark.CHECKPOINT)[made].any())
        signs = "torch.utils.checkpoint runs in it" if checkpoints else _signs(keeps, times >= _REPEATED)
        return _Pass(calls[keeps], signs)

    def _pass_begin(self, at: int) -> int:
        """The row before which another part of a step than a forward pass was the last one; -1 where there was none."""
        others = np.flatnonzero(
            (self._phases.at[: at + 1] == Phase.BACKWARD) | (self._phases.at[: at + 1] == Phase.OPTIMIZER)
        )
        return int(others[-1]) if len(others) else -1


def _signs(keeps: Flags, repeated: Flags) -> str | None:
    """Evidence that a pass keeps the allocations of most of its calls."""
    often, many = int(repeated.sum()), int((keeps & repeated).sum())
    if many >= max(_LEAST_REPEATED, _SHARE_REPEATED * often):
        return f"{many} of {often} calls that it makes {_REPEATED} times or more keep what they allocate"
    if len(keeps) >= _LEAST_LINES and int(keeps.sum()) >= _SHARE_LINES * len(keeps):
        return f"{int(keeps.sum())} of its {len(keeps)} calls keep what they allocate"
    return None


def _changes(at: NDArray[np.int8]) -> Rows:
    """The rows at which phases begin."""
    return np.flatnonzero(np.append(False, at[1:] != at[:-1]))
