"""Batches that the training thread puts together itself: from workers' samples, and from rows of tensors one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.input_waits import InputWaits, input_waits, takes_over
from whystall.diagnosis.detectors.samples import NINE_IN_TEN, code_of_lines, from_samples, lines_where, share_of
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rule import Finder, Rule
from whystall.run_folder.samples import BEFORE

CAUSE: Final = cause_beside(__name__)
_LEFT_OF_HANDOVER: Final = CAUSE.threshold("left_of_handover")
_LEFT_OF_ROWS: Final = CAUSE.threshold("left_of_rows")
# The rows of a TensorDataset are taken in a generator within its __getitem__.
_TAKES_ROWS: Final = re.compile(r"^torch\.utils\.data\.dataset:(<genexpr>|__getitem__)$")
_OF_TORCH: Final = "torch.utils.data."
# Python in between is found at the line that requested the batch.
_LEAST_TAKING: Final = 0.02
_MOSTLY: Final = 0.8
_ONE_INDEX: Final = Remedy(
    text="Take all rows of a batch by one index: a sampler of batches and no automatic batching do so for a "
    "TensorDataset; or index the tensors with torch.randperm in the loop.",
    patch="batches = BatchSampler(RandomSampler(dataset), batch_size, drop_last=False)\n"
    "loader = DataLoader(dataset, sampler=batches, batch_size=None)  # dataset[list of rows]",
    risk="The rows of a batch come as the tensors' own types; a collate_fn of your own is not called.",
)


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


def row_by_row(case: Case) -> Iterator[Sampled]:
    """Stack samples that found the training thread taking rows out of tensors, one at a time, and stacking them.

    That is a TensorDataset without workers. For the user's own dataset, whose functions are found, it is unknown
    whether it could return several rows at a time.
    """
    for waits in input_waits(case):
        lines = lines_where(waits.run, lambda line: line.part == "input")
        taking = share_of([line for line in lines if _TAKES_ROWS.match(line.leaf)])
        in_torch = share_of([line for line in lines if line.leaf.startswith((_OF_TORCH, BEFORE))])
        seen = share_of(lines)
        if not waits.made or not taking or taking < _LEAST_TAKING * seen or in_torch < _MOSTLY * seen:
            continue
        share = waits.made * in_torch / seen
        saved = share * (1 - _LEFT_OF_ROWS)
        yield from_samples(
            CAUSE.id,
            waits.run,
            share,
            part="input",
            evidence=(
                *waits.evidence,
                evidence.share("of the loader's stack samples taking rows and stacking them", share / waits.made),
            ),
            code=waits.code,
            saved=(saved * 0.6, saved, share),
            method="samples: the rows of a batch taken by one index",
            detail="rows of a TensorDataset are taken one by one",
            remedy=_ONE_INDEX,
            rivals=("input.synchronous-loader", "host.gc"),
        )


RULE = Rule(
    CAUSE,
    (Finder(in_samples, ("samples", "no_device")), Finder(row_by_row, ("samples", "no_device"))),
)
