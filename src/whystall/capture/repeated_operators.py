"""Single operators with repeated inputs; the content of inputs is counted beside.

The inputs of long operators are read; those of others are known where they follow from these alone (`derived`).

A dispatch mode sees every operator of the stepping thread for a few steps. It is pushed and popped between two steps,
where no other mode is in force, and not in jobs of several ranks, whose reducers call operators on their own.

``torch.inference_mode`` restores, when it ends, the dispatch state of its begin. A mode that was pushed inside is deaf
then, or (where an operator has turned dispatch on again meanwhile, as ``numpy()`` does) operators are dispatched to a
mode that is gone, which ends the job. So begins and ends of inference are followed while the mode is pushed: it is
pushed again where the inference that it was pushed in ends, and popped only at the depth at which it was pushed.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final

from whystall.capture import clock
from whystall.capture.attended import Attended
from whystall.capture.contents import Contents
from whystall.capture.derived import Derived
from whystall.capture.faults import is_the_jobs, suppress
from whystall.capture.moments import in_backward
from whystall.capture.sums import Sum, sum_of, unseen
from whystall.capture.tally import Tally, place_of
from whystall.capture.unread import Unread
from whystall.run_folder.observations import RepeatedWork

_LONG: Final = 0.01
_MOST_KINDS: Final = 64
# The recording shows conversions (compute.cast-churn), and copies may be there to be written to.
_NEVER: Final = frozenset({
    "clone", "_to_copy", "copy", "detach", "alias", "lift_fresh_copy", "_local_scalar_dense", "_linalg_check_errors",
})  # fmt: skip
_MOST_FRAMES: Final = 30


def _factored(matrix: Any, right: Any) -> float:
    """The share of solving that goes into the matrix alone: 2/3 n^3 for its factors, 2 n^2 for each right side."""
    size, sides = matrix.shape[-1], right.shape[-1] if right.dim() >= matrix.dim() else 1
    return float(size / (size + 3 * sides))


# Operators that factor their first argument, which is the same work for each right side.
_FACTORING: Final[dict[str, Callable[[Any, Any], float]]] = dict.fromkeys(
    ("aten::_linalg_solve_ex", "aten::linalg_solve_ex", "aten::linalg_solve"), _factored
)

Kind = tuple[object, ...]
"""An operator and the sizes of its tensors."""


# Under a dispatch mode torch takes other formulas for the gradients of these, whose last bits differ: the place of the
# argument that is learned. For no other operator with samples in torch's own tests do gradients differ under a mode
# that does nothing (`python -m benchmarks.mode_bits`).
_OTHER_BITS: Final = {
    "aten::masked_fill.Tensor": 2,
    "aten::masked_fill_.Tensor": 2,
    "aten::prod": 0,
    "aten::prod.dim_int": 0,
}


class RepeatedOperators:
    """Reads the inputs of long operators that compute and write no tensors of others."""

    def __init__(
        self, torch: Any, on_stepping_thread: Callable[[], bool], contents: Contents, in_rounds: Callable[[], bool]
    ) -> None:
        self.tally = Tally()
        self.unread = Unread(torch)
        self.attended = Attended(torch)
        self._in_rounds = in_rounds
        self._contents = contents
        self._derived = Derived(torch)
        self._torch = torch
        self._on_stepping_thread = on_stepping_thread
        self._mode: Any = None
        self.changes_gradients = False
        """Whether the step holds an operator whose gradient has other bits under a mode."""
        self._hears = False
        self._inference: _Inference | None = None
        self._put_in_at = 0
        self._times: defaultdict[Kind, int] = defaultdict(int)
        self._shortest: tuple[float, dict[Kind, int]] = (inf, {})
        self._read: frozenset[Kind] | None = None
        self._long: frozenset[object] = frozenset()
        self._seen: dict[Sum, tuple[int, bool]] = {}
        """The step of its latest occurrence, and whether that one was learned from."""
        self._learns = False
        """Whether the current operator's result has a gradient."""
        self._step = 0
        self._judged: dict[Any, bool] = {}

    def prepare(self) -> None:
        """Follows inference from here on: for one that has begun already Python holds the original end."""
        if self._inference is None:
            self._inference = _Inference(self._torch, self._on_stepping_thread, self._inference_ended)

    def begin(self) -> bool:
        """Starts to look; whether it could."""
        torch = self._torch
        alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
        others = torch._C._len_torch_dispatch_stack()  # noqa: SLF001
        if not alone or others or in_backward(torch) or not self._on_stepping_thread():
            return False
        self.prepare()
        self._mode = _mode_of(self._called)
        self._mode.__enter__()
        self._put_in_at = self._depth
        self.changes_gradients = False
        self._hears = True
        return True

    @property
    def _depth(self) -> int:
        """How deep in inference the stepping thread is."""
        return self._inference.depth if self._inference is not None else 0

    def _inference_ended(self, depth: int) -> None:
        """An inference has ended: perhaps the one in which the mode was pushed, or the last one within it."""
        if self._mode is None or depth > self._put_in_at:
            return
        if depth < self._put_in_at:
            self._put_in_at = depth
            if self._is_on_top():
                self._mode.__exit__(None, None, None)
                self._mode.__enter__()
        if not self._hears:
            self.close()

    def timed(self, step_ns: int) -> None:
        """Ends a step in which calls were timed."""
        self._shortest = min(self._shortest, (step_ns, dict(self._times)), key=lambda step: step[0])
        self._times.clear()

    def choose(self) -> bool:
        """Decides by the shortest timed step which kinds of calls are read; whether any is."""
        step_ns, times = self._shortest
        long = [kind for kind, ns in times.items() if ns >= _LONG * step_ns]
        self._read = frozenset(sorted(long, key=lambda kind: -times[kind])[:_MOST_KINDS])
        self._long = frozenset(kind[0] for kind in self._read)  # a batch may have other sizes than the one before
        looks = bool(self._read) or self.attended.asks
        if looks:
            self.unread.begin()
        return looks

    def step_read(self, duration_ns: int, *, counts: bool) -> None:
        """Ends a step in which calls were read; ``counts``: there was one before it."""
        if counts:
            self.tally.step_ended(duration_ns)
        else:
            self.tally.forget()
        self.unread.step_ended(duration_ns)

    def told(self) -> RepeatedWork | None:
        """The repeated work."""
        return self.tally.told()

    def step_ended(self, *, in_call: bool = False) -> None:  # noqa: ARG002 - an operator within a call is one as well
        """A step is over."""
        self.tally.ours_ns = 0
        self._step += 1
        self._derived.forget()

    def close(self) -> bool:
        """Takes the mode out; whether it could: within an inference that began meanwhile it stays until that ends."""
        self._hears = False
        self._seen.clear()
        self._derived.forget()
        self.unread.close()
        if self._mode is not None and self._depth == self._put_in_at and self._is_on_top():
            self._mode.__exit__(None, None, None)
            self._mode = None
        if self._mode is None and self._inference is not None:
            self._inference.remove()
        return self._mode is None

    def _is_on_top(self) -> bool:
        """Whether the mode can be taken out: on its thread, with no other on it."""
        from torch.utils._python_dispatch import _get_current_dispatch_mode  # noqa: PLC0415

        own = self._on_stepping_thread() and not in_backward(self._torch)
        return own and _get_current_dispatch_mode() is self._mode

    def _called(self, function: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> object:
        if not isinstance(function, self._torch._ops.OpOverload):  # noqa: SLF001 - a program within the program
            return function(*given, **named)
        learned = _OTHER_BITS.get(function.name())
        if learned is not None and given[learned].requires_grad:
            self.changes_gradients = True
        back = self._hears and in_backward(self._torch)
        if not self._hears or (back and self._read is None):
            return function(*given, **named)
        began = clock.perf_counter_ns()
        output = function(*given, **named)
        ended = clock.perf_counter_ns()
        try:
            frame = sys._getframe(2)  # noqa: SLF001
            with unseen(self._torch):
                self._learns = self._is_learned_from(given)
                if self._read is not None:
                    self.unread.note(function, given, named, output, ended - began, frame, back=back)
                if not back:
                    self.unread.our_thread = threading.get_ident()
                    self.attended.note(function, given, named, counts=self._read is not None)
                    self._note(function, given, named, output, ended - began)
        except Exception as error:
            if is_the_jobs(error):
                raise
            self._hears = False
        finally:
            self.unread.our_thread = None
        self.tally.ours_ns += clock.perf_counter_ns() - ended
        return output

    def _note(
        self, function: Any, given: tuple[Any, ...], named: Mapping[str, Any], output: object, lasted: int
    ) -> None:
        read = self._read_of(function, given, named, lasted) if self._judges(function) else None
        if self._read is None:
            return
        known = self._derived.note(function, given, named, output, read)
        if read is None and known is not None and known.follows and self._computes(function):
            self._count_again(function, (function, known.name), lasted)

    def _read_of(self, function: Any, given: tuple[Any, ...], named: Mapping[str, Any], lasted: int) -> Sum | None:
        """The content of a long operator's inputs; while that is unknown, its time is noted."""
        tensors = [one for one in given if isinstance(one, self._torch.Tensor)]
        if any(one.is_nested for one in tensors):
            return None  # has no shape
        kind = (function, *(tuple(one.shape) for one in tensors))
        if len(kind) == 1 and not any(isinstance(one, list | tuple) and one for one in given):
            return None  # makes a tensor of nothing
        if self._read is None:
            self._times[kind] += lasted
            return None
        self._contents.note(function._schema.name, given, zeros=function in self._long)  # noqa: SLF001 - as torch's own modes read it
        if kind not in self._read:
            return None
        factored = _FACTORING.get(function._schema.name)  # noqa: SLF001
        if factored is not None:
            self._note_given((function, "right"), given[1:2], {}, 0)  # another right side is something new
            self._note_given((function,), given[:1], {}, int(lasted * factored(*given[:2])))
            return None
        return self._note_given((function,), given, named, lasted)

    def _note_given(
        self, what: tuple[Any, ...], given: tuple[Any, ...], named: Mapping[str, Any], lasted: int
    ) -> Sum | None:
        """Records an operator's inputs, and its time if they are repeated."""
        taken = sum_of(self._torch, (given, dict(named)))
        if taken is not None and not self._count_again(what[0], (*what, *taken), lasted):
            self.tally.fresh += 1
        return taken

    def _count_again(self, function: Any, key: Sum, lasted: int) -> bool:
        """Whether a call was there before; then its time counts.

        A result that is learned from cannot be one that was computed without a gradient, as an evaluation does, nor one
        of an earlier step, whose backward pass has freed it.
        """
        before, learned = self._seen.get(key, (None, False))
        self._seen[key] = self._step, self._learns
        # Where batches come in their turn, all that was given some steps ago is.
        in_turn = before is not None and before < self._step - 1 and self._in_rounds()
        kept = not self._learns or (learned and before == self._step)
        frame = sys._getframe(1)  # noqa: SLF001 - the documented way to the callers
        if before is not None and lasted and kept and not in_turn and not _in_loader(frame):
            self.tally.again[place_of(_shown(function), frame)] += lasted
            self.tally.calls += 1
        return before is not None

    def _is_learned_from(self, given: tuple[Any, ...]) -> bool:
        tensors = (one for each in given for one in (each if isinstance(each, list | tuple) else (each,)))
        learnable = any(isinstance(one, self._torch.Tensor) and one.requires_grad for one in tensors)
        return learnable and bool(self._torch.is_grad_enabled())

    def _judges(self, function: Any) -> bool:
        """Whether an operator computes something from its inputs, and does nothing else."""
        return self._computes(function) and not function._schema.is_mutable  # noqa: SLF001 - as torch's own modes read it

    def _computes(self, function: Any) -> bool:
        """Whether an operator computes something, not by chance."""
        known = self._judged.get(function)
        if known is None:
            name = function._schema.name.partition("::")  # noqa: SLF001
            known = (
                name[0] == "aten"
                and name[2] not in _NEVER
                and not name[2].endswith("_like")
                and not name[2].startswith("new_")
                and not function.is_view
                and self._torch.Tag.nondeterministic_seeded not in function.tags
            )
            self._judged[function] = known
        return known


class _Inference:
    """How many ``torch.inference_mode`` the stepping thread has begun since, and not ended; ``ended`` hears of ends."""

    def __init__(self, torch: Any, on_stepping_thread: Callable[[], bool], ended: Callable[[int], None]) -> None:
        self.depth = 0
        self._kind: Any = torch.inference_mode
        begins, ends = self._kind.__enter__, self._kind.__exit__

        def enter(guard: Any) -> object:
            found = begins(guard)
            if on_stepping_thread():
                self.depth += 1
            return found

        def leave(guard: Any, *why: object) -> object:
            found = ends(guard, *why)
            if on_stepping_thread():
                self.depth -= 1
                with suppress(Exception):  # this is called in the user's job
                    ended(self.depth)
            return found

        self._before, self._ours = (begins, ends), (enter, leave)
        self._kind.__enter__, self._kind.__exit__ = enter, leave

    def remove(self) -> None:
        """Stops following; a wrapper that other code has put over it stays, without effect."""
        if (self._kind.__enter__, self._kind.__exit__) == self._ours:
            self._kind.__enter__, self._kind.__exit__ = self._before


def _mode_of(called: Callable[[Any, tuple[Any, ...], Mapping[str, Any]], object]) -> Any:
    """A dispatch mode that hands each operator to ``called``."""
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415 - the user has imported torch

    class Hears(TorchDispatchMode):  # type: ignore[misc]
        supports_higher_order_operators = True  # torch.cond and the like: else torch refuses to call them

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            """Else torch imports its compiler with the first operator: a second of the job's, many on a slow disk."""
            return False

        def __torch_dispatch__(
            self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
        ) -> object:
            del types
            return called(func, args, kwargs or {})

    return Hears()


def _shown(function: Any) -> str:
    """The name as traces have it."""
    return str(function._schema.name)  # noqa: SLF001


def _in_loader(frame: Any) -> bool:
    """Whether a data loader calls: an epoch of few batches recurs, and its cost is reported separately."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return False
        if frame.f_globals.get("__name__", "").startswith("torch.utils.data"):
            return True
        frame = frame.f_back
    return False
