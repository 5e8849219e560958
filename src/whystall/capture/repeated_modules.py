"""Calls of modules with the same inputs and results as before.

It also finds calls of models that could cache (they take keys and values of earlier places) on tokens that begin as
those of the call before: all but the later ones were computed there.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

import msgspec

from whystall.capture import clock
from whystall.capture.alike import AlikeRows
from whystall.capture.faults import is_the_jobs
from whystall.capture.global_hooks import put
from whystall.capture.moments import followed_by, in_backward
from whystall.capture.rounds import Rounds
from whystall.capture.sums import (
    Sum,
    columns_of,
    is_derived_from,
    is_differentiated,
    rows_of,
    sizes_of_rows,
    sum_of,
    unseen,
)
from whystall.capture.tally import Place, Tally, place_of
from whystall.capture.the_jobs import parts_of
from whystall.run_folder.observations import RepeatedWork

_LONG: Final = 0.01
"""Share of a step; each of several equal blocks takes only this."""
_MOST_MODULES: Final = 64
_REMEMBERED: Final = frozenset({"past_key_values", "past_key_value", "layer_past", "past", "kv_cache", "cache"})
_LEAST_PLACES: Final = 16
_LEAST_SHARED: Final = 0.5
_LEAST_KNOWN: Final = 0.75
_NEARLY_ALWAYS: Final = 0.75
_MOST_SAMPLES: Final = 1 << 16
_ALIKE: Final = 1e-4
"""Largest difference of a sample's result from batch to batch."""


@dataclass(slots=True)
class _Again:
    """Repeated work in a call: its places, its count, and the part that a backward pass goes through as well."""

    places: Counter[Place] = field(default_factory=Counter)
    times: int = 0
    differentiated_ns: int = 0

    def add(self, more: _Again) -> None:
        self.places += more.places
        self.times += more.times
        self.differentiated_ns += more.differentiated_ns

    def tell(self, tally: Tally) -> None:
        tally.again += self.places
        tally.calls += self.times
        tally.differentiated_ns += self.differentiated_ns


@dataclass(slots=True)
class _Call:
    module: int
    began_ns: int
    ours_ns: int
    again: _Again = field(default_factory=_Again)
    alike: _Again = field(default_factory=_Again)
    """Rows equal to earlier ones within the same call."""


