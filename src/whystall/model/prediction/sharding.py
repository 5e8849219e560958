"""A rank's memory under ZeRO, from one device's memory: the parts that a stage divides, divided.

Stage 1 divides the optimizer's state, stage 2 the gradients too, stage 3 the parameters too (Rajbhandari et al., arXiv
1910.02054). Under stage 3 the parameters of one unit, and of the one fetched ahead, are whole on every rank.
"""

from __future__ import annotations

from dataclasses import replace

from whystall.model.prediction.outcome import Simulated
from whystall.model.prediction.peaks import SectionPeak

DIVIDED = {
    "zero1": ("optimizer state",),
    "zero2": ("optimizer state", "gradients"),
    "zero3": ("optimizer state", "gradients", "parameters"),
}
_UNITS_AHEAD = 2


def sent_bytes(step: Simulated, strategy: str, ranks: int) -> int:
    """The least bytes that each rank sends in a step: gradients are reduced, split parameters are gathered.

    Rings send (n - 1) / n of a gathered or reduce-scattered tensor, twice that for an all-reduce (nccl-tests,
    PERFORMANCE.md); ZeRO's stages 1 and 2 send the same as an all-reduce, stage 3 half more (arXiv 1910.02054, section
    7).
    """
    if ranks < 2 or strategy == "none":
        return 0
    gathered = 2 if strategy in {"zero3", "fsdp2"} else 1
    return (gathered * step.parameter_bytes + step.gradient_bytes) * (ranks - 1) // ranks


def divided(whole: Simulated, strategy: str, ranks: int) -> Simulated:
    """The step of one of ``ranks`` ranks under a ZeRO stage; unchanged under any other strategy."""
    if strategy not in DIVIDED or ranks < 2:
        return whole
    gathered = _UNITS_AHEAD * whole.largest_unit_bytes if strategy == "zero3" else 0

    def part(phase: str, peak: SectionPeak) -> SectionPeak:
        held = {}
        for (kind, module), n_bytes in peak.holdings.items():
            own = kind in DIVIDED[strategy] or (phase == "optimizer" and kind == "temporaries")
            held[kind, module] = -(-n_bytes // ranks) if own else n_bytes
        if gathered and phase != "optimizer":
            held["communication", ""] = held.get(("communication", ""), 0) + gathered
        return SectionPeak(sum(held.values()), held)

    return replace(
        whole,
        sections={key: part(key[0], peak) for key, peak in whole.sections.items()},
        state_bytes=-(-whole.state_bytes // ranks),
    )
