"""Stack samples of a whole run's training thread: its lines, and for how long.

Samples are of the host. In a job with an accelerator host time can be hidden behind queued work, which only a trace
shows: there they name nothing unless there is no trace.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from typing import Final

import numpy as np

from whystall.analysis.run_results import RunSummary, SampledLine
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Code, Sampled
from whystall.diagnosis.case import FEWEST_SAMPLED_STEPS, Case
from whystall.diagnosis.detectors.loader import begun_anew
from whystall.diagnosis.finding import Evidence
from whystall.diagnosis.gains import CPU_ERROR, CPU_MORE
from whystall.diagnosis.where import Place, heaviest
from whystall.run_folder.samples import BEFORE, CALLED, ENGINE
from whystall.vocabulary.episodes import is_episode
from whystall.vocabulary.step_parts import BUSY, OTHER

SPREAD: Final = 0.1
"""The share of the expected saving that a remedy may fail to bring, where nothing better is known."""
NINE_IN_TEN: Final = 1.645
"""Nine in ten of a normal distribution lie within this many standard deviations."""
AWAITS: Final = re.compile(r":(select|_?poll|wait|acquire|join|get|put)$")
"""Innermost functions in which a thread waits for others intentionally."""
_TAKES_NEXT: Final = re.compile(r"\bnext\(|^\s*(async )?for\b.+\bin\b")
_MESSAGES: Final = re.compile(r"distributed_c10d:(i?recv|i?send|batch_isend_irecv)$")
# Where logging holds its lock while a process is forked.
_FORKS: Final = re.compile(r"^logging:_(acquire|release)Lock$")
_OPENS: Final = re.compile(r"""\bopen\(.*["'][wax][bt+]*["']""")
_ENDS_WORKERS: Final = re.compile(r"^(selectors:select|multiprocessing\.|torch\.utils\.data\.dataloader:)")
BEGINS_LOADER: Final = re.compile(
    r"^torch\.utils\.data\.(sampler|distributed):|^torch\.utils\.data\.dataloader:(__i|_get_i)"
)
"""Innermost functions in which a thread begins a loader: its sampler, which shuffles all indices, and its iterator."""
OF_OBJECTS: Final = re.compile(r"\b(all_gather|gather|scatter|broadcast|send|recv)_object(_list)?\(")
"""Lines that exchange Python objects between ranks: their sizes first, and then bytes that were pickled."""
LEAST_SEEN: Final = 0.01
"""With a smaller share of the stack samples a line is uncertain."""
MOST_STRETCHED: Final = 1.5
"""Stack samples and clock differ by chance, and by no more than this: beyond it the samples are too few."""
_LEAST_ALONE: Final = 0.05
_ELSEWHERE: Final = 0.05
"""Where another rank is found for less than this share of the time, it is found by chance."""
_NEXT_ALONE: Final = 0.2
"""A second rank that is found alone for more than this share of the time has a part of its own to play."""
_MOST_UNSURE: Final = 0.15
# Limits of a line of evidence: this many functions, each with at least this share.
_MOST_FUNCTIONS: Final = 3
_LEAST_OF_A_FUNCTION: Final = 0.1


def measured_runs(case: Case) -> list[RunSummary]:
    """The runs whose samples may name a cause."""
    if any(rank.on_device for rank in case.ranks):
        return []
    return [run for run in case.runs if run.measured >= FEWEST_SAMPLED_STEPS]


def from_samples(
    cause: str,
    run: RunSummary,
    share: float,
    saved: tuple[float, float, float] | None = None,
    part: str = "",
    **more: object,
) -> Sampled:
    """A candidate that removes a share of the measured time: at least, as expected, at most.

    ``part`` is the measured part: the error of a share depends on how its time is spread over the steps.
    """
    low, expected, high = saved or (share * (1 - SPREAD), share, share + (1 - share) * SPREAD * share)
    low = min(low, max(expected - NINE_IN_TEN * run.share_errors.get(part, 0.0), 0.0))
    unsure = _unsure(run)
    values = {
        "saved": (low * (1 - unsure - CPU_ERROR), expected, 1 - (1 - high) / (1 + unsure) * (1 - CPU_MORE)),
        "method": "samples: its share of the steps' time",
        "confidence": 0.85,
        "ranks": (run.rank,),
        "attributed_ns": round(share * run.mean_ns),
        "step_ns": round(run.mean_ns),
        **more,
    }
    return Sampled(cause=cause, **values)  # type: ignore[arg-type]


def from_stack_samples(
    cause: str, run: RunSummary, lines: list[SampledLine], share: float, what: str, rivals: tuple[str, ...]
) -> Sampled:
    """A candidate for the time in which the training thread was found at some lines."""
    seen = share_of(lines)
    unsure = max(NINE_IN_TEN * (share * (1 - share) / max(run.stack_samples, 1)) ** 0.5, share * SPREAD)
    return from_samples(
        cause,
        run,
        share,
        evidence=(
            evidence.share(f"of the training thread's stack samples that found {what}", seen),
            evidence.time("time in it, on average", round(share * run.mean_ns), per="step"),
            *costliest_functions(lines),
        ),
        code=code_of_lines(_named(lines)),
        saved=(max(share - unsure, 0.0), share, min(share + unsure, 0.99)),
        method="samples: the share of the training thread's stack samples",
        rivals=rivals,
    )


def functions_by_share(lines: list[SampledLine]) -> list[tuple[str, float]]:
    """The innermost functions in which a thread was found, and their shares of the samples at the lines."""
    by_function: defaultdict[str, float] = defaultdict(float)
    for line in lines:
        if line.leaf not in {BEFORE, CALLED} and not AWAITS.search(line.leaf):
            by_function[line.leaf] += line.share
    whole = max(share_of(lines), 1e-9)
    return sorted(((name, share / whole) for name, share in by_function.items()), key=lambda one: (-one[1], one[0]))


def spoken(function: str) -> str:
    """An innermost function by its name and its package's; one of the script by its name.

    >>> spoken("numpy.linalg._linalg:eig"), spoken("__main__:augment")
    ('eig of numpy', 'augment')
    """
    module, _, name = function.rpartition(":")
    return f"{name} of {module.partition('.')[0]}" if module not in {"", "__main__"} else name


def costliest_functions(lines: list[SampledLine]) -> tuple[Evidence, ...]:
    """The functions with most of the time: the content of a library's call."""
    by_name: defaultdict[str, float] = defaultdict(float)
    for function, share in functions_by_share(lines):
        by_name[spoken(function)] += share
    most = sorted(by_name.items(), key=lambda one: (-one[1], one[0]))[:_MOST_FUNCTIONS]
    told = ", ".join(f"{name} ({share:.0%})" for name, share in most if share >= _LEAST_OF_A_FUNCTION)
    return (evidence.text("the costliest functions in it", told),) if told else ()


def _named(lines: list[SampledLine]) -> list[SampledLine]:
    """The lines at which a function was found running; all of them where that is less than half of the samples.

    A sample that had to wait for the lock comes just behind the call that held it: near enough, if most did.
    """
    running = [line for line in lines if line.leaf not in {BEFORE, CALLED}]
    return running if share_of(running) > share_of(lines) / 2 else lines


def _unsure(run: RunSummary) -> float:
    """The error of the mean step, as a share: nine in ten of such means lie within it, by the spread of steps."""
    steps = np.array(run.durations_ns[run.warm_up :], np.float64)
    if len(steps) < FEWEST_SAMPLED_STEPS:
        return _MOST_UNSURE
    spread = float(steps.std()) / max(float(steps.mean()), 1.0)
    return float(min(NINE_IN_TEN * spread / np.sqrt(run.measured), _MOST_UNSURE))


def code_of_lines(lines: list[SampledLine]) -> Code:
    """The lines found most often."""
    by_line: defaultdict[Place | None, float] = defaultdict(float)
    by_function: defaultdict[Place | None, float] = defaultdict(float)
    for line in lines:
        by_line[line.file, line.line, line.text or line.function] += line.share
        by_function[line.file, None, line.function] += line.share
    found = heaviest(by_line)
    return found if found.lines else heaviest(by_function)


def lines_where(run: RunSummary, test: Callable[[SampledLine], bool]) -> list[SampledLine]:
    """The lines of a run that pass a test."""
    return [line for line in run.places if test(line)]


def lines_of_one_rank(case: Case) -> tuple[int, list[SampledLine]] | None:
    """The rank that alone is found at some of the user's lines, and these; ``None`` where ranks run different code.

    Ranks with the same work on their own data are found at the same lines, and waiting ranks at the line at which all
    meet. Additional work of one rank, in a hook for instance, shows on it alone.
    """
    runs = measured_runs(case)
    if len(runs) < 2:
        return None
    seen = [defaultdict[tuple[str, int], float](float) for _ in runs]
    for counts, run in zip(seen, runs, strict=True):
        for line in run.places:
            counts[line.file, line.line] += line.share
    alone = []
    for number, run in enumerate(runs):
        others = [counts for at, counts in enumerate(seen) if at != number]
        where = {at for at, share in seen[number].items() if all(each[at] <= _ELSEWHERE * share for each in others)}
        # A rank that is in its backward pass waits there for the one that does more within its own.
        lines = [line for line in run.places if (line.file, line.line) in where and line.leaf != ENGINE]
        alone.append((share_of(lines), run.rank, lines))
    alone.sort(key=lambda each: each[0])
    (next_most, _, _), (most, rank, lines) = alone[-2:]
    return (rank, lines) if most >= _LEAST_ALONE and next_most <= _NEXT_ALONE * most else None


def share_of(lines: list[SampledLine]) -> float:
    """The share of the stack samples that found one of some lines."""
    return sum(line.share for line in lines)


def sends_or_gets(line: SampledLine) -> bool:
    """Whether the thread was found sending a message to one other rank, or getting one."""
    return bool(_MESSAGES.search(line.leaf))


def takes_next(line: SampledLine) -> bool:
    """Whether a line outside the parts of a step takes an iterator's next item, and the thread was found waiting there.

    Where the iterator is no function of the user's, its sleep is found at the line itself, as a call.
    """
    waits = line.leaf == CALLED or bool(AWAITS.search(line.leaf))
    return line.part == OTHER and waits and bool(_TAKES_NEXT.search(line.text))


def is_logging(line: SampledLine) -> bool:
    """Whether a line, or its call, prints, logs, writes or flushes."""
    writes = is_episode(line.leaf, "logging", "leaf") and not _FORKS.search(line.leaf)
    return writes or is_episode(line.text, "logging", "text")


def is_saving(line: SampledLine) -> bool:
    """Whether a line outside the parts of a step writes objects or arrays into a file."""
    return line.part == OTHER and is_episode(line.text, "checkpoint", "text")


def opened_to_log(run: RunSummary) -> list[SampledLine]:
    """The lines that open a file to write it, in functions that log: the data is written where it is closed."""
    logs = {(line.file, line.function) for line in run.places if is_logging(line)}
    return lines_where(run, lambda line: (line.file, line.function) in logs and bool(_OPENS.search(line.text)))


def is_torchs(leaf: str) -> bool:
    """Whether the innermost function that was found is one of torch's."""
    return leaf.startswith(("torch.", "torch:", "torch_"))


def between_fetches(case: Case, run: RunSummary) -> list[SampledLine]:
    """The lines at which a loader is begun and let go between fetches, with the workers that this starts and ends.

    There are none where it is begun now and then and its workers are kept, or where there are none.
    """
    if begun_anew(case, run.steps) is not None:
        where = {(line.file, line.line) for line in run.places if BEGINS_LOADER.search(line.leaf)}
        return lines_where(run, lambda line: line.part == OTHER and (line.file, line.line) in where)
    loaders = [loader for loader in case.facts.loaders if loader.get("workers")]
    if not loaders or all(loader.get("persistent_workers") for loader in loaders):
        return []
    return lines_where(run, lambda line: line.part == OTHER and bool(_ENDS_WORKERS.search(line.leaf)))


def callbacks_that_write(run: RunSummary) -> list[SampledLine]:
    """The lines of functions that run within an optimizer's step alone (a trainer's callback) and write at one of them.

    All their work counts as writing, including the operators that they call.
    """
    parts: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for line in run.places:
        parts[line.file, line.function].add(line.part)
    writing = {(line.file, line.function) for line in run.places if is_logging(line)}
    return [
        line
        for line in run.places
        if (line.file, line.function) in writing and parts[line.file, line.function] == {"optimizer"}
    ]


def time_in(run: RunSummary, lines: list[SampledLine]) -> float:
    """The share of time at some lines: the measured time of their part, divided by the stack samples.

    Functions that count as a part of their own take time from unknown measured parts: with any of them the samples
    alone count.
    """
    if any(line.part not in (*BUSY, "save") for line in run.places):
        other = run.shares.get(OTHER, 0.0)
        return min(share_of(lines), other + share_of([one for one in lines if one.part != "other"]))
    return sum(_measured_part(run, part, share_of([one for one in lines if one.part == part])) for part in BUSY)


def _measured_part(run: RunSummary, part: str, seen: float) -> float:
    """The sampled share of a part, scaled to the part's measured duration."""
    all_seen = sum(line.share for line in run.places if line.part == part)
    return seen * min(run.shares.get(part, 0.0) / max(all_seen, 1e-9), MOST_STRETCHED)


def off_core(run: RunSummary, waits: Callable[[SampledLine], bool]) -> float:
    """The share of time in which the training thread was on no core, without its intentional waits."""
    waiting = sum(run.shares.get(part, 0.0) for part in ("input", "save"))
    return 1 - run.on_cpu_share - waiting - share_of(lines_where(run, waits))


def without_others(off: float, together: int) -> tuple[float, float, float]:
    """The share saved where other programs no longer take cores from ``together`` threads of one operator.

    They are taken by turns: at worst a parallel region goes on only while all of them run, and those that wait spin,
    which looks like work.
    """
    return off * 0.5, off, min((1 - (1 - off) ** min(together, _MOST_AT_ONCE)) * 1.1, 0.95)


# With more threads some are always on a core.
_MOST_AT_ONCE: Final = 3
LEAST_OFF_CORE: Final = 0.08
"""Any thread loses less time than this off its core."""
