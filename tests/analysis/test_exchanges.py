"""Kernels in which ranks wait for each other are known by their lengths and ends, whatever they are called."""

from __future__ import annotations

from random import Random

import pytest

from whystall.analysis.exchanges import exchanges
from whystall.analysis.kernel_classes import CLASSES, classify
from whystall.testing import TraceBuilder, trace

RANKS = 4


def job(
    *, waits: bool, spread: float = 3.0, times: int = 20, name: str = "zorblax_push", offset_ns: int = 0
) -> list[TraceBuilder]:
    """Ranks whose experts take 1 ms or up to ``spread`` as long, and a kernel after them.

    It ends on all ranks at once where it ``waits``, else it takes as unequally long by itself.
    """
    draw = Random(7)  # noqa: S311 - lengths of kernels
    ranks = [trace() for _ in range(RANKS)]
    at = 10_000
    for _ in range(times):
        work = [round(1_000_000 * draw.uniform(1, spread)) for _ in ranks]
        own = [round(300_000 * draw.uniform(1, spread)) for _ in ranks]
        ends = at + max(work) + 200_000
        for number, (built, lasts, alone) in enumerate(zip(ranks, work, own, strict=True)):
            begin = at + number * offset_ns
            built.launch("experts", at=begin, runs_at=begin + 5_000, lasts=lasts)
            runs_at = begin + 5_000 + lasts + 1_000
            length = ends + number * offset_ns - runs_at + draw.randint(0, 4_000) if waits else alone
            built.launch(name, at=begin + 10_000, runs_at=runs_at, lasts=length)
        at = ends + (0 if waits else 300_000 * round(spread + 1)) + 10_000
    return ranks


def names(ranks: list[TraceBuilder]) -> list[str]:
    found = exchanges([built.load() for built in ranks])
    return [rule.pattern.pattern.replace("\\", "").strip("^$") for rule in found]


@pytest.mark.parametrize("offset_ns", [0, 7_000_000])
def test_what_ends_together_and_differs_manyfold_in_length_waits(offset_ns: int) -> None:
    assert names(job(waits=True, offset_ns=offset_ns)) == ["zorblax_push"]


def test_a_mangled_name_is_classified_by_the_rule_that_was_found_for_it() -> None:
    mangled = "_ZN7zorblax4pushIfEEvPT_i"
    ranks = [built.load() for built in job(waits=True, name=mangled)]
    found = classify(ranks[0].device_events, exchanges(ranks))
    assert {CLASSES[one] for one in found.class_of[ranks[0].device_events["name"].cast(str) == mangled]} == {
        "communication"
    }


@pytest.mark.parametrize(
    "ranks",
    [
        job(waits=False),  # the ranks have unequal work there
        job(waits=True, spread=1.05),  # hardly anybody waits: its lengths are alike
        job(waits=True, times=3),  # too few to tell from chance
        job(waits=True)[:1],
        job(waits=True, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL"),  # known already
    ],
)
def test_others_are_no_exchanges(ranks: list[TraceBuilder]) -> None:
    assert names(ranks) == []
