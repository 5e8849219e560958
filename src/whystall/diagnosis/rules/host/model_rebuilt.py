"""A model that is made again while the job runs: for each request, each step, each sample."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from whystall.analysis.run_results import RunSummary, SampledLine
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.samples import SPREAD, code_of_lines, from_samples, measured_runs, share_of
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)
_LEAST: Final = 0.05
_INITIALISES: Final = re.compile(r"^torch\.nn\.init:|^transformers\.\S*:_?(init|initialize)_weights?$")
_CONSTRUCTS: Final = re.compile(r"^torch\.nn\.modules\.\S+:(__init__|_?reset_parameters)$")
_IN_PLACE: Final = re.compile(r"\w_\s*\(")  # a call of a function that changes its argument, by torch's convention
# Functions that fill a new model, or are made with it.
_FILLS: Final = re.compile(
    r"^torch\.(serialization|_utils):|^torch\.nn\.modules\.module:\w*(load_state_dict|load|_apply|eval|train)$|^copy:"
)
# The share of the rest that is saved, too, as expected and at most: new weights come from memory, kept ones from
# caches, and operators lay new ones out again. For a transformer and a stack of linear layers that were made for each
# call 0.17 of the forward pass went away, for a convolutional network nothing.
_OF_THE_REST: Final = (0.05, 0.2)


def in_samples(case: Case) -> Iterator[Sampled]:
    """The time at lines that were found making modules, and at those that fill them."""
    for run in measured_runs(case):
        lines = _building(run)
        share = share_of(lines)
        if share < _LEAST:
            continue
        usual, most = (share + (1 - share) * rest for rest in _OF_THE_REST)
        yield from_samples(
            CAUSE.id,
            run,
            share,
            (share * (1 - SPREAD), usual, most),
            evidence=(
                evidence.share("of the training thread's stack samples that found it making or filling modules", share),
                evidence.time("time in it, on average", round(share * run.mean_ns), per="step"),
            ),
            code=code_of_lines(lines),
            method="samples: the share of the training thread's stack samples",
            rivals=("host.python", "compute.redundant-work", "host.small-operators", "host.launch-bound"),
        )


def _building(run: RunSummary) -> list[SampledLine]:
    """The looks that found modules made and filled; none unless it is seen that they are made."""
    made = [line for line in run.places if _INITIALISES.search(line.leaf) or _CONSTRUCTS.search(line.leaf)]
    # One line that initialises a tensor of its own by name, in each step, may want its random numbers.
    several = len({(line.file, line.line) for line in made}) > 1
    if not several and all(_by_name(line) for line in made):
        return []
    return made + [line for line in run.places if _FILLS.search(line.leaf)]


def _by_name(line: SampledLine) -> bool:
    """Whether the line calls the function that initialises, and not a module's constructor that does."""
    constructs = _CONSTRUCTS.search(line.leaf) or line.function == "__init__"
    return not constructs and (not line.text or bool(_IN_PLACE.search(line.text)))


RULE = Rule(CAUSE, (Finder(in_samples, ("samples", "no_device")),))
