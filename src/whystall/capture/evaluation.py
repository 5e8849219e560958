"""When a trained model is evaluated, by the kind and inputs of its calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from whystall.capture import clock
from whystall.capture.the_jobs import parts_of

_MINORITY: Final = 1 / 3
_LEAST_COMPARED: Final = 8
_FIRST_STEPS: Final = 32
"""Number of steps after which such calls are no evaluation if most steps have them, or most steps do not learn."""
_COMPARED: Final = 256
"""Number of learning calls to compare with the inputs of evaluation."""
_MOST_SAMPLES: Final = 1 << 12
_MOST_PASSES: Final = 8
"""For a model in training mode, most passes to search for repeated samples."""
_MOST_CALLS: Final = 16
"""Most calls of each."""
_ONCE: Final = 0.9
"""Minimum share of an evaluation's samples that are distinct."""
_AGAIN: Final = 0.5
"""Minimum share of them that recur in the next evaluation, in any order."""

Samples = Callable[[], list[int]]


class Evaluation:
    """Detects the occasional calls of a trained model without gradients.

    The time between two such calls belongs to it: batches, measures. Calls in most steps are none, but how the loop
    works; nor are calls whose samples the model learns from afterwards (a policy that acts to collect samples), or
    calls of a model whose learning calls are not seen. So it is known from the second one on.

    In training mode there are other calls without gradients: a policy acts, statistics of batches are re-estimated,
    hard samples are searched. There an evaluation is a pass over the same samples as before, each of them once.
    """

    def __init__(self) -> None:
        self._began_ns = self._ended_ns = 0
        self._running = self._in_step = False
        self._steps = self._with_it = self._learning = 0
        self._learns = self._collects = False
        self._samples: set[int] = set()
        self._compared = 0
        self._pass: list[int] = []
        self._passes = self._calls = 0
        self._trains = self._comes_again = False

    @property
    def _compares(self) -> bool:
        return self._compared < _COMPARED and not self._collects

    @property
    def _is_occasional(self) -> bool:
        return self._with_it + 1 <= _MINORITY * self._steps and 2 * self._learning >= self._steps

    def begins(self, samples: Samples, *, trains: bool) -> None:
        """The model is called so, in training mode or not."""
        self._in_step, self._trains = True, trains
        if not self._running:
            self._running, self._began_ns = True, clock.perf_counter_ns()
            self._passes, self._calls, self._pass = self._passes + 1, 0, []
        self._calls += 1
        looks = trains and not self._comes_again and self._passes <= _MOST_PASSES and self._calls <= _MOST_CALLS
        room = _MOST_SAMPLES - len(self._pass) - (0 if looks else len(self._samples))
        if room > 0 and (looks or self._compares) and (self._steps < _FIRST_STEPS or self._is_occasional):
            self._pass += samples()

    def learns(self, samples: Samples) -> None:
        """The model is called otherwise."""
        self.ends()
        self._learns = True
        if self._samples and self._compares:
            self._compared += 1
            self._collects = not self._samples.isdisjoint(samples())

    def ends(self) -> None:
        """It learns again."""
        if not self._running:
            return
        self._running, self._ended_ns = False, clock.perf_counter_ns()
        own = set(self._pass)
        if self._trains and len(own) >= _ONCE * len(self._pass) and len(own & self._samples) > _AGAIN * len(own):
            self._comes_again = True
        if len(self._samples) < _MOST_SAMPLES:
            self._samples |= own

    def step_ended(self) -> None:
        """A step is over."""
        self._steps += 1
        self._with_it += self._in_step
        self._learning += self._learns
        self._in_step = self._learns = False

    def ran_at(self, at_ns: int) -> bool:
        """Whether it ran at an instant not long ago, and is no part of most steps."""
        inside = self._began_ns <= at_ns and (self._running or at_ns <= self._ended_ns)
        if not inside or not self._began_ns or self._collects or self._compared < _LEAST_COMPARED:
            return False
        if self._trains and not self._comes_again:
            return False
        return self._is_occasional


def keeps_statistics(torch: Any, module: Any) -> bool:
    """Whether a model has layers that learn without gradients: statistics of their inputs in training mode."""
    kinds = torch.nn.modules.batchnorm._NormBase  # noqa: SLF001 - batch and instance normalisation
    parts = parts_of(module) if module is not None else ()
    return any(isinstance(one, kinds) and one.track_running_stats for one in parts)
