"""The account of a whole run from samples whose truth is known by construction."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from whystall.analysis.run_summary import run_summaries, run_summary
from whystall.run_folder.samples import PROFILED, STEP_COLUMNS
from whystall.trace.samples import RunSamples


def samples(*steps: dict[str, int]) -> RunSamples:
    rows = [{column: step.get(column, 0) for column in STEP_COLUMNS} | {"step": i + 1} for i, step in enumerate(steps)]
    machine = pl.DataFrame(schema={"at_unix_ns": pl.Int64})
    return RunSamples("s", 0, 0, pl.DataFrame(rows, schema=dict.fromkeys(STEP_COLUMNS, pl.Int64)), machine, 0)


def step(duration_us: int = 1000, **parts: int) -> dict[str, int]:
    return {"duration_us": duration_us, "input_us": 100, "forward_us": 300, "backward_us": 500, "cpu_us": 800, **parts}


def test_shares_are_of_the_measured_time() -> None:
    found = run_summary(samples(*[step()] * 10))
    assert found is not None
    assert (found.steps, found.warm_up, found.total_ns, found.median_ns) == (10, 1, 9_000_000, 1_000_000)
    assert (found.measured, found.mean_ns) == (9, 1_000_000)
    assert found.shares == pytest.approx(
        {"input": 0.1, "forward": 0.3, "backward": 0.5, "optimizer": 0, "save": 0, "gc": 0, "other": 0.1}
    )
    assert found.on_cpu_share == pytest.approx(0.8)
    assert found.slow == []


@pytest.mark.parametrize(("slow", "left_out"), [(1, 5), (7, 7), (25, 15)])
def test_the_first_steps_are_not_measured_and_never_more_than_a_quarter(slow: int, left_out: int) -> None:
    steps = [step(9000 if at < slow else 1000, input_us=7000 if at < slow else 100) for at in range(60)]
    found = run_summary(samples(*steps))
    assert found is not None
    assert found.warm_up == left_out
    if slow <= left_out:
        assert found.shares["input"] == pytest.approx(0.1)
        assert found.slow == []
    assert max(found.durations_ns) == 9_000_000  # the picture shows them


@pytest.mark.parametrize(("queued", "share"), [(50, 0.05), (0, 0.0), (None, None)])
def test_the_wait_for_a_core_is_told_where_the_kernel_tells_it(queued: int | None, share: float | None) -> None:
    told = samples(*[step(**({} if queued is None else {"queued_us": queued}))] * 20)
    if queued is None:
        told = replace(told, steps=told.steps.with_columns(queued_us=pl.lit(None, pl.Int64)))
    found = run_summary(told)
    assert found is not None
    assert found.queued_share == (share if share is None else pytest.approx(share))
    older = run_summary(replace(told, steps=told.steps.drop("queued_us")))
    assert older is not None
    assert older.queued_share is None


def test_what_a_ready_batch_takes_to_hand_over() -> None:
    found = run_summary(samples(*[step(input_us=100 if at % 3 else 700) for at in range(60)]))
    assert found is not None
    assert found.ready_input_ns == 100_000


def test_a_share_that_one_step_makes_is_known_no_better_than_itself() -> None:
    even = run_summary(samples(*[step(input_us=140)] * 60))
    odd = run_summary(samples(*[step(input_us=100 + (2200 if at == 30 else 0)) for at in range(60)]))
    assert even is not None
    assert odd is not None
    assert even.shares["input"] == pytest.approx(odd.shares["input"])
    assert even.share_errors["input"] == 0
    # 55 steps are measured: one of them 2200 us more makes a standard deviation of 2200 x sqrt(54) / 55,
    # and of the mean that over sqrt(55).
    assert odd.share_errors["input"] == pytest.approx(2.2 * 54**0.5 / 55 / 55**0.5, rel=1e-6)


def test_steps_under_the_profiler_are_counted_but_not_measured() -> None:
    found = run_summary(samples(*[step()] * 4, *[step(9000, flags=PROFILED)] * 3))
    assert found is not None
    assert (found.steps, found.profiled, found.max_ns) == (7, 3, 1_000_000)


def test_only_profiled_steps_give_no_account() -> None:
    assert run_summary(samples(step(flags=PROFILED))) is None
    assert run_summary(samples()) is None


def test_slow_step_names_what_it_lost_time_in() -> None:
    checkpoint = step(5000, save_us=3500, gc_us=200)
    found = run_summary(samples(*[step()] * 20, checkpoint, *[step()] * 20))
    assert found is not None
    (slow,) = found.slow
    assert (slow.step, slow.duration_ns, slow.excess_ns) == (21, 5_000_000, 4_000_000)
    assert slow.lost_ns == {"save": 3_500_000, "gc": 200_000, "other": 300_000}
    assert found.slow_ns == 4_000_000


def test_usual_spread_is_not_slow() -> None:
    found = run_summary(samples(*[step(1000 + 40 * (i % 11)) for i in range(60)]))
    assert found is not None
    assert found.slow == []


def test_trend() -> None:
    growing = run_summary(samples(*[step(1000)] * 50, *[step(1100)] * 50))
    assert growing is not None
    assert growing.trend == pytest.approx(0.1)
    assert growing.trend_per_1000_steps is None  # of a hundred steps nobody knows
    long = run_summary(samples(*[step(1000)] * 1005, *[step(400)] * 1000))
    assert long is not None
    # The halves' middles lie a thousand steps apart: three fifths are gone, and never more than all.
    assert long.trend_per_1000_steps == pytest.approx(-0.6)
    assert long.trend == pytest.approx(-0.6)
    steep = run_summary(samples(*[step(1000)] * 505, *[step(400)] * 500))
    assert steep is not None
    assert steep.trend_per_1000_steps == pytest.approx(0.4**2 - 1)
    few = run_summary(samples(*[step()] * 5))
    assert few is not None
    assert few.trend_per_1000_steps is few.trend is None


def test_long_runs_are_thinned_and_keep_their_spikes() -> None:
    found = run_summary(samples(*[step(7000 if i == 4321 else 1000) for i in range(10_000)]))
    assert found is not None
    assert len(found.durations_ns) == 400
    assert max(found.durations_ns) == 7_000_000


def test_memory_from_first_to_last() -> None:
    found = run_summary(samples(step(rss_kib=100), step(rss_kib=150), step(rss_kib=300)))
    assert found is not None
    assert (found.rss_start_bytes, found.rss_end_bytes) == (102_400, 307_200)


def test_time_on_a_core_is_of_the_steps_between_two_answers_of_the_kernel() -> None:
    """Short steps share an answer; what came after the last one is not known."""
    quiet = step(cpu_us=0)
    asked = step(cpu_us=3 * 600, rss_kib=5)
    rows = [quiet, step(cpu_us=99, rss_kib=5), quiet, quiet, asked, quiet, quiet, asked, quiet]
    found = samples(*rows)
    known = pl.Series([row.get("rss_kib") for row in rows], dtype=pl.Int64)
    account = run_summary(replace(found, steps=found.steps.with_columns(rss_kib=known)))
    assert account is not None
    assert account.on_cpu_share == pytest.approx(0.6)


def test_places_are_summed_and_ordered() -> None:
    found = samples(step(), step())
    rows = [
        ("other", "a.py", 1, "f", "x()", "a:f", 3, 0, 1),
        ("input", "b.py", 2, "g", "y()", "b:g", 6, 0, 1),
        ("other", "a.py", 1, "f", "x()", "a:f", 1, 1, 2),
    ]
    looks = pl.DataFrame(rows, schema=found.places.schema, orient="row")
    account = run_summary(replace(found, places=looks))
    assert account is not None
    assert [(place.file, place.line, place.share) for place in account.places] == [("b.py", 2, 0.6), ("a.py", 1, 0.4)]


def test_workers_that_compute_and_other_processes() -> None:
    found = samples(step(), step())
    second = 1_000_000_000
    threads = [(0, 7, "R", 0), (2 * second, 7, "R", 60), (0, 8, "S", 0), (2 * second, 8, "S", 20)]
    workers = [(0, 5, "R", 100), (2 * second, 5, "R", 260), (0, 6, "S", 0), (2 * second, 6, "S", 40)]
    machine = [(0, 1_000, 400), (2 * second, 1_350, 450)]
    schema = {"at_unix_ns": pl.Int64, "busy_ticks": pl.Int64, "own_ticks": pl.Int64}
    account = run_summary(
        replace(
            found,
            workers=pl.DataFrame(workers, schema=found.workers.schema, orient="row"),
            threads=pl.DataFrame(threads, schema=found.threads.schema, orient="row"),
            machine=pl.DataFrame(machine, schema=schema, orient="row"),
        )
    )
    assert account is not None
    assert account.workers == 2
    assert account.worker_cpu_share == pytest.approx((0.8 + 0.2) / 2)
    assert account.thread_cores == pytest.approx(0.3 + 0.1)
    assert account.other_cores == pytest.approx((350 - 50) / 100 / 2)
    assert account.own_cores == pytest.approx(50 / 100 / 2)


def test_workers_of_short_epochs_count_by_the_time_that_they_were_there() -> None:
    """Three epochs in which the worker hardly works, and one, as long as five of them, in which it works."""
    second, found = 1_000_000_000, samples(step(), step())
    workers = [
        seen
        for pid, (begin, end, ticks) in enumerate([(0, 1, 10), (1, 2, 10), (2, 3, 10), (3, 8, 250)])
        for seen in ((begin * second, pid, "S", 0), (end * second, pid, "S", ticks))
    ]
    account = run_summary(replace(found, workers=pl.DataFrame(workers, schema=found.workers.schema, orient="row")))
    assert account is not None
    assert account.worker_cpu_share == pytest.approx(0.5)


def changed_run(*, window_at: int) -> RunSamples:
    steps = [step(1000 if at < 200 else 4000, input_us=100 if at < 200 else 3100) for at in range(300)]
    for at in range(window_at, window_at + 3):
        steps[at] |= {"duration_us": 50_000, "flags": PROFILED}
    found = samples(*steps)
    rows = [
        ("other", "before.py", 1, "f", "x()", "a:f", 30, 0, 180),
        ("input", "after.py", 2, "g", "y()", "b:g", 10, 180, 221),
        ("input", "after.py", 2, "g", "y()", "b:g", 10, 221, 300),
    ]
    return replace(found, places=pl.DataFrame(rows, schema=found.places.schema, orient="row"))


@pytest.mark.parametrize(
    ("window_at", "median_ns", "input_share", "file", "told"),
    [
        (250, 4_000_000, 0.775, "after.py", (201, 300, 1_000_000)),
        (20, 1_000_000, 0.1, "before.py", (1, 200, 4_000_000)),
    ],
)
def test_a_run_that_changed_its_pace_for_good_is_told_at_that_of_its_latest_window(
    window_at: int, median_ns: int, input_share: float, file: str, told: tuple[int, int, int]
) -> None:
    found = changed_run(window_at=window_at)
    (account,), whole = run_summaries([found]), run_summary(found)
    assert whole is not None
    assert account.median_ns == median_ns
    assert account.shares["input"] == pytest.approx(input_share)
    assert [place.file for place in account.places] == [file]
    assert account.changed is not None
    assert (account.changed.first, account.changed.last, account.changed.other_ns) == told
    assert (account.all_steps, account.drawn_ns, account.trend) == (300, whole.drawn_ns, whole.trend)
    assert whole.changed is None
    assert whole.shares["input"] == pytest.approx((192 * 100 + 100 * 3100) / (192 * 1000 + 100 * 4000), abs=0.01)


def test_a_stretch_with_hardly_a_look_is_told_with_the_whole_run() -> None:
    found = changed_run(window_at=250)
    early = found.places.with_columns(pl.lit(180).alias("until"), pl.lit(0).alias("since"))
    (account,) = run_summaries([replace(found, places=early)])
    assert (account.changed, account.steps) == (None, 300)
    (without,) = run_summaries([replace(found, places=early.clear())])
    assert without.changed is not None  # there is no look to lose


def test_other_programs_that_end_are_no_change_of_the_job() -> None:
    steps = [step(1400 if at < 140 else 1000) for at in range(450)]
    (account,) = run_summaries([samples(*steps)])
    assert account.changed is None


def test_a_pace_that_comes_and_goes_is_no_change() -> None:
    steps = [step(4000 if at // 100 % 2 else 1000) for at in range(400)]
    (account,) = run_summaries([samples(*steps)])
    assert (account.changed, account.median_ns) == (None, run_summary(samples(*steps)).median_ns)  # type: ignore[union-attr]


def test_all_slow_steps_count_where_the_slowest_alone_are_listed() -> None:
    found = run_summary(samples(*[step(9000, input_us=8100) if at % 10 == 9 else step() for at in range(2000)]))
    assert found is not None
    assert (len(found.slow), found.slow_count) == (50, 200)
    assert found.lost_when_slow("input") == 200 * 8_000_000
    assert found.lost_when_slow("input", "forward") == 200 * 8_000_000
    assert found.slow_ns == 200 * 8_000_000


def test_the_other_ranks_of_a_job_are_no_other_programs() -> None:
    """Three cores are busy: a rank has one, its mate one and a half, and half a one is somebody else's."""
    schema = {"at_unix_ns": pl.Int64, "busy_ticks": pl.Int64, "own_ticks": pl.Int64}
    ranks = []
    for own in (200, 300):
        machine = [(0, 1_000, 400), (2_000_000_000, 1_600, 400 + own)]
        frame = pl.DataFrame(machine, schema=schema, orient="row")
        ranks.append(replace(samples(*[step()] * 60), machine=frame))
    assert [run.other_cores for run in run_summaries(ranks)] == pytest.approx([0.5, 0.5])
    assert [run.other_cores for run in run_summaries(ranks[:1])] == pytest.approx([2.0])
