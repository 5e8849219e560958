"""Steps of a trace: from the profiler's own marks or, failing that, from repeating annotations and calls.

Sources in order: ``ProfilerStep#N`` annotations; an inference engine's marks; the ends of optimizer steps; annotations
of one name (digits aside) that repeat; calls of one outermost module that repeat; kernels that are launched again and
again in the same order (``trace/repeats.py``). A repeated annotation or call counts only if it behaves like a step: it
does not nest in its own kind, its durations are alike, it covers most of its stretch of the thread, and most of the
recorded work is launched in that stretch. The layers of a network and the parts of one call repeat as well, but not
like that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.trace.columns import codes, distinct, matching
from whystall.trace.link import MODULE_PREFIX, is_module
from whystall.trace.repeats import Repeats
from whystall.vocabulary.engine_steps import engine_step
from whystall.vocabulary.episodes import is_episode

_PROFILER_STEP: Final = re.compile(r"^ProfilerStep\s*#\s*\d+$")
OPTIMIZER_STEP: Final = re.compile(r"^Optimizer\.step#.+\.step$")
"""torch's mark of an optimizer's step."""
_DIGITS: Final = re.compile(r"\d+")
# Names that count up, each of them once, may number the layers of one pass just like the steps of a loop: then the name
# must contain a word for a step. (torch's own examples, Lightning's and PyTorch/XLA's annotations, vLLM, SGLang)
_STEP_WORD: Final = re.compile(
    r"step|iter|batch|epoch|train|valid|eval|infer|generat|decode|prefill|extend|request|sample|rollout|execute",
    re.IGNORECASE,
)
_LEAST_REPEATS: Final = 3
_LEAST_COVER: Final = 0.5
# If all steps had the median length, their total must be at least this share of the real one.
_LEAST_ALIKE: Final = 0.5
# Annotations shorter than this share of the median one are parts that are called alike, and no steps of their own.
_LEAST_OF_MEDIAN: Final = 0.1
# The last mark is a stub where it holds less than this share of the recorded work.
_MOST_OF_STUB: Final = 0.01
# The stretch from the first step to the last holds at least this share of the recorded work.
_LEAST_WORK: Final = 0.5
# The networks that take turns in one step, at most.
_LONGEST_TURN: Final = 8
# Times in microseconds with three decimals let marks that follow each other overlap.
_ROUNDED_NS: Final = 1_000
# An engine that has waited this many times longer than usual had no request: that is part of no step.
_IDLE: Final = 10
_WHOLE: Final = 0.9
_OF_AN_ENGINE: Final = "an inference engine's steps"
STEP_SCHEMA: Final = {"name": pl.String, "ts_ns": pl.Int64, "duration_ns": pl.Int64, "thread": pl.Int32}


@dataclass(frozen=True, slots=True)
class Work:
    """When the work of a recording was launched, and its duration: steps have to hold most of it.

    ``backward_ns`` is when operators of backward passes began.
    """

    asked_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    backward_ns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def share_within(self, begin: int, end: int) -> float:
        """The share of the work that was launched between two instants; 1 where nothing was recorded."""
        inside = (self.asked_ns >= begin) & (self.asked_ns < end)
        whole = int(self.duration_ns.sum())
        return int(self.duration_ns[inside].sum()) / whole if whole else 1.0


def find_steps(
    annotations: pl.DataFrame,
    work: Work | None = None,
    functions: pl.DataFrame | None = None,
    repeats: Callable[[], Repeats | None] = lambda: None,
) -> tuple[pl.DataFrame, str | None]:
    """The steps in order of time and a sentence on their source, or none and ``None``.

    ``work`` is the recorded work of the device, or of operators where there is none; ``functions`` are the calls of
    Python, linked; ``repeats`` looks for kernels that are launched again and again.
    """
    marks = _matching(annotations, _PROFILER_STEP)
    if not marks.is_empty():
        once = marks.unique("name", keep="first", maintain_order=True)
        return _without_stub(once.select(STEP_SCHEMA.keys()), work), "ProfilerStep annotations"
    steps = _of_an_engine(annotations, work)
    if not steps.is_empty():
        return steps, f"{_OF_AN_ENGINE} ({_kinds(steps)})"
    no_steps = pl.Series(matching(annotations["name"], _is_no_step), dtype=pl.Boolean)
    neither = "no ProfilerStep annotations, no optimizer steps"
    without_marks: tuple[tuple[Callable[[], pl.DataFrame], str], ...] = (
        (
            lambda: _between_optimizer_steps(_matching(annotations, OPTIMIZER_STEP), work),
            "optimizer steps (no ProfilerStep annotations)",
        ),
        (lambda: _repeated(annotations.filter(~no_steps), work), f"a repeated annotation ({neither})"),
        (lambda: _of_a_module(functions, work), f"repeated calls of a module ({neither})"),
        (lambda: _of_repeats(repeats(), work), "the same launches again and again (the recording has no marks)"),
    )
    for found, source in without_marks:
        if not (steps := found()).is_empty():
            return steps, source
    return pl.DataFrame(schema=STEP_SCHEMA), None


def _without_stub(steps: pl.DataFrame, work: Work | None) -> pl.DataFrame:
    """The steps without the last one where the profiler stopped right behind its begin: after the loop's last step.

    A loop that calls ``step`` at its end, and ``stop`` after it, leaves such a mark.
    """
    steps = steps.sort("ts_ns")
    if len(steps) < 2 or work is None:
        return steps
    begin, lasts = steps["ts_ns"].to_list()[-1], steps["duration_ns"].to_list()
    is_short = lasts[-1] < _LEAST_OF_MEDIAN * float(np.median(lasts[:-1]))
    return steps[:-1] if is_short and work.share_within(begin, begin + lasts[-1]) < _MOST_OF_STUB else steps


def _is_no_step(name: str) -> bool:
    """Whether an annotation is an engine's, which were looked at before, or marks compilation or a save."""
    return engine_step(name) is not None or any(
        is_episode(name, kind, "event") for kind in ("compilation", "checkpoint")
    )


