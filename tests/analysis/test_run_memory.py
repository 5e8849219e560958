"""The memory of a whole run: what rises steadily is told from what settles, jumps, or belongs to the profiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import polars as pl
import pytest

from whystall.analysis.run_memory import allocator_runs, memory_rises
from whystall.analysis.run_results import AllocatorRun
from whystall.run_folder.samples import LOOKED_AT, PROFILED, STEP_COLUMNS
from whystall.trace.samples import RunSamples

MIB = 1 << 20


def samples(
    rss_mib: Sequence[int | None],
    profiled: Sequence[int] = (),
    allocated: Sequence[tuple[int, int, int]] = (),
    looked_at: Sequence[int] = (),
    heap_mib: Sequence[int | None] | None = None,
) -> RunSamples:
    """A run with the memory after each step, and what an allocator said: step, device, bytes."""
    rows = [
        {
            **dict.fromkeys(STEP_COLUMNS, 0),
            "step": i,
            "rss_kib": None if mib is None else mib * 1024,
            "heap_kib": None if heap_mib is None or (heap := heap_mib[i]) is None else heap * 1024,
            "flags": PROFILED * (i in profiled) | LOOKED_AT * (i in looked_at),
        }
        for i, mib in enumerate(rss_mib)
    ]
    steps = pl.DataFrame(rows, schema=dict.fromkeys(STEP_COLUMNS, pl.Int64))
    said = [(step, device, now, now + 7, now + 1, step // 10) for step, device, now in allocated]
    found = RunSamples("s", 0, 0, steps, pl.DataFrame(), 0)
    frame = pl.DataFrame(said, schema=found.allocators.schema, orient="row")
    return RunSamples("s", 0, 0, steps, pl.DataFrame(), 0, allocators=frame)


def test_a_leak_is_known_with_its_rate() -> None:
    (rise,) = memory_rises(samples([100 + 2 * step for step in range(65)]))
    assert rise.device is None
    assert rise.rise_bytes / rise.over_steps == pytest.approx(2 * MIB, rel=0.05)
    assert rise.start_bytes == pytest.approx((100 + 2 * (5 + 7)) * MIB, rel=0.02)


@pytest.mark.parametrize(
    "rss",
    [
        pytest.param([100] * 60, id="flat"),
        pytest.param([min(100 + 5 * step, 180) for step in range(60)], id="settles"),
        pytest.param([100 + 40 * (step > 30) for step in range(60)], id="one-jump"),
        pytest.param([100 + 30 * (step % 7 == 0) for step in range(60)], id="now-and-then"),
        pytest.param([200 - step for step in range(60)], id="falls"),
        pytest.param([100 + step for step in range(15)], id="too-few"),
        pytest.param([None] * 60, id="not-known"),
    ],
)
def test_what_does_not_rise_steadily(rss: list[int | None]) -> None:
    assert memory_rises(samples(rss)) == []


def test_what_rises_while_the_profiler_runs_is_not_the_jobs() -> None:
    rss = [400] * 10 + [400 + 20 * i for i in range(10)] + [600] * 40
    assert memory_rises(samples(rss, profiled=range(10, 20))) == []
    rising = [400] * 10 + [400 + 20 * i for i in range(10)] + [600 + i for i in range(40)]
    (rise,) = memory_rises(samples(rising, profiled=range(10, 20)))
    assert rise.rise_bytes / rise.over_steps == pytest.approx(MIB, rel=0.05)


def test_steps_that_are_looked_at_belong_to_the_stretch() -> None:
    rss = [100 + 2 * step for step in range(40)]
    (rise,) = memory_rises(samples(rss, looked_at=range(15, 32)))
    assert rise.over_steps == 3 * (35 // 4)
    assert rise.rise_bytes / rise.over_steps == 2 * MIB


def test_free_memory_that_stays_resident_does_not_hide_what_is_held() -> None:
    heap = [50 + step if step % 3 == 0 else None for step in range(90)]
    (rise,) = memory_rises(samples([400] * 90, heap_mib=heap))
    assert rise.heap
    assert rise.rise_bytes / rise.over_steps == MIB
    assert rise.start_bytes == pytest.approx((50 + 5 + 10) * MIB, rel=0.05)
    # What others than the C library's allocator hold is seen in what is resident.
    (rise,) = memory_rises(samples([100 + 2 * step for step in range(60)], heap_mib=[50] * 60))
    assert not rise.heap


def test_what_is_resident_in_leaps_beside_a_heap_that_stays_is_no_growth() -> None:
    """Twelve dozen steps of inputs of any length: code for new shapes, and a heap that is cut up."""
    leaps = [400, 403, 411, 442, 443, 444, 447, 452, 452, 458, 461, 462, 464, 498, 516, 516, 516, 516]
    rss = [leaps[step // 8] for step in range(8 * len(leaps))]
    assert memory_rises(samples(rss, heap_mib=[136] * len(rss))) == []
    (rise,) = memory_rises(samples(rss))  # where the heap is not known it may be one
    assert not rise.heap


def test_steps_that_share_a_count() -> None:
    rss = [100 + step if step % 2 else None for step in range(100)]
    (rise,) = memory_rises(samples(rss))
    assert rise.rise_bytes / rise.over_steps == pytest.approx(MIB, rel=0.05)


def test_a_devices_memory_is_what_stays_between_steps() -> None:
    looks = [(step, 1, (1000 + step + 400 * (step % 3)) * MIB) for step in range(0, 200, 2)]
    flat = [(step, 0, (1000 + 400 * (step % 3)) * MIB) for step in range(0, 200, 2)]
    assert [rise.device for rise in memory_rises(samples([100] * 200, allocated=[*flat, *looks]))] == [1]
    (rise,) = memory_rises(samples([100] * 200, allocated=looks))
    assert rise.rise_bytes / rise.over_steps == pytest.approx(MIB, rel=0.05)


def test_what_allocators_told_over_a_run() -> None:
    found = allocator_runs(samples([100] * 50, allocated=[(10, 0, 500), (20, 0, 900), (40, 0, 700)]))
    assert found == [AllocatorRun(device=0, peak_allocated_bytes=901, peak_reserved_bytes=907, retries=3, steps=30)]


def test_samples_without_memory() -> None:
    bare = RunSamples("s", 0, 0, pl.DataFrame({"step": [1], "duration_us": [5], "flags": [0]}), pl.DataFrame(), 0)
    assert memory_rises(bare) == []
    assert allocator_runs(bare) == []


def test_what_begins_to_rise_late_is_found_in_the_latest_stretch() -> None:
    rss = [100] * 2000 + [100] * 20 + [100 + step for step in range(300)]
    (rise,) = memory_rises(samples(rss, profiled=range(2010, 2013)))
    assert rise.rise_bytes / rise.over_steps == pytest.approx(MIB, rel=0.1)
    assert memory_rises(samples([100] * 2000 + [160] * 300, profiled=range(2010, 2013))) == []


def test_what_is_resident_comes_and_goes_where_the_heap_stays() -> None:
    """A healthy job evaluated and copied its best weights: the heap was cut up, and 31 MiB more were resident."""
    resident = [392] * 60 + [390 + step // 2 for step in range(60)]
    assert memory_rises(samples(resident, heap_mib=[160] * 120)) == []
    (unknown,) = memory_rises(samples(resident))
    (rise,) = memory_rises(samples(resident, heap_mib=[160] * 60 + [160 + step // 2 for step in range(60)]))
    assert (unknown.heap, rise.heap) == (False, True)


@pytest.mark.parametrize(
    ("duration_us", "first_ms"),
    [
        (lambda step: 1000 + 10 * step, 1.12),  # 65 steps less 5: the twelfth is in the middle of the first quarter
        (lambda _step: 1000, None),
        (lambda step: 1000 + step, None),  # by 4 % in all
        (lambda step: 1000 + 1000 * (step > 30), None),  # at once
    ],
)
def test_steps_that_become_longer_as_memory_rises(duration_us: Callable[[int], int], first_ms: float | None) -> None:
    run = samples([100 + 2 * step for step in range(65)])
    steps = run.steps.with_columns(duration_us=pl.Series([duration_us(step) for step in range(65)], dtype=pl.Int64))
    (rise,) = memory_rises(replace(run, steps=steps))
    if first_ms is None:
        assert (rise.first_step_ns, rise.mean_step_ns) == (None, None)
    else:
        assert rise.first_step_ns == pytest.approx(first_ms * 1e6, rel=0.02)
        assert rise.mean_step_ns == pytest.approx(1_345_000, rel=0.01)


def test_what_rises_once_steps_are_long_is_found_among_many_short_ones() -> None:
    """Ten thousand steps of 2 ms, and ninety of 150 ms in which the heap rises."""
    heap = [200] * 10_000 + [200 + step // 2 for step in range(90)]
    found = samples([400] * len(heap), heap_mib=heap, profiled=range(3, 5))
    lasts = pl.Series([2_000] * 10_000 + [100_000 + 1_000 * step for step in range(90)])
    (rise,) = memory_rises(replace(found, steps=found.steps.with_columns(duration_us=lasts)))
    assert rise.rise_bytes / rise.over_steps == pytest.approx(MIB / 2, rel=0.1)
    # what steps took before it, and on average while it rose
    assert rise.first_step_ns == 2_000_000
    assert rise.mean_step_ns == pytest.approx(145_000_000, rel=0.1)


def test_a_rise_is_known_though_the_job_is_recorded_again_and_again() -> None:
    """No stretch between two windows is long enough; what the profiler adds and keeps of the heap is no rise."""
    heap, profiled = [], [step for step in range(400) if step >= 200 and step % 20 >= 15]
    kept = 0
    for step in range(400):
        kept += 7 * (step in profiled)
        heap.append(300 + max(step - 200, 0) + kept)
    assert {rise.heap for rise in memory_rises(samples([900] * 400, profiled, heap_mib=heap))} == {True}
    (rise,) = memory_rises(samples([900] * 400, profiled, heap_mib=heap))
    assert rise.rise_bytes / rise.over_steps == pytest.approx(15 / 20 * MIB * 0.75, rel=0.35)
    still = [300 + 7 * sum(1 for one in profiled if one <= step) for step in range(400)]
    assert memory_rises(samples([900] * 400, profiled, heap_mib=still)) == []


def test_the_part_of_a_rise_in_which_steps_become_longer_is_told() -> None:
    """Steps that are longer at once when memory begins to rise say nothing of what they wait for."""
    given = samples([900] * 400, heap_mib=[300] * 200 + [300 + 2 * at for at in range(200)])
    lasts = [100] * 300 + [100 + 3 * at for at in range(100)]
    longer = replace(given, steps=given.steps.with_columns(duration_us=pl.Series(lasts)))
    (rise,) = memory_rises(longer)
    assert rise.first_step_ns is not None
    assert rise.first_step_ns == pytest.approx(100_000, rel=0.3)
