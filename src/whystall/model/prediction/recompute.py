"""Modules to recompute instead of keeping their activations, by the bytes that each saves at the peak for its FLOPs.

The activations and FLOPs of the modules in one simulated step show which are worth a try; each is then put into
``torch.utils.checkpoint`` and simulated like the step itself, alone, and together with those that rank above it.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from whystall.model.prediction.outcome import Kept, Simulated
from whystall.model.prediction.recompute_names import PRODUCTS, Again, added, parsed
from whystall.model.prediction.request import Request
from whystall.model.prediction.results import Recompute

__all__ = ["recompute_rows"]

Run = Callable[[Request], Simulated | None]

_LEAST_SHARE: Final = 0.01  # of the peak: less is not worth a change of the code
_MOST_TRIED: Final = 8
_MOST_ROWS: Final = 6
_MOST_OPERATORS: Final = 4
_ALL_OF_IT: Final = 0.95  # of all modules' activations: for a single call all would be back while it is recomputed


def recompute_rows(
    request: Request, whole: Simulated, run: Run, fits: Callable[[int], bool]
) -> tuple[tuple[Recompute, ...], str | None]:
    """Rows until the step fits, those first that save most bytes for a FLOP; or why there are none.

    ``run`` simulates a request (``None`` where that fails); ``fits`` returns whether a peak is small enough.
    """
    because = _nothing_to_save(request, whole)
    if because is not None:
        return (), because
    planner = _Planner(request, whole, run)
    tried = [(one, step) for one in _candidates(whole) if (step := planner.with_all((*planner.begun, one))) is not None]
    useful = [(one, step) for one, step in tried if whole.peak_bytes - step.peak_bytes >= _least(whole)]
    ranked = sorted(useful, key=lambda pair: _rank(whole, *pair))
    rows = tuple(planner.rows([one for one, _ in ranked], fits))
    if rows:
        return rows, None
    return (), "no module that is computed again makes the peak a hundredth smaller"


def _nothing_to_save(request: Request, whole: Simulated) -> str | None:
    if not request.backward:
        return "a forward pass keeps nothing for a backward pass"
    if request.checkpoint != "none":
        return "every block is computed again already"
    peaks = whole.phase_peaks()
    if peaks and max(peaks, key=lambda name: peaks[name].n_bytes) == "optimizer":
        return "the peak is in the optimizer's phase, which holds no activations: what needs less there comes first"
    return None


def _least(whole: Simulated) -> int:
    return max(math.ceil(_LEAST_SHARE * whole.peak_bytes), 1)


def _rank(whole: Simulated, one: Again, step: Simulated) -> tuple[float, int, str]:
    """The order of rows: most bytes for a FLOP first; of those without FLOPs that which saves most."""
    saved, more = whole.peak_bytes - step.peak_bytes, _flops(step) - _flops(whole)
    return -(math.inf if more <= 0 else saved / more), -saved, one.name


def _candidates(whole: Simulated) -> list[Again]:
    """Modules with enough activations to be tried, by bytes for a FLOP; the one with most is among them."""
    most = max((one.n_bytes for one in whole.modules.values()), default=0)
    found: list[tuple[float, int, Again]] = []
    for name, one in whole.modules.items():
        if not name or (one.calls == 1 and one.n_bytes >= _ALL_OF_IT * most):
            continue
        for again, n_bytes, flops in _ways(name, one):
            if n_bytes >= _least(whole):
                found.append((math.inf if not flops else n_bytes / flops, n_bytes, again))
    found.sort(key=lambda row: (-row[0], -row[1], row[2]))
    chosen = found[:_MOST_TRIED]
    largest = max(found, key=lambda row: (row[1], row[0]), default=None)
    if largest is not None and largest not in chosen:
        chosen[-1] = largest
    return [again for *_, again in chosen]


def _ways(name: str, one: Kept) -> Iterator[tuple[Again, int, int]]:
    """All of a module, and where it has products also the rest of it: the bytes and FLOPs of each."""
    yield Again(name), one.n_bytes, one.flops
    others = sum(n_bytes for operator, n_bytes in one.operators.items() if operator not in PRODUCTS)
    if one.flops and others:
        yield Again(name, cheap=True), others, 0


class _Planner:
    """Simulates sets of modules, each once, and puts rows together."""

    def __init__(self, request: Request, whole: Simulated, run: Run) -> None:
        self._request, self._whole, self._run = request, whole, run
        self._known: dict[tuple[str, ...], Simulated | None] = {}
        self.begun = tuple(filter(None, map(parsed, request.recompute)))

    def with_all(self, chosen: Sequence[Again]) -> Simulated | None:
        """The step with all of them computed again; ``None`` where the model cannot."""
        names = tuple(sorted(one.name for one in chosen))
        if names not in self._known:
            self._known[names] = self._run(replace(self._request, recompute=names))
        return self._known[names]

    def rows(self, ranked: Sequence[Again], fits: Callable[[int], bool]) -> Iterator[Recompute]:
        """Each module with those above it, as long as it saves more and the step does not fit."""
        chosen, before, made = self.begun, self._whole, 0
        for one in ranked:
            more = added(chosen, one)
            step = None if more is None else self.with_all(more)
            if more is None or step is None or before.peak_bytes - step.peak_bytes < _least(self._whole):
                continue
            fit = fits(step.peak_bytes)
            yield self._row(one, more, before, step, fit=fit)
            chosen, before, made = more, step, made + 1
            if fit or made == _MOST_ROWS:
                return

    def _row(self, one: Again, chosen: Sequence[Again], before: Simulated, step: Simulated, *, fit: bool) -> Recompute:
        kept = self._whole.modules[one.module]
        more, whole = _flops(step) - _flops(before), _flops(self._whole)
        names = ",".join(other.name for other in chosen)
        times = [_least_ns(other) for other in (before, step)]
        return Recompute(
            module=one.module,
            kind=kept.kind,
            calls=kept.calls,
            keeps_products=one.cheap,
            options=f"--recompute {shlex.quote(names)}",
            saved_bytes=before.peak_bytes - step.peak_bytes,
            more_flops=more,
            flops_share=more / whole if whole else 0.0,
            more_ns=None if None in times else (times[1] or 0) - (times[0] or 0),
            total_saved_bytes=self._whole.peak_bytes - step.peak_bytes,
            total_more_flops=_flops(step) - whole,
            peak_bytes=step.peak_bytes,
            fits=fit,
            kept_bytes=kept.n_bytes,
            operators=dict(list(kept.operators.items())[:_MOST_OPERATORS]),
        )


def _flops(step: Simulated) -> int:
    return sum(one.flops for one in step.work.values())


def _least_ns(step: Simulated) -> int | None:
    times = [one.time_ns for one in step.work.values()]
    return sum(times) if times and all(times) else None