def _matching(table: pl.DataFrame, pattern: re.Pattern[str]) -> pl.DataFrame:
    return table.filter(pl.Series(matching(table["name"], pattern.match))).select(
        pl.col("name").cast(pl.String), pl.col("ts_ns"), pl.col("duration_ns"), pl.col("thread").cast(pl.Int32)
    )


def is_of_an_engine(steps_from: str | None) -> bool:
    """Whether steps were taken from an inference engine's marks: their names then begin with their kind."""
    return steps_from is not None and steps_from.startswith(_OF_AN_ENGINE)


def _of_an_engine(annotations: pl.DataFrame, work: Work | None) -> pl.DataFrame:
    """The steps of an inference engine, on the thread that its marks cover most; of nested steps the outer ones.

    Engines mark the forward pass alone: sampling and scheduling come after it. So a step lasts until the next begins.
    The last step has only its mark, which may have been cut: a shorter one is dropped. Where drafts are verified the
    marks between are parts of a step.
    """
    kinds = [engine_step(name) for name in distinct(annotations["name"])]
    if all(kind is None for kind in kinds):
        return pl.DataFrame(schema=STEP_SCHEMA)
    kind = pl.Series("kind", [*kinds, None], dtype=pl.String).gather(codes(annotations["name"]))
    marked = annotations.with_columns(kind).filter(pl.col("kind").is_not_null()).sort("ts_ns")
    covered = marked.group_by("thread").agg(pl.col("duration_ns").sum()).sort("duration_ns", "thread")
    own = marked.filter(pl.col("thread") == covered["thread"][-1])
    if (own["kind"] == "verify").any():
        own = own.filter(pl.col("kind") != "decode").with_columns(pl.col("kind").replace("verify", "decode"))
    ends = (own["ts_ns"] + own["duration_ns"]).cum_max().shift(1, fill_value=-_ROUNDED_NS)
    own = own.filter(own["ts_ns"] >= ends - _ROUNDED_NS)
    start = own["ts_ns"].to_numpy()
    marked_ns = own["duration_ns"].to_numpy()
    between = np.append(np.diff(start) - marked_ns[:-1], 0)
    usual = float(np.median(between[:-1])) if len(between) > 1 else 0.0
    lasts = marked_ns + np.where(between > _IDLE * max(usual, 1), usual, between).astype(np.int64)
    own = own.with_columns(pl.Series("duration_ns", lasts, dtype=pl.Int64))
    is_whole = len(own) > 1 and marked_ns[-1] >= _WHOLE * float(np.median(marked_ns[:-1]))
    ended = own if is_whole else own.head(len(own) - 1)
    did = ended.filter(pl.col("kind") != "idle")
    within = work is None or not len(did) or work.share_within(int(start[0]), int(start[-1])) >= _LEAST_WORK
    if len(did) < _LEAST_REPEATS or not within:
        return pl.DataFrame(schema=STEP_SCHEMA)
    names = [f"{kind} {number}" for number, kind in enumerate(did["kind"], 1)]
    return did.select(
        pl.Series("name", names, dtype=pl.String), "ts_ns", "duration_ns", pl.col("thread").cast(pl.Int32)
    )


