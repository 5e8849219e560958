"""Memory that rises steadily over the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.analysis.run_results import MemoryRise, RunSummary
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Sampled, Standing
from whystall.diagnosis.case import FEWEST_SAMPLED_STEPS, Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.samples import from_samples
from whystall.diagnosis.finding import Evidence
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)
_GROWTH_SHARE: Final = CAUSE.threshold("growth_share")
_LEAST_GROWTH_BYTES: Final = CAUSE.threshold("least_growth_bytes")
_WITH_STEPS: Final = CAUSE.threshold("with_steps")
_SURE: Final = CAUSE.threshold("sure")
_LEAST_SHARE: Final = CAUSE.threshold("least_share")
_OF_LIBRARIES: Final = CAUSE.threshold("of_libraries")
_NEW_SIZES: Final = CAUSE.threshold("new_sizes")


def in_samples(case: Case) -> Iterator[Standing | Sampled]:
    """Memory of the process, and of torch's allocator on each device.

    If steps become longer as it rises, they work on all that is kept: that costs time.
    """
    for run in case.runs:
        for rise in run.memory_rises:
            longer = rise.first_step_ns is not None and rise.mean_step_ns is not None
            least = max(_LEAST_GROWTH_BYTES, _GROWTH_SHARE * rise.start_bytes) * (_WITH_STEPS if longer else 1)
            if rise.rise_bytes < least or run.steps < FEWEST_SAMPLED_STEPS:
                continue
            of_the_host = "what is in use of the heap" if rise.heap else "resident memory"
            what = of_the_host if rise.device is None else f"memory allocated on device {rise.device}"
            facts = (
                evidence.size(f"{what} rises by", rise.rise_bytes),
                evidence.count("within this many steps", rise.over_steps),
                evidence.size("growth", round(rise.rise_bytes / rise.over_steps), per="step"),
                evidence.size("where it began", rise.start_bytes),
            )
            if rise.first_step_ns is not None and rise.mean_step_ns is not None:
                # Relative to the run's usual steps, which may be others: those of the latest window's pace.
                share = 1 - rise.first_step_ns / max(min(rise.mean_step_ns, run.mean_ns), 1)
                if share >= _LEAST_SHARE:
                    yield _longer(run, rise.first_step_ns, rise.mean_step_ns, share, facts)
                    continue
            yield Standing(
                cause=CAUSE.id,
                attributed_ns=0,
                evidence=facts,
                severity="info" if _by_new_shapes(case, rise) else "minor",
                method="samples: it costs memory, not time",
                ranks=(run.rank,),
                confidence=0.8,
            )


def _by_new_shapes(case: Case, rise: MemoryRise) -> bool:
    """Whether a rise may be the library's code for each size of a batch (oneDNN's), until sizes repeat.

    The evidence is the examined batches: nearly each had a size of its own.
    """
    seen = case.facts.padding
    if seen is None or not rise.heap or rise.rise_bytes >= _OF_LIBRARIES:
        return False
    return len(set(seen.sizes)) >= _NEW_SIZES * seen.batches


def _longer(run: RunSummary, first_ns: int, mean_ns: int, share: float, facts: tuple[Evidence, ...]) -> Sampled:
    """Steps that become longer as memory rises, against steps of the first ones' length."""
    return from_samples(
        CAUSE.id,
        run,
        share,
        # The first ones work on something that is kept already; steps may become longer for another reason, too.
        (share * _SURE, share, share + (1 - share) * (1 - _SURE) * share),
        evidence=(
            *facts,
            evidence.time("a step at first, in the median", first_ns),
            evidence.time("a step, on average", mean_ns),
        ),
        method="samples: all steps as long as those before memory had risen",
        confidence=0.75,
        detail="steps become longer as it rises",
        rivals=("host.gc", "device.throttled", "host.cpu-contention"),
    )


RULE = Rule(CAUSE, (Finder(in_samples, ("samples",)),))
