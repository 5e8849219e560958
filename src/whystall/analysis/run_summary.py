"""A whole run from its samples: how long steps took, how that changed, and where the slow ones lost time.

Steps under the profiler are counted but not measured: we make them slower. So are the first steps, which load, compile
and allocate for later ones, and which begin with batches that were made beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.after_windows import recorded_windows
from whystall.analysis.pace_changes import pace_changes
from whystall.analysis.run_clocks import device_clocks
from whystall.analysis.run_memory import allocator_runs, memory_rises
from whystall.analysis.run_results import ChangedPace, RunSummary, SampledLine, SlowStep
from whystall.analysis.step_errors import mean_error, median_error
from whystall.analysis.uneven_steps import uneven_steps
from whystall.run_folder.samples import DISTURBED, PROFILED, TICKS_PER_S
from whystall.trace.samples import RunSamples
from whystall.vocabulary.step_parts import OTHER, TIMED

Ticks = Sequence[tuple[int, int, int]]
"""When (ns since 1970), and until then the ticks of all the machine's cores and those of a rank."""

# A slow step took this much longer than the median, and stands out of the usual spread.
SLOW_RATIO: Final = 1.5
SPREADS: Final = 5.0
# Number of first steps to leave out, or one in ten of a short run; more while they take twice as long as usual.
_WARM_UP_STEPS: Final = 5
_WARM_UP_PART: Final = 10
_WARM_UP_RATIO: Final = 2.0
_MOST_WARM_UP_PART: Final = 4
_MOST_SLOW_STEPS: Final = 50
_FEWEST_FOR_TREND: Final = 20
# With fewer samples of the stepping thread a stretch of a run does not show the parts of its steps.
_FEWEST_LOOKS: Final = 20
# MAD to standard deviation for a normal distribution.
_MAD_TO_SIGMA: Final = 1.4826


def run_summaries(wholes: Sequence[RunSamples]) -> list[RunSummary]:
    """The account of each rank of a job with a measured step; other ranks' cores are no other program's.

    If a run changed its pace for good it covers the steps at the pace of its latest recorded window.
    """
    seen = [_ticks(whole.machine) for whole in wholes]
    found = []
    at_one_pace = [_at_one_pace(whole) for whole in wholes]
    uneven = uneven_steps(at_one_pace)
    for place, (whole, samples) in enumerate(zip(wholes, at_one_pace, strict=True)):
        run = _summary_of(whole, samples)
        if run is not None and len(wholes) > 1 and run.other_cores is not None:
            mates = seen[:place] + seen[place + 1 :]
            run = msgspec.structs.replace(run, other_cores=cores_of_others(seen[place], mates))
        found += [] if run is None else [msgspec.structs.replace(run, uneven=uneven)]
    return found


def run_summary(whole: RunSamples) -> RunSummary | None:
    """The account of all of one rank's run, at every pace; ``None`` when no step was measured."""
    return _summary_of(whole, whole)


def _summary_of(whole: RunSamples, samples: RunSamples) -> RunSummary | None:
    """The account of those ``samples`` of a run that count; ``None`` when no step of them was measured."""
    measured = samples.steps.filter((pl.col("flags") & DISTURBED) == 0)
    if measured.is_empty():
        return None
    run = _summary(samples, measured)
    if samples is whole:
        return run
    disturbed = (whole.steps["flags"] & DISTURBED) != 0
    durations = _undisturbed(whole.steps)
    kept = samples.steps["step"]
    other = _undisturbed(whole.steps.filter(~pl.col("step").is_between(kept[0], kept[-1])))
    return msgspec.structs.replace(
        run,
        changed=ChangedPace(
            first=int(kept[0]),
            last=int(kept[-1]),
            other_ns=round(float(np.median(other))),
            steps=len(whole.steps),
            durations_ns=_thinned(durations),
        ),
        trend=_trend(durations),
        trend_per_1000_steps=_trend_per_1000(durations),
        memory_rises=run.memory_rises or memory_rises(whole),
        windows=recorded_windows(_ns(whole.steps, "duration_us"), disturbed.to_numpy(), _warm_up(durations)),
    )