class RepeatedModules:
    """Hooks into all modules; reads inputs and results of the outermost ones and of long ones."""

    def __init__(self, torch: Any, on_stepping_thread: Callable[[], bool]) -> None:
        self.tally = Tally()
        self.alike = Tally()
        """Rows equal to earlier ones within the same call."""
        self._torch = torch
        self._alike = AlikeRows(torch)
        self._on_stepping_thread = on_stepping_thread
        self._take_out: list[Callable[[], None]] = []
        self._open: list[_Call] = []
        self._times: defaultdict[int, int] = defaultdict(int)
        self._shortest: tuple[float, dict[int, int]] = (inf, {})
        self._outermost: set[int] = set()
        self._trained: set[int] = set()
        self._read: set[int] | None = None
        self._seen: dict[Sum, Sum] = {}
        self._rounds = Rounds()
        self._calls: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
        """Calls of each module that is read, their time, and how many had repeated inputs."""
        self._fresh_before = self._again_before = 0
        self._whole_steps = False
        """Whether all that some step called came as before: a model is perhaps measured on a few batches."""
        self._differentiated: set[Sum] = set()
        """The seen calls that gradients go back through."""
        self._deaf = False
        self._places: dict[int, list[int]] = {}
        """The tokens of each model's last call, a sum for each place."""
        self._rows: dict[int, dict[int, tuple[float, int]]] = {}
        """The samples that models received: the result's size, and the step."""
        self._step = 0

    @property
    def in_rounds(self) -> bool:
        """Whether a job that does not train receives the same few batches in turn."""
        return self._rounds.going and not self._trained

    def prepare(self) -> None:
        """Needs nothing before it begins."""

    def begin(self) -> bool:
        """Starts to look; whether it could."""
        from torch.nn.modules import module  # noqa: PLC0415 - the user has imported torch

        self._take_out = [
            put(module._global_forward_pre_hooks, self._harmless(self._called)),  # noqa: SLF001 - as its register function does
            put(module._global_forward_hooks, self._harmless(self._returned), module._global_forward_hooks_with_kwargs),  # noqa: SLF001
        ]
        return True

    def _harmless(self, hook: Callable[..., None]) -> Callable[..., None]:
        """A hook that hears nothing more once it has failed: it is called within the job's own calls.

        torch's compiler, which follows it into a graph, finds that it does nothing there.
        """
        is_compiling = followed_by(self._torch)

        def called(*told: Any) -> None:
            if is_compiling():
                return
            if not self._deaf:
                try:
                    with unseen(self._torch):
                        hook(*told)
                except Exception as error:
                    if is_the_jobs(error):
                        raise
                    self._deaf = True
                    self.tally.forget()

        return called

    def timed(self, step_ns: int) -> None:
        """Ends a step in which calls were timed."""
        self._shortest = min(self._shortest, (step_ns, dict(self._times)), key=lambda step: step[0])
        self._times.clear()

    def choose(self) -> bool:
        """Decides by the shortest timed step which modules are read; whether any is."""
        if self._deaf:
            return False
        step_ns, times = self._shortest
        long = sorted((module for module, ns in times.items() if ns >= _LONG * step_ns), key=times.__getitem__)
        self._read = {*self._outermost, *long[-_MOST_MODULES:]}
        return bool(self._read)

    def step_read(self, duration_ns: int, *, counts: bool) -> None:
        """Ends a step in which calls were read; ``counts``: there was one before it."""
        tally = self.tally
        if counts:
            tally.step_ended(duration_ns)
            self.alike.step_ended(duration_ns)
            self._whole_steps |= tally.calls > self._again_before and tally.fresh == self._fresh_before
        else:
            tally.forget()
            self.alike.forget()
            self._calls.clear()
        self._again_before, self._fresh_before = tally.calls, tally.fresh

    def told(self) -> RepeatedWork | None:
        """The repeated work; for parts of inputs that recur by chance, with all calls of the longest module.

        Other modules are parts of it, or process other parts of the inputs, and are left out.
        """
        found = self.tally.told()
        kinds = [one for one in self._calls.values() if one[2]]
        if found is None or not kinds or self._trained or self._whole_steps:
            return found
        calls, ns, again = max(kinds, key=lambda one: one[1])
        if again >= _NEARLY_ALWAYS * calls:  # the parts of a request share it, token by token: that of all modules
            return found
        return msgspec.structs.replace(found, kind_calls=calls, kind_ns=min(ns, found.measured_ns))

    def told_alike(self) -> RepeatedWork | None:
        """Work on rows equal to earlier ones within the same call."""
        self.alike.fresh = 1
        return None if self._deaf else self.alike.told()

    def step_ended(self, *, in_call: bool = False) -> None:
        """A step is over, and with it all calls but the one that begins the next step (``in_call``)."""
        self._step += 1
        self.tally.ours_ns = 0
        kept = self._open[-1:] if in_call else []
        self._open = [_Call(call.module, clock.perf_counter_ns(), 0) for call in kept]

    def close(self) -> bool:
        """Takes the hooks out."""
        for take_out in self._take_out:
            take_out()
        self._take_out = []
        self._rounds.close()
        self._seen.clear()
        self._differentiated.clear()
        self._places.clear()
        self._rows.clear()
        self._calls.clear()
        return True

    def _called(self, module: Any, _given: object) -> None:
        if self._read is not None and id(module) not in self._read:
            return
        if self._on_stepping_thread() and not in_backward(self._torch):
            if module.training and self._torch.is_grad_enabled():
                self._trained.add(id(module))
            self._open.append(_Call(id(module), clock.perf_counter_ns(), self.tally.ours_ns))

    def _ended(self, module: int) -> _Call | None:
        """The innermost open call of a module; those inside it ended by an exception."""
        if (
            not self._on_stepping_thread()
            or in_backward(self._torch)
            or all(call.module != module for call in self._open)
        ):
            return None
        while self._open[-1].module != module:
            self._open.pop()
        return self._open.pop()

    def _is_evaluated(self, module: Any) -> bool:
        """Whether a call is of a model that trains in other calls: evaluation is reported separately."""
        if not self._trained or module.training or self._torch.is_grad_enabled():
            return False
        return any(id(part) in self._trained for part in parts_of(module))

    def _returned(self, module: Any, given: object, named: object, output: object) -> None:
        now = clock.perf_counter_ns()
        call = self._ended(id(module))
        if call is None or self._is_evaluated(module):
            return
        tally = self.tally
        lasted = now - call.began_ns - (tally.ours_ns - call.ours_ns)
        if self._read is None:
            self._times[call.module] += lasted
            if not self._open:
                self._outermost.add(call.module)
            return
        differentiated = is_differentiated(self._torch, output)
        known = self._known(call.module, given, named, output, differentiated=differentiated)
        share, shared = float(known is True), 0.0
        for at, more in enumerate((1, lasted, known is True)):
            self._calls[call.module][at] += more
        if known is None:
            if not self._open:
                tally.fresh += 1
                shared = 0.0 if call.again.times else self._shared(module, given, named)
            share = shared or (0.0 if differentiated else self._known_samples(module, given, named, output))
        if share and share * lasted > call.again.places.total():
            call.again = _outweighing(module, share * lasted, lasted if differentiated else 0)
            tally.shared_ns += round(lasted * shared)
        alike = 0.0 if share else self._alike.share(module, (given, named), output, constant=known is False)
        if alike * lasted > call.alike.places.total():
            back = differentiated and not is_derived_from(self._torch, (given, named))  # whose every row is wanted
            call.alike = _outweighing(module, alike * lasted, alike * lasted if back else 0)
        self._close(call)
        tally.ours_ns += clock.perf_counter_ns() - now

    def _close(self, call: _Call) -> None:
        """Ends a call: its repeated work is a part of the surrounding call, or counts."""
        if self._open:
            self._open[-1].again.add(call.again)
            self._open[-1].alike.add(call.alike)
        else:
            call.again.tell(self.tally)
            call.alike.tell(self.alike)

    def _known(self, module: int, given: object, named: object, output: object, *, differentiated: bool) -> bool | None:
        """Whether a call repeated an earlier result, if it repeated an earlier input (else ``None``).

        A model that is measured on a few batches in turn does that on purpose.
        """
        taken, made = sum_of(self._torch, (given, named)), sum_of(self._torch, output)
        key = (module, *taken) if taken else None
        if key is None:
            return None
        before = self._seen.get(key)
        in_turn = self._rounds.in_turn(key, self._step, outermost=not self._open)
        if differentiated and key not in self._differentiated:
            before = None  # a plan was made without gradients, and is learned from now: nothing was kept of it for that
            self._differentiated.add(key)
        if made is not None:
            self._seen[key] = made
        return None if before is None else before == made and not (in_turn and not self._trained)

    def _known_samples(self, module: Any, given: object, named: object, output: object) -> float:
        """The share of a batch's samples that occurred in earlier steps, with the same result, where it is large.

        A frozen part of a job that trains something else: batches of a few prompts differ. A job that only serves is
        left out, since its requests recur by chance.
        """
        if not self._trained or not all(call.module in self._trained for call in self._open):
            return 0.0
        rows = rows_of(self._torch, (given, named))
        made = sizes_of_rows(self._torch, output, len(rows))
        if not made:
            return 0.0
        seen = self._rows.setdefault(id(module), {})
        known = 0
        for row, size in zip(rows, made, strict=True):
            before, step = seen.get(row, (0.0, self._step))
            known += step < self._step and abs(size - before) <= _ALIKE * size
            if row not in seen and len(seen) < _MOST_SAMPLES:
                seen[row] = size, self._step
        return known / len(rows) if known >= _LEAST_KNOWN * len(rows) else 0.0

    def _shared(self, module: Any, given: object, named: object) -> float:
        """The share of the tokens that are those of the call before, from the first on, where it is large."""
        if self._torch.is_grad_enabled() or not _REMEMBERED.intersection(_arguments(type(module))):
            return 0.0
        now, before = columns_of(self._torch, (given, named)), self._places.get(id(module), [])
        self._places[id(module)] = now
        alike = next((place for place, (a, b) in enumerate(zip(now, before, strict=False)) if a != b), None)
        alike = min(len(now), len(before)) if alike is None else alike
        appended = len(now) == len(before) + 1 and alike == len(before)  # the recording shows decoding
        enough = len(now) >= _LEAST_PLACES and alike >= _LEAST_SHARED * len(now)
        return alike / len(now) if enough and not appended else 0.0


def _outweighing(module: Any, ns: float, differentiated_ns: float) -> _Again:
    """All of a call in place of its parts."""
    place = place_of(type(module).__name__, sys._getframe(3))  # noqa: SLF001 - the documented way to the caller
    return _Again(Counter({place: round(ns)}), 1, round(differentiated_ns))


def _arguments(kind: type) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(kind.forward).parameters)  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError):
        return frozenset()
