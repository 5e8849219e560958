"""Lines that print, log, write or flush, and metrics that are worked out for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from whystall.analysis.run_results import SampledLine
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.episodes import named_episodes
from whystall.diagnosis.detectors.samples import (
    LEAST_SEEN,
    callbacks_that_write,
    code_of_lines,
    from_stack_samples,
    is_logging,
    measured_runs,
    opened_to_log,
    share_of,
    time_in,
)
from whystall.diagnosis.detectors.slow_steps import lost_at_lines
from whystall.diagnosis.detectors.statistics import read_statistics
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.vocabulary.episodes import is_episode

CAUSE: Final = cause_beside(__name__)
_LEAST_READ: Final = CAUSE.threshold("least_read")
# A line that reads a number, or many.
_READS: Final = re.compile(r"\.(item|tolist|numpy)\(")
_SELDOM: Final = Remedy(
    text="Work such statistics out every N steps (a counter in the hook or callback), of a sample of large tensors.",
    patch="if step % 100 == 0:\n    stats[name] = output.detach().std().item()",
    risk="Events between two looks are not seen.",
)
_METRIC: Final = Remedy(
    text="Work the metric out when it is shown: every N steps, of the latest batches; add up counts from step to step "
    "rather than going through all that came before again.",
    patch="if step % 100 == 0:\n    score = metric(torch.cat(scores), torch.cat(targets))",
    risk="Between two looks the metric is not known.",
)
_APPENDED: Final = Remedy(
    text="Keep the file open and append what is new, a line of JSON for each step, or write it every N steps: what was "
    "written before need not be written again.",
    patch="stream = open(path, 'a')  # once\nstream.write(json.dumps(row) + '\\n')  # not json.dump of all rows",
    risk="A file of lines is no JSON as a whole: read it line by line.",
)
_MOSTLY: Final = 0.3


def in_trace(case: Case) -> Iterator[Replayed]:
    """Annotations and frames that are named after it."""
    yield from named_episodes(case, CAUSE.id, "logging")


def in_trace_of_a_cpu(case: Case) -> Iterator[Replayed]:
    """Statistics of tensors that the host reads in each step: those of hooks and callbacks."""
    for rank in case.ranks:
        chosen = read_statistics(rank) if rank.trains else None
        if chosen is None or not chosen.any():
            continue
        nodes = case.host_within_operators(rank, chosen)
        per_step = case.time_of(nodes)
        if per_step < _LEAST_READ * case.step_ns:
            continue
        count = int(np.count_nonzero(chosen)) / max(len(rank.trace.steps), 1)
        run = case.sampled(rank)
        lines = [line for line in run.places if _READS.search(line.text)] if run is not None else []
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time("statistics the host reads", per_step, case.events_of(nodes), per=case.per),
                evidence.count("operators of them", count, per=case.per),
            ),
            removal=case.without(nodes),
            method="replay: without these statistics",
            code=code_of_lines(lines) if lines else code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.3,
            confidence=0.85,
            detail="statistics of tensors are worked out and read in each step",
            remedy=_SELDOM,
            rivals=("host.python", "compute.fusible", "host.small-operators"),
        )


def _read_in_trace(case: Case, rank: int) -> float:
    """The share of a step in statistics in a rank's trace: more complete than the lines that write them."""
    found = [one.attributed_ns for one in in_trace_of_a_cpu(case) if rank in one.ranks]
    return max(found, default=0) / max(case.step_ns, 1)


def in_samples(case: Case) -> Iterator[Sampled]:
    """Lines that print, log, write or flush, and functions that are named after it."""
    for run in measured_runs(case):
        callbacks = callbacks_that_write(run)
        opened = opened_to_log(run)
        beside = [*callbacks, *opened]
        lines = [line for line in run.places if (_logs(line) or line in beside) and not _is_metric(line)]
        share = time_in(run, lines)
        if share >= LEAST_SEEN and share >= _read_in_trace(case, run.rank):
            rivals = ("host.python", "episodic.checkpoint", "compute.unfused-optimizer")
            found = from_stack_samples(CAUSE.id, run, lines, share, "logging", rivals)
            if share_of(opened) >= _MOSTLY * share_of(lines):
                found = replace(found, detail="a file is opened and rewritten", remedy=_APPENDED)
            yield replace(found, code=code_of_lines(lines)) if callbacks else found


def metrics_in_samples(case: Case) -> Iterator[Sampled]:
    """Functions that are named after a metric, in the training loop itself."""
    for run in measured_runs(case):
        lines = [line for line in run.places if _is_metric(line)]
        share = time_in(run, lines)
        if share >= LEAST_SEEN:
            found = from_stack_samples(CAUSE.id, run, lines, share, "a metric", ("host.python", "host.small-operators"))
            yield replace(found, detail="a metric is worked out beside the training steps", remedy=_METRIC)


def in_slow_steps(case: Case) -> Iterator[Sampled]:
    """Lines that log in slow steps of a job with an accelerator."""
    yield from lost_at_lines(case, CAUSE.id, ("host.python", "episodic.checkpoint"), _logs)


def _is_metric(line: SampledLine) -> bool:
    of_steps = line.part in ("other", "forward") and (
        is_episode(line.function, "metric", "function") or is_episode(line.leaf, "metric", "leaf")
    )
    return line.part == "metric" or of_steps


def _logs(line: SampledLine) -> bool:
    return line.part == "logging" or (line.part in ("other", "forward", "optimizer") and is_logging(line))


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace",)),
        Finder(in_trace_of_a_cpu, ("trace", "operators", "no_device")),
        Finder(in_samples, ("samples", "no_device")),
        Finder(metrics_in_samples, ("samples", "no_device")),
        Finder(in_slow_steps, ("samples", "device_events")),
    ),
)