def _undisturbed(steps: pl.DataFrame) -> NDArray[np.int64]:
    return _ns(steps.filter((pl.col("flags") & DISTURBED) == 0), "duration_us")


def _at_one_pace(whole: RunSamples) -> RunSamples:
    """The samples at the pace of the latest window; all samples where those are too few to show where the time goes."""
    first, last = _of_the_latest_window(whole)
    if last - first == len(whole.steps):
        return whole
    samples = whole.between(first, last)
    looks = int(samples.places["count"].sum())
    return whole if looks < min(_FEWEST_LOOKS, int(whole.places["count"].sum())) else samples


def _of_the_latest_window(samples: RunSamples) -> tuple[int, int]:
    """The rows of the steps at the pace at which the latest window was recorded; without one those at the last."""
    flags = samples.steps["flags"].fill_null(0).to_numpy()
    plain = np.flatnonzero((flags & DISTURBED) == 0)
    duration = _ns(samples.steps, "duration_us")[plain]
    warm_up = _warm_up(duration) if len(duration) else 0
    changes = [int(plain[warm_up + at]) for at in pace_changes(duration[warm_up:])]
    recorded = np.flatnonzero(flags & PROFILED)
    latest = int(recorded[-1]) if len(recorded) else len(flags)
    edges = [0, *changes, len(flags)]
    return next((a, b) for a, b in pairwise(edges) if latest < b or b == len(flags))


def _summary(samples: RunSamples, measured: pl.DataFrame) -> RunSummary:
    everything = _ns(measured, "duration_us")
    warm_up = _warm_up(everything)
    measured = measured[warm_up:]
    duration = everything[warm_up:]
    parts = {part: _ns(measured, f"{part}_us") for part in TIMED}
    whole = max(int(duration.sum()), 1)
    shares = {part: int(values.sum()) / whole for part, values in parts.items()}
    shares[OTHER] = max(0.0, 1.0 - sum(shares.values()))
    found = int(samples.places["count"].sum())
    slow, slow_steps, slow_lost = _slow_steps(measured, duration, parts)
    quantiles = np.quantile(duration, [0.1, 0.5, 0.9, 0.99])
    return RunSummary(
        rank=samples.rank,
        steps=len(samples.steps),
        profiled=len(samples.steps) - len(everything),
        warm_up=warm_up,
        total_ns=int(duration.sum()),
        p10_ns=round(float(quantiles[0])),
        median_ns=round(float(quantiles[1])),
        p90_ns=round(float(quantiles[2])),
        p99_ns=round(float(quantiles[3])),
        max_ns=int(duration.max()),
        mean_error_ns=mean_error(duration.astype(np.float64)),
        median_error_ns=median_error(duration.astype(np.float64)),
        trend_per_1000_steps=_trend_per_1000(duration),
        trend=_trend(duration),
        shares=shares,
        # the standard error of the mean, of the mean step
        share_errors={part: float(values.std()) * len(values) ** 0.5 / whole for part, values in parts.items()},
        ready_input_ns=round(float(np.quantile(parts["input"], 0.1))),
        on_cpu_share=_on_cpu_share(measured, duration),
        queued_share=_queued_share(measured, duration),
        involuntary_switches_per_step=_mean(measured, "involuntary_switches"),
        major_faults_per_step=_mean(measured, "major_faults"),
        rss_start_bytes=_rss(samples.steps, 0),
        rss_end_bytes=_rss(samples.steps, -1),
        memory_rises=memory_rises(samples),
        allocators=allocator_runs(samples),
        clocks=device_clocks(samples),
        windows=recorded_windows(
            _ns(samples.steps, "duration_us"), ((samples.steps["flags"] & DISTURBED) != 0).to_numpy(), warm_up
        ),
        slow_ns=_excess_of_slow(duration),
        slow=slow,
        slow_steps=slow_steps,
        slow_lost_ns=slow_lost,
        durations_ns=_thinned(everything),
        places=_places(samples.places, found),
        beside=_places(samples.beside, found),
        thread_cores=sum(share for share, _ in _cpu_shares(samples.threads)),
        stack_samples=found,
        worker_cpu_share=_usual(_cpu_shares(samples.workers)),
        workers=samples.workers["pid"].n_unique(),
        other_cores=_other_cores(samples.machine),
        own_cores=_own_cores(samples.machine),
    )


