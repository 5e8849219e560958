"""Comparisons of recordings whose difference is known by construction."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import whystall
from whystall.cli.thresholds import parse
from whystall.diagnosis.cause_changes import cause_changes
from whystall.diagnosis.comparison import Comparison
from whystall.diagnosis.finding import Abstention
from whystall.errors import UsageError
from whystall.report.comparison import render_comparison
from whystall.report.comparison_page import comparison_document
from whystall.report.document_page import as_page
from whystall.testing import TraceBuilder, trace

SHARED = Path(__file__).parents[3] / "shared" / "traces"


def loop(kernel_ns: int, *, fetch_ns: int = 0, steps: int = 10, name: str = "gemm") -> TraceBuilder:
    """A step is a fetch, 20 us of host work, and a kernel that is waited for; every other step is 2 % longer."""
    built = trace()
    at = 0
    for number in range(steps):
        lasts = kernel_ns + (kernel_ns // 50 if number % 2 else 0)
        begin = at
        if fetch_ns:
            built.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at=at, lasts=fetch_ns)
            at += fetch_ns
        built.operator("aten::mm", at=at, lasts=20_000)
        built.launch(name, at=at + 5_000, call_lasts=5_000, runs_at=at + 12_000, lasts=lasts)
        built.runtime("cudaDeviceSynchronize", at=at + 20_000, lasts=lasts - 5_000)
        at += 15_000 + lasts
        built.step(number, at=begin, lasts=at - begin)
    return built


def compared(base: TraceBuilder, candidate: TraceBuilder) -> Comparison:
    return whystall.compare(whystall.analyze(base.load()), whystall.analyze(candidate.load()))


def test_a_removed_fetch_is_the_speed_up_and_the_cause_that_went_away() -> None:
    found = compared(loop(500_000, fetch_ns=300_000), loop(500_000))
    assert found.speedup == pytest.approx((815 + 5) / (515 + 5), rel=0.01)
    assert found.significant
    assert ("input.synchronous-loader", "gone") in [(row.id, row.change) for row in found.causes]
    fetched = next(row for row in found.ledger if row.name == "idle_input")
    assert (fetched.base_ns, fetched.candidate_ns, fetched.beyond_noise) == (300_000, 0, True)
    assert "gone: input.synchronous-loader" in found.summary


def judged(severity: str | None, *, abstained: bool = False) -> SimpleNamespace:
    found = SimpleNamespace(id="host.sync", severity=severity, gain=None)
    left = [Abstention(id="host.sync", missing_signals=["stacks"])] if abstained else []
    return SimpleNamespace(findings=[found] if severity else [], abstained=left)


@pytest.mark.parametrize(
    ("base", "candidate", "word"),
    [
        (judged("major"), judged(None), "gone"),
        (judged("major"), judged("minor"), "stays"),
        (judged("major"), judged("info"), "less"),
        (judged("major"), judged(None, abstained=True), "unknown"),
        (judged(None), judged("major"), "new"),
        (judged("info"), judged("major"), "more"),
        (judged(None, abstained=True), judged("major"), "unknown"),
    ],
)
def test_what_became_of_a_cause(base: Any, candidate: Any, word: str) -> None:
    assert [row.change for row in cause_changes(base, candidate)] == [word]


def test_what_only_one_run_tells_of_and_does_not_name_is_no_change() -> None:
    assert cause_changes(judged("info"), judged(None)) == []


def test_the_same_twice_is_no_change() -> None:
    found = compared(loop(500_000), loop(500_000))
    assert (found.speedup, found.significant) == (1.0, False)
    assert "no change beyond the noise" in found.summary
    assert not any(row.beyond_noise for row in (*found.ledger, *found.kernels, *found.operators))


def test_a_change_within_the_spread_of_the_steps_is_none() -> None:
    found = compared(loop(500_000), loop(503_000))
    assert not found.significant
    assert found.speedup_low is not None
    assert found.speedup_high is not None
    assert found.speedup_low < 515 / 518 < found.speedup_high


def test_kernels_are_aligned_by_name_and_those_of_one_side_are_kept() -> None:
    found = compared(loop(500_000, name="old"), loop(300_000, name="new"))
    rows = {row.name: (row.base_ns, row.candidate_ns) for row in found.kernels}
    assert rows["old"][1] is None
    assert rows["new"][0] is None
    assert rows["old"][0] == pytest.approx(505_000, rel=0.001)


def test_few_steps_give_a_ratio_without_an_interval_and_say_so() -> None:
    found = compared(loop(500_000, steps=2), loop(250_000, steps=2))
    assert found.speedup_low is None
    assert "too few steps to distinguish a change from noise" in found.warnings


def test_nothing_to_compare() -> None:
    found = compared(trace().launch("k", at=0, runs_at=10, lasts=5), loop(100_000))
    assert found.speedup is None
    assert found.summary == "One of the two has no steps to compare."


@pytest.mark.parametrize(
    ("condition", "crossed"),
    [
        ("step>+3%", True),
        ("step>+90%", False),
        ("step<-3%", False),
        ("idle_input>+200us", True),
        ("idle_input > 1 ms", False),
        ("operator:aten::mm>+1%", False),
        ("kernel:gemm>+1%", False),
        ("kernel:absent>+1%", False),
        ("new-cause", True),
    ],
)
def test_conditions(condition: str, *, crossed: bool) -> None:
    found = compared(loop(500_000), loop(500_000, fetch_ns=300_000))
    assert parse(condition).crossed(found) is crossed


def two_kernels(small_ns: int, *, waits_ns: int) -> TraceBuilder:
    """A step of 100 ms of one kernel and some of another, with a gap that differs widely from step to step."""
    built, at = trace(), 0
    for number in range(10):
        lasts = 100_000_000 + waits_ns * (number % 5) + small_ns
        built.operator("aten::mm", at=at, lasts=20_000)
        built.launch("large", at=at + 2_000, runs_at=at + 12_000, lasts=100_000_000)
        built.launch("void small<128>(int, 2)", at=at + 5_000, runs_at=at + 100_012_000, lasts=small_ns)
        built.step(number, at=at, lasts=lasts)
        at += lasts
    return built


def test_a_kernel_is_judged_by_its_own_noise_and_not_by_that_of_the_step() -> None:
    found = compared(two_kernels(622_000, waits_ns=20_000_000), two_kernels(4_220_000, waits_ns=20_000_000))
    assert not found.significant
    changed = {row.name: row.beyond_noise for row in found.kernels}
    assert changed == {"large": False, "void small<128>(int, 2)": True}
    assert parse("kernel:void small<128>(int, 2)>+10%").crossed(found)
    assert not parse("kernel:large>+10%").crossed(found)


def test_a_part_of_the_ledger_is_judged_by_how_it_differs_between_steps() -> None:
    found = compared(two_kernels(622_000, waits_ns=20_000_000), two_kernels(622_000, waits_ns=21_000_000))
    wait = max(found.ledger, key=lambda row: abs(row.delta_ns))
    assert wait.name.startswith("idle")
    assert not wait.beyond_noise


def test_two_programs_that_share_no_name_are_said_to_be_different() -> None:
    other = trace()
    for number in range(10):
        other.operator("aten::conv", at=number * 100_000, lasts=20_000)
        other.launch("winograd", at=number * 100_000 + 5_000, runs_at=number * 100_000 + 12_000, lasts=50_000)
        other.step(number, at=number * 100_000, lasts=100_000)
    assert compared(loop(500_000), other).summary.endswith("these may be different programs.")
    assert "different programs" not in compared(loop(500_000, name="old"), loop(300_000, name="new")).summary


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("kernel:gemn>+10%", "no kernel of the two runs is called 'gemn': did you mean gemm?"),
        ("operator:zzz>+10%", "no operator of the two runs is called 'zzz'$"),
        ("module:Linear_0>+10%", "no module of the two runs"),
        ("idle_inptu>+2ms", "no part of the ledger is called 'idle_inptu': did you mean idle_input?"),
    ],
)
def test_a_condition_on_what_neither_run_has_is_refused(condition: str, message: str) -> None:
    sides = [whystall.analyze(loop(lasts).load()) for lasts in (500_000, 300_000)]
    with pytest.raises(UsageError, match=message):
        parse(condition).check(*sides)
    for known in ("kernel:gemm>1%", "operator:aten::mm>1%", "idle_gc>1ms", "step>1%", "new-cause"):
        parse(known).check(*sides)


@pytest.mark.parametrize("text", ["", "step", "step=3%", "step>3", "what:ever>3%", "step>3 kg"])
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


def test_every_format_shows_the_summary_and_escapes_names() -> None:
    found = compared(loop(500_000, name="<script>alert(1)</script>"), loop(300_000, name="b|c"))
    page = as_page(comparison_document(found))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "b&#124;c" in render_comparison(found, "markdown")
    assert json.loads(render_comparison(found, "json"))["summary"] == found.summary
    assert render_comparison(found, "terminal").startswith(found.summary)
    with pytest.raises(ValueError, match="unknown format"):
        render_comparison(found, "pdf")


def test_workers_removed_the_wait_for_input_of_the_recorded_resnet() -> None:
    base, candidate = (SHARED / f"resnet50-workers{workers}-v100.json.gz" for workers in (0, 4))
    if not base.exists():
        pytest.skip("the shared traces are not here")
    before, after = whystall.analyze(base), whystall.analyze(candidate)
    found = whystall.compare(before, after)
    assert ("input.synchronous-loader", "gone") in [(row.id, row.change) for row in found.causes]
    assert found.significant
    # What was predicted of the base alone covers what the candidate's recording shows.
    gain = before.findings[0].gain
    assert before.findings[0].id == "input.synchronous-loader"
    assert gain is not None
    assert found.speedup is not None
    assert gain.floor <= found.speedup <= gain.ceiling


def counting(
    *, launches: int = 3, irregular: bool = False, synchronizes: bool = False, device: str = "NVIDIA H100 80GB HBM3"
) -> TraceBuilder:
    """Eight steps with so many launches; ``irregular``: each third step has one more."""
    built = trace(deviceProperties=[{"id": 0, "name": device}])
    for number in range(8):
        at = number * 1_000_000
        built.step(number, at=at, lasts=900_000)
        for launch in range(launches + (irregular and number % 3 == 0)):
            built.launch(
                "gemm", at=at + 20_000 * launch, call_lasts=5_000, runs_at=at + 20_000 * launch + 9_000, lasts=8_000
            )
        if synchronizes:
            built.runtime("cudaDeviceSynchronize", at=at + 800_000, lasts=10_000)
    return built


def crossed(condition: str, base: TraceBuilder, candidate: TraceBuilder) -> bool:
    return parse(condition).crossed(compared(base, candidate))


def test_a_gate_on_a_count_catches_one_launch_more() -> None:
    assert crossed("launches>+0", counting(), counting(launches=4))
    assert crossed("kernels>+0", counting(), counting(launches=4))
    assert not crossed("launches>+1", counting(), counting(launches=4))
    assert crossed("launches>+20%", counting(), counting(launches=4))
    assert not crossed("launches>+0", counting(), counting())
    assert not crossed("launches>+0", counting(launches=4), counting())
    assert crossed("launches<-0", counting(launches=4), counting())


def test_what_never_happened_before_is_caught_too() -> None:
    assert crossed("synchronizations>+0", counting(), counting(synchronizes=True))
    assert not crossed("synchronizations>+0", counting(), counting())


def test_an_odd_step_changes_no_count() -> None:
    assert not crossed("launches>+0", counting(), counting(irregular=True))
    assert crossed("launches>+0", counting(irregular=True), counting(launches=4, irregular=True))
    (row,) = [
        row for row in compared(counting(), counting(launches=5, irregular=True)).counts if row.name == "launches"
    ]
    assert (row.base, row.candidate, row.certain) == (3, 5, True)


def test_counts_and_times_of_what_cannot_be_compared_are_not_judged() -> None:
    without_steps = compared(counting(), trace().launch("gemm", at=0, call_lasts=5_000, runs_at=9_000, lasts=8_000))
    assert parse("launches>+0").is_open(without_steps) is not None
    assert not parse("launches>+0").crossed(without_steps)
    other_device = compared(counting(), counting(launches=4, device="NVIDIA A100-SXM4-80GB"))
    assert "devices differ" in str(parse("step>+3%").is_open(other_device))
    assert parse("launches>+0").crossed(other_device)


def test_counts_are_shown_where_they_changed() -> None:
    text = render_comparison(compared(counting(), counting(launches=4)), "terminal")
    assert re.search(r"^launches +3 +4 +\+1$", text, re.MULTILINE)
    assert "COUNTS" not in render_comparison(compared(counting(), counting()), "terminal")
    assert "launches" in render_comparison(compared(counting(), counting(launches=4)), "markdown")
    assert "launches" in as_page(comparison_document(compared(counting(), counting(launches=4))))


@pytest.mark.parametrize("text", ["launches>+3ms", "step>+3", "idle_input>+2"])
def test_a_count_has_no_unit_and_a_time_needs_one(text: str) -> None:
    with pytest.raises(UsageError, match="is no condition"):
        parse(text)