def _kinds(steps: pl.DataFrame) -> str:
    """How many steps there are of each kind, the most frequent first."""
    counted = Counter(name.partition(" ")[0] for name in steps["name"])
    return ", ".join(f"{count:,} {kind}" for kind, count in counted.most_common())


def _between_optimizer_steps(marks: pl.DataFrame, work: Work | None) -> pl.DataFrame:
    """Steps that end where the rarest optimizer's step ends (several optimizers count once).

    Where optimizers step one after the other, with no backward pass between them, the last one ends the step.
    """
    counts = marks.group_by("name", maintain_order=True).len().filter(pl.col("len") >= 2)
    if counts.is_empty():
        return pl.DataFrame(schema=STEP_SCHEMA)
    fewest = counts.filter(pl.col("len") == counts["len"].min())["name"][-1]
    own = marks.filter(pl.col("name") == fewest)
    # of steps inside each other (or on several threads) every end counts
    ends = np.unique((own["ts_ns"] + own["duration_ns"]).to_numpy())
    ends = ends[_ends_a_step(ends, np.sort(own["ts_ns"].to_numpy()), work)] if len(ends) > 1 else ends
    if len(ends) < 2:
        return pl.DataFrame(schema=STEP_SCHEMA)
    return pl.DataFrame(
        {
            "name": [f"step {i + 1}" for i in range(len(ends) - 1)],
            "ts_ns": ends[:-1],
            "duration_ns": np.diff(ends),
            "thread": np.full(len(ends) - 1, own["thread"][-1]),
        },
        schema=STEP_SCHEMA,
    )


def _ends_a_step(ends: NDArray[np.int64], begins: NDArray[np.int64], work: Work | None) -> NDArray[np.bool_]:
    """Which ends of optimizers' steps have a backward pass behind them, before the next begins; the last one counts.

    All count where no backward pass was recorded. Where backward passes of different networks take turns (a critic's,
    an actor's), the last of a turn counts.
    """
    out = np.ones(len(ends), np.bool_)
    if work is None or not len(work.backward_ns):
        return out
    following = begins[np.minimum(np.searchsorted(begins, ends[:-1]), len(begins) - 1)]
    backward = np.sort(work.backward_ns)
    out[:-1] = np.searchsorted(backward, ends[:-1]) < np.searchsorted(backward, following)
    kept = np.flatnonzero(out)
    # The window may have cut the part before the first end.
    turn = _turn(np.diff(np.searchsorted(backward, ends[kept])))
    out[:] = False
    out[kept[(len(kept) - 1) % turn :: turn]] = True
    return out