def _warm_up(duration: NDArray[np.int64]) -> int:
    """How many of the first steps are not like the others."""
    count = min(_WARM_UP_STEPS, len(duration) // _WARM_UP_PART)
    usual = float(np.median(duration))
    while count < len(duration) // _MOST_WARM_UP_PART and duration[count] > _WARM_UP_RATIO * usual:
        count += 1
    return count


_MOST_PLACES: Final = 50


def _places(stacks: pl.DataFrame, whole: int) -> list[SampledLine]:
    """Where a thread was found, the most frequent first, as shares of all stack samples."""
    if not whole:
        return []
    keys = [column for column in stacks.columns if column not in {"count", "since", "until"}]
    summed = (
        stacks.group_by(keys).agg(pl.col("count").sum()).sort(["count", *keys], descending=[True, *[False] * len(keys)])
    )
    return [
        SampledLine(**{key: row[key] for key in keys}, share=row["count"] / whole)
        for row in summed.head(_MOST_PLACES).iter_rows(named=True)
    ]


def _other_cores(machine: pl.DataFrame) -> float | None:
    """The cores that programs other than this process and its children used, over all samples."""
    return cores_of_others(_ticks(machine))


def _own_cores(machine: pl.DataFrame) -> float | None:
    """The cores that this process and its children used, averaged over all samples."""
    seen = _ticks(machine)
    return _cores(seen, 2) if len(seen) > 1 and seen[-1][0] > seen[0][0] else None


def _ticks(machine: pl.DataFrame) -> Ticks:
    if "busy_ticks" not in machine.columns:
        return []
    return machine.select("at_unix_ns", "busy_ticks", "own_ticks").drop_nulls().rows()


def cores_of_others(seen: Ticks, mates: Iterable[Ticks] = ()) -> float | None:
    """The mean of the cores that other programs used.

    ``seen`` holds times (ns since 1970), busy ticks and those of a rank. Its ``mates`` are the job's other ranks, which
    are no other programs. Mates on other machines make the result too small.
    """
    if len(seen) < 2 or seen[-1][0] <= seen[0][0]:
        return None
    busy, own = (_cores(seen, column) for column in (1, 2))
    return max(busy - own - sum(_cores(mate, 2) for mate in mates), 0.0)


def _cores(seen: Ticks, column: int) -> float:
    """The cores that a column of ticks is on average, 0 where it was looked at once."""
    lasted_s = (seen[-1][0] - seen[0][0]) / 1e9 if seen else 0.0
    return (seen[-1][column] - seen[0][column]) / TICKS_PER_S / lasted_s if lasted_s > 0 else 0.0


def _usual(shares: list[tuple[float, int]]) -> float | None:
    """The median by time: workers that start again with each epoch are more numerous the shorter it is."""
    if not shares:
        return None
    shares = sorted(shares)
    past = np.cumsum([lasts for _, lasts in shares])
    middle = [int(np.searchsorted(past, past[-1] / 2, side)) for side in ("left", "right")]
    return sum(shares[at][0] for at in middle) / len(middle)


def _cpu_shares(tasks: pl.DataFrame) -> list[tuple[float, int]]:
    """The CPU time of each process or thread between its first and last sight over that time, and that time in ns."""
    spans = (
        tasks.drop_nulls()
        .group_by("pid", maintain_order=True)
        .agg(
            (pl.col("ticks").max() - pl.col("ticks").min()).alias("ticks"),
            (pl.col("at_unix_ns").max() - pl.col("at_unix_ns").min()).alias("ns"),
        )
        .filter(pl.col("ns") > 0)
    )
    return [(ticks / TICKS_PER_S / (lasts / 1e9), lasts) for ticks, lasts in spans.select("ticks", "ns").iter_rows()]


def _ns(frame: pl.DataFrame, column: str) -> NDArray[np.int64]:
    if column not in frame.columns:
        return np.zeros(len(frame), np.int64)
    return frame[column].fill_null(0).to_numpy().astype(np.int64) * 1000


def _on_cpu_share(measured: pl.DataFrame, duration: NDArray[np.int64]) -> float:
    """CPU time of the stepping thread over time, from the first step with a reading of the kernel to the last."""
    return _share_of_answers(measured, duration, "cpu_us")


def _queued_share(measured: pl.DataFrame, duration: NDArray[np.int64]) -> float | None:
    """The share of the time in which the stepping thread waited for a core; ``None`` where it is unknown."""
    if "queued_us" not in measured.columns or not measured["queued_us"].is_not_null().any():
        return None
    return _share_of_answers(measured, duration, "queued_us")


def _share_of_answers(measured: pl.DataFrame, duration: NDArray[np.int64], column: str) -> float:
    counted = _ns(measured, column)
    known = measured["rss_kib"].is_not_null() if "rss_kib" in measured.columns else pl.Series([], dtype=pl.Boolean)
    asked = np.flatnonzero(known.to_numpy())
    if len(asked) < 2:  # an answer is of the steps since the one before it
        return float(counted.sum() / max(duration.sum(), 1))
    first, last = int(asked[0]) + 1, int(asked[-1]) + 1
    return float(counted[first:last].sum() / max(duration[first:last].sum(), 1))


def _mean(frame: pl.DataFrame, column: str) -> float:
    return float(frame[column].fill_null(0).to_numpy().mean()) if column in frame.columns else 0.0


def _rss(steps: pl.DataFrame, row: int) -> int | None:
    known = steps["rss_kib"].drop_nulls() if "rss_kib" in steps.columns else ()
    return int(known[row]) * 1024 if len(known) else None


def _trend(duration: NDArray[np.int64]) -> float | None:
    """The change of the step time from the first half of the run to the second, by their medians."""
    if len(duration) < _FEWEST_FOR_TREND:
        return None
    half = len(duration) // 2
    first, second = float(np.median(duration[:half])), float(np.median(duration[-half:]))
    return second / first - 1 if first else None


def _trend_per_1000(duration: NDArray[np.int64]) -> float | None:
    """The same over 1,000 steps, compounded; ``None`` for shorter runs, where it would be made up."""
    change = _trend(duration) if len(duration) >= 1000 else None
    return None if change is None else float((1 + change) ** (1000 / (len(duration) // 2)) - 1)


def _is_slow(duration: NDArray[np.int64]) -> NDArray[np.bool_]:
    middle = float(np.median(duration))
    spread = float(np.median(np.abs(duration - middle))) * _MAD_TO_SIGMA
    return (duration > SLOW_RATIO * middle) & (duration > middle + SPREADS * spread)


def _excess_of_slow(duration: NDArray[np.int64]) -> int:
    slow = _is_slow(duration)
    return int((duration[slow] - np.median(duration)).sum())


def _slow_steps(
    measured: pl.DataFrame, duration: NDArray[np.int64], parts: dict[str, NDArray[np.int64]]
) -> tuple[list[SlowStep], int, dict[str, int]]:
    """The slowest of the slow steps, each with the parts that were longer than usual; their number, and all losses."""
    rows = np.flatnonzero(_is_slow(duration))
    excess = np.round(duration[rows] - float(np.median(duration))).astype(np.int64)
    lost = {
        part: np.maximum(0, np.round(values[rows] - float(np.median(values)))).astype(np.int64)
        for part, values in parts.items()
    }
    lost["other"] = np.maximum(0, excess - sum(lost.values()))
    slowest = np.sort(np.argsort(-duration[rows], kind="stable")[:_MOST_SLOW_STEPS])
    slow = [
        SlowStep(
            step=int(measured["step"][int(rows[at])]),
            duration_ns=int(duration[rows[at]]),
            excess_ns=int(excess[at]),
            lost_ns={part: int(times[at]) for part, times in lost.items() if times[at]},
        )
        for at in slowest.tolist()
    ]
    return slow, len(rows), {part: int(times.sum()) for part, times in lost.items() if times.any()}


def _thinned(duration: NDArray[np.int64], most: int = 400) -> list[int]:
    """The step times in order; of a long run the longest of each stretch, so that spikes stay."""
    if len(duration) <= most:
        return [int(value) for value in duration]
    edges = np.linspace(0, len(duration), most + 1).astype(np.intp)
    return [int(duration[a:b].max()) for a, b in pairwise(edges.tolist())]
