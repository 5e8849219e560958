"""Memory of each stage of a pipeline, from a step of a model with one stage's blocks.

Stages go one forward, one backward in turn (1F1B, arXiv 2104.04473): stage ``i`` of ``p`` keeps the activations of ``p
- i`` batches. The first stage has the modules before the blocks, the last those behind.
"""

from __future__ import annotations

from dataclasses import replace

from whystall.model.prediction import sharding
from whystall.model.prediction.blocks import AFTER, BEFORE
from whystall.model.prediction.outcome import Simulated
from whystall.model.prediction.peaks import SectionPeak
from whystall.model.prediction.request import Request


def ranks_of(whole: Simulated, request: Request) -> tuple[Simulated, ...]:
    """The step on one rank of every stage, under the strategy that ranks with one stage share it by."""
    stages = [whole]
    if request.pipeline_parallel > 1:
        stages = [_stage(whole, number, request) for number in range(request.pipeline_parallel)]
    return tuple(sharding.divided(stage, request.strategy, request.ranks) for stage in stages)


def fullest(whole: Simulated, request: Request) -> Simulated:
    """The step on the rank with the largest peak: a device that fits it fits all."""
    return max(ranks_of(whole, request), key=lambda one: one.peak_bytes)


def _stage(whole: Simulated, number: int, request: Request) -> Simulated:
    stages = request.pipeline_parallel
    is_between = 0 < number < stages - 1
    gone = {*((BEFORE,) if number else ()), *((AFTER,) if number < stages - 1 else ())}
    received = whole.boundary_bytes if number else 0
    kept = {
        key: _without(peak, gone, inputs=not is_between) for key, peak in whole.sections.items() if key[1] not in gone
    }
    full = max((_held(held, "activations") for (phase, _), held in kept.items() if phase == "forward"), default=0)
    waiting = min(request.in_a_step, stages - number) - 1
    sections = {}
    for key, held in kept.items():
        if key[0] != "optimizer":
            inputs = 0 if number else waiting * _held(held, "inputs")
            _add(held, ("activations", "received from the stage before"), received)
            _add(held, ("activations", "other micro-batches"), waiting * (full + received))
            _add(held, ("inputs", "other micro-batches"), inputs)
        sections[key] = SectionPeak(sum(held.values()), held)
    return replace(whole, sections=sections)


def _without(peak: SectionPeak, gone: set[str], *, inputs: bool) -> dict[tuple[str, str], int]:
    held = {key: n_bytes for key, n_bytes in peak.holdings.items() if key[1] not in gone}
    return held if inputs else {key: n_bytes for key, n_bytes in held.items() if key[0] != "inputs"}


def _held(held: dict[tuple[str, str], int], kind: str) -> int:
    return sum(n_bytes for (what, _), n_bytes in held.items() if what == kind)


def _add(held: dict[tuple[str, str], int], key: tuple[str, str], n_bytes: int) -> None:
    if n_bytes:
        held[key] = n_bytes