def _turn(calls: NDArray[np.int64]) -> int:
    """After how many backward passes their numbers of calls come again, if they differ within a turn; else 1."""
    for turn in range(2, min(len(calls) // 2, _LONGEST_TURN) + 1):
        if (calls[turn:] == calls[:-turn]).all():
            return turn if (calls[:turn] != calls[0]).any() else 1
    return 1


def _of_a_module(functions: pl.DataFrame | None, work: Work | None) -> pl.DataFrame:
    """The calls of one outermost module, where they behave like steps: a model that a loop calls again and again."""
    if functions is None:
        return pl.DataFrame(schema=STEP_SCHEMA)
    modules = is_module(functions["name"])
    if not modules.any():
        return pl.DataFrame(schema=STEP_SCHEMA)
    within = np.append(~functions["module"].is_null().to_numpy(), np.False_)
    outer = modules & ~within[functions["parent"].fill_null(-1).to_numpy()]
    steps = _repeated(functions.filter(pl.Series(outer)), work, digits=False)
    return steps.with_columns(pl.col("name").str.strip_prefix(MODULE_PREFIX))


def _of_repeats(found: Repeats | None, work: Work | None) -> pl.DataFrame:
    """Steps that launch the same, where they behave like steps: each lasts until the next begins."""
    if found is None:
        return pl.DataFrame(schema=STEP_SCHEMA)
    steps = pl.DataFrame(
        {
            "name": [f"step {number}" for number in range(1, len(found.start_ns) + 1)],
            "ts_ns": found.start_ns,
            "duration_ns": np.diff(found.start_ns, append=found.end_ns),
            "thread": np.full(len(found.start_ns), found.thread),
        },
        schema=STEP_SCHEMA,
    )
    return steps if _are_steps(steps, work) else pl.DataFrame(schema=STEP_SCHEMA)


def _repeated(annotations: pl.DataFrame, work: Work | None, *, digits: bool = True) -> pl.DataFrame:
    """The repeating annotation that covers the largest part of its thread, if that is most of it.

    A step lasts until the next one begins: a loop's time between its annotations belongs to its steps. Names that
    differ in ``digits`` alone are one: torch numbers the modules themselves, so that theirs are not.
    """
    best = pl.DataFrame(schema=STEP_SCHEMA)
    best_cover = _LEAST_COVER
    patterns: dict[str, int] = {}
    pattern_of = [
        patterns.setdefault(_DIGITS.sub("#", text) if digits else text, len(patterns))
        for text in distinct(annotations["name"])
    ]
    pattern = pl.Series("pattern", np.array([*pattern_of, -1], np.int64)[codes(annotations["name"])])
    repeated = annotations.with_columns(pattern).filter(pl.len().over("pattern", "thread") >= _LEAST_REPEATS)
    for group in repeated.partition_by("pattern", "thread", maintain_order=True):
        cover = _cover(group)
        if cover > best_cover and _are_steps(group, work):
            duration = group["duration_ns"].to_numpy()
            best, best_cover = group.filter(duration >= _LEAST_OF_MEDIAN * np.median(duration)), cover
    if best.is_empty():
        return best
    named = [f"{name} ({i + 1})" for i, name in enumerate(best["name"].cast(pl.String).to_list())]
    start = best["ts_ns"].to_numpy()
    lasts = np.append(np.diff(start), best["duration_ns"][-1])
    return best.select(
        pl.Series("name", named), "ts_ns", pl.Series("duration_ns", lasts), pl.col("thread").cast(pl.Int32)
    )


def _are_steps(group: pl.DataFrame, work: Work | None) -> bool:
    """Whether annotations that repeat are steps, and not layers of a pass or parts of one call."""
    names = group["name"].cast(pl.String)
    if names.n_unique() == len(names) and not _STEP_WORD.search(names[0]):
        return False
    duration = group["duration_ns"].to_numpy()
    # The first call may load, compile and allocate, and take many times as long.
    if not _are_alike(duration) and not (len(duration) > _LEAST_REPEATS and _are_alike(duration[1:])):
        return False
    begin, end = int(group["ts_ns"][0]), int(group["ts_ns"][-1] + duration[-1])
    return work is None or work.share_within(begin, end) >= _LEAST_WORK


def _are_alike(duration: NDArray[np.int64]) -> bool:
    return float(np.median(duration)) * len(duration) >= _LEAST_ALIKE * float(duration.sum())


def _cover(group: pl.DataFrame) -> float:
    """The share of the time from first start to last end that is covered, or 0 where they overlap."""
    start = group["ts_ns"].to_numpy()
    end = start + group["duration_ns"].to_numpy()
    if np.any(start[1:] < end[:-1]):
        return 0.0
    return float(group["duration_ns"].sum() / max(int(end[-1] - start[0]), 1))


def step_of_launch(launch_start: np.ndarray, steps: pl.DataFrame) -> np.ndarray:
    """Per launch time the row of the step whose host span contains it, else -1."""
    if steps.is_empty() or not len(launch_start):
        return np.full(len(launch_start), -1, np.int32)
    start = steps["ts_ns"].to_numpy()
    end = start + steps["duration_ns"].to_numpy()
    row = np.searchsorted(start, launch_start, side="right") - 1
    inside = (row >= 0) & (launch_start < end[np.maximum(row, 0)])
    return np.where(inside, row, -1).astype(np.int32)
