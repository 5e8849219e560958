"""Batches that workers have made and the training thread takes long to take over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.input_waits import InputWaits, input_waits, takes_over
from whystall.diagnosis.detectors.samples import NINE_IN_TEN, code_of_lines, from_samples, lines_where, share_of
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)
_LEFT_OF_HANDOVER: Final = CAUSE.threshold("left_of_handover")


def in_samples(case: Case) -> Iterator[Sampled]:
    """Stack samples that found the training thread rebuilding tensors which came from workers."""
    for waits in input_waits(case):
        if waits.taken > 0:
            yield _handed_over(waits)


def _handed_over(waits: InputWaits) -> Sampled:
    run, share = waits.run, waits.taken
    lines = lines_where(run, takes_over)
    saved = share * (1 - _LEFT_OF_HANDOVER)
    seen = share_of(lines)
    unsure = NINE_IN_TEN * (seen * (1 - seen) / max(run.stack_samples, 1)) ** 0.5
    return from_samples(
        CAUSE.id,
        run,
        share,
        part="input",
        evidence=(
            *waits.evidence,
            evidence.share("of the steps' time taking batches over that workers have made", share),
            evidence.text("found most often in", max(lines, key=lambda line: line.share).leaf),
        ),
        code=code_of_lines(lines),
        saved=(max(saved * 0.7 - unsure, 0.0), saved, min(share + unsure, 0.99)),
        method="samples: the stack samples that found the training thread taking batches over",
        rivals=("input.too-few-workers", "input.cpu-bound"),
    )


RULE = Rule(CAUSE, (Finder(in_samples, ("samples", "no_device")),))
