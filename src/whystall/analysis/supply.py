"""Input in samples per second: the loader's supply, and the step's demand if it never waited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from whystall.analysis.results import Result
from whystall.analysis.run_results import RunSummary

_READY: Final = 0.02  # of the step: the time to hand over a ready batch (see diagnosis/detectors/loader.py)


class InputSupply(Result, frozen=True, kw_only=True):
    """Rates of one rank over a watched run, in samples per second.

    ``demand_per_s`` is the rate of its steps without waiting for input. ``supply_per_s`` is the loader's rate: without
    workers in the time that steps wait for it; with workers the rate that the steps got, a lower bound where they
    hardly wait (``at_least``).
    """

    rank: int
    samples_per_step: int
    demand_per_s: float
    supply_per_s: float
    at_least: bool
    waited_share: float


def input_supply(
    runs: Sequence[RunSummary], samples_per_step: int | None, loaders: Sequence[Mapping[str, int | bool | None]]
) -> InputSupply | None:
    """Supply and demand of the first rank, whose samples are counted; ``None`` where a step's samples are not known.

    Also ``None`` for a run without steps, or one whose steps do nothing but wait. ``loaders`` are from the run's
    description: the number of workers of each.
    """
    run = min(runs, key=lambda one: one.rank, default=None)
    if run is None or not samples_per_step or run.measured <= 0 or run.total_ns <= 0:
        return None
    waited = run.shares.get("input")
    if waited is None or not 0 <= waited < 1:
        return None
    got = samples_per_step / run.mean_ns * 1e9
    workers = max((int(loader.get("workers") or 0) for loader in loaders), default=run.workers)
    makes = workers == 0 and waited > 0  # the thread that steps makes the batches itself, meanwhile
    return InputSupply(
        rank=run.rank,
        samples_per_step=samples_per_step,
        demand_per_s=got / (1 - waited),
        supply_per_s=got / waited if makes else got,
        at_least=not makes and waited < _READY,
        waited_share=waited,
    )
