"""What a verdict says where no cause is named: the limit that was used, what is perhaps one, and how far physics is."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
from tests.diagnosis.cases import STEP_NS, case_of, fixed, now_and_then, run
from tests.diagnosis.jobs import H100, shaped

import whystall
from whystall.analysis.trace_analysis import analyze_trace
from whystall.diagnosis.catalogue import causes
from whystall.diagnosis.diagnose import diagnose, diagnose_run
from whystall.diagnosis.finding import Finding
from whystall.diagnosis.rule import Rule
from whystall.diagnosis.run_facts import RunFacts
from whystall.testing import TraceBuilder, trace

SIZE: Final = 8192
PRODUCT_NS: Final = 2 * SIZE**3 / (0.7 * 989e12) * 1e9
"""A product of 8192 cubed in bfloat16 at 70 % of what an H100 could do."""


def products(lengths_ns: list[float], *, shapes: bool = True) -> TraceBuilder:
    """A step of one product for each length, back to back; the host is far ahead of the device."""
    built = trace(deviceProperties=[H100])
    at = 0
    for number, length in enumerate(map(round, lengths_ns)):
        built.step(number, at=at, lasts=length + 2_000)
        dims = shaped([SIZE, SIZE], [SIZE, SIZE], dtype="c10::BFloat16") if shapes else {}
        built.operator("aten::mm", at=at + 1_000, lasts=9_000, **dims)
        built.launch("nvjet_tst_bf16", at=at + 3_000, call_lasts=4_000, runs_at=at + 10_000, lasts=length - 8_000)
        at += length + 2_000
    return built


def perhaps(built: TraceBuilder, rule: Rule) -> list[Finding]:
    found = diagnose(case_of(built), [rule])
    return [finding for finding in found.findings if finding.title.startswith("Perhaps")]


@pytest.mark.parametrize(
    ("spread", "told"),
    [
        (0.0, "worth 2.0 % of a step"),
        # of ten steps eight count; half are 10 % longer: MAD 0.05 of 1.05, times 1.4826, over the root of eight, twice
        (0.1, "worth 5.0 % of a step"),
    ],
)
def test_health_is_stated_with_the_limit_that_was_used(spread: float, told: str) -> None:
    report = whystall.analyze(products([PRODUCT_NS * (1 + spread * (number % 2)) for number in range(10)]).load())
    assert report.verdict.summary.startswith("Healthy: no cause that was looked for is")
    assert told in report.verdict.summary


def test_a_job_without_an_accelerator_is_healthy_up_to_what_a_cause_must_save_there() -> None:
    built = trace()
    for number in range(10):
        built.step(number, at=number * 110_000_000, lasts=110_000_000)
        built.operator("aten::mm", at=number * 110_000_000 + 1_000, lasts=109_000_000)
    assert "worth 7.0 % of a step" in whystall.analyze(built.load()).verdict.summary


@pytest.mark.parametrize(("threads", "idle"), [(1, True), (2, False)])
def test_a_job_beside_an_idle_core_is_not_called_healthy(threads: int, *, idle: bool) -> None:
    built = trace()
    for number in range(10):
        built.step(number, at=number * STEP_NS, lasts=STEP_NS)
        lasts = round(0.99 * STEP_NS)
        built.operator("aten::mm", at=number * STEP_NS + 1_000, lasts=lasts, **shaped([512, 512], [512, 512]))
    recorded = built.load()
    sampled, facts = run(other_cores=0.0), RunFacts(threads=threads, cores=2)
    verdict, _ = diagnose_run([recorded], [analyze_trace(recorded)], [sampled], facts)
    assert verdict.cause is None
    assert verdict.summary.startswith("Nothing was found") is not idle  # how far a CPU is from its limits is not known
    assert ("a core stands idle" in verdict.summary) is idle


def test_three_unequal_steps_are_not_taken_for_steady() -> None:
    """The median deviation of 218, 764 and 928 ms is 164 of 764; times 1.4826 over the root of three."""
    assert case_of(products([218e6, 764e6, 928e6])).noise == pytest.approx(164 / 764 * 1.4826 / 3**0.5, rel=0.01)
    assert case_of(products([1e6, 1e6, 1e6])).noise == pytest.approx(0.01)  # nor are three equal ones


def test_what_exceeds_the_least_share_but_not_the_noise_is_perhaps_a_cause() -> None:
    uneven = [PRODUCT_NS * (1 + 0.3 * (number % 2)) for number in range(10)]
    (one,) = perhaps(products(uneven[:4]), now_and_then("host.sync", 0.08))
    assert one.severity == "info"
    assert one.remedy is not None
    assert one.remedy.text == causes()[one.id].remedies["when_inference"].text  # these products are of no training
    assert one.verify is not None
    assert "of the step, less than " in one.title
    assert "may be the spread of steps)" in one.title
    even = [PRODUCT_NS] * 10
    assert not perhaps(products(even), fixed("host.sync", 0.08))  # it is certain, and named
    assert not perhaps(products(uneven), fixed("host.sync", 0.01))


def test_what_is_the_same_share_of_uneven_steps_is_certain() -> None:
    uneven = [PRODUCT_NS * (1 + 0.3 * (number % 2)) for number in range(10)]
    assert not perhaps(products(uneven), fixed("host.sync", 0.08))
    found = diagnose(case_of(products(uneven)), [fixed("host.sync", 0.08)])
    assert [one.severity for one in found.findings] == ["minor"]


def test_what_may_save_nothing_is_perhaps_a_cause() -> None:
    (one,) = perhaps(products([PRODUCT_NS] * 10), fixed("host.sync", 0.04, uncertainty=0.9))
    assert re.search(r" of the step, [0-9.]+ % to [0-9.]+ %\)$", one.title)


def test_the_verdict_tells_the_perhaps_that_stands_first_in_the_list() -> None:
    uneven = [PRODUCT_NS * (1 + 0.3 * (number % 2)) for number in range(10)]
    recorded = products(uneven).load()
    rules = [now_and_then("host.gc", 0.04), now_and_then("host.sync", 0.09), now_and_then("host.python", 0.06)]
    verdict, diagnosis = diagnose_run([recorded], [analyze_trace(recorded)], [], RunFacts(), more_rules=rules)
    told = [finding for finding in diagnosis.findings if finding.title.startswith("Perhaps")]
    assert [finding.id for finding in told] == ["host.sync", "host.python", "host.gc"]
    assert verdict.summary.startswith(told[0].title)


def test_a_verdict_says_perhaps_before_it_says_healthy() -> None:
    uneven = [PRODUCT_NS * (1 + 0.3 * (number % 2)) for number in range(10)]
    recorded = products(uneven).load()
    rule = now_and_then("host.sync", 0.08)
    verdict, _ = diagnose_run([recorded], [analyze_trace(recorded)], [], RunFacts(), more_rules=[rule])
    assert verdict.cause is None
    assert verdict.summary.startswith("Perhaps: ")


def test_a_small_perhaps_is_said_to_be_small() -> None:
    """Two healthy jobs of strangers had "Perhaps: …" of 2.2 and 2.7 % as their first words."""
    uneven = [PRODUCT_NS * (1 + 0.3 * (number % 2)) for number in range(10)]
    recorded = products(uneven).load()
    rule = now_and_then("host.sync", 0.045)
    verdict, _ = diagnose_run([recorded], [analyze_trace(recorded)], [], RunFacts(), more_rules=[rule])
    assert verdict.summary.startswith("No cause is expected to be worth 5.0 % of a step. Perhaps: ")


@pytest.mark.parametrize(("blocks_per_sm", "healthy"), [(0.06, False), (0.5, False), (4.0, True), (0.0, True)])
def test_kernels_of_few_blocks_are_no_health(blocks_per_sm: float, *, healthy: bool) -> None:
    """Eight blocks on 132 multiprocessors leave nearly all of them idle; 0 is what some recordings say of all."""
    built = trace(deviceProperties=[{**H100, "numSms": 132}])
    for number in range(10):
        built.step(number, at=number * 1_002_000, lasts=1_002_000)
        built.operator("scan", at=number * 1_002_000 + 1_000, lasts=9_000)
        more: dict[str, Any] = {"blocks per SM": blocks_per_sm, "grid": [8, 1, 1]}
        at = number * 1_002_000
        built.launch("selective_scan", at=at + 3_000, call_lasts=4_000, runs_at=at + 10_000, lasts=992_000, **more)
    summary = whystall.analyze(built.load()).verdict.summary
    assert summary.startswith("Nothing was found") is healthy  # what its kernel computes is not known
    assert (f"kernels of at most {round(blocks_per_sm * 132)} blocks, on 132" in summary) is not healthy


@pytest.mark.parametrize(
    ("times", "shapes", "said"),
    [
        (1.0, True, "Healthy: no cause that was looked for is worth 2.0 % of a step."),
        (4.0, True, "the device could be faster: gemm kernels take 100%"),
        (4.0, False, "Nothing was found: no cause that was looked for is worth 2.0 % of a step."),
    ],
)
def test_kernels_far_from_what_the_device_can_do_are_no_health(times: float, *, shapes: bool, said: str) -> None:
    """Without shapes nobody knows their work."""
    verdict = whystall.analyze(products([PRODUCT_NS * times] * 10, shapes=shapes).load()).verdict
    assert said in verdict.summary
    assert ("without shapes (record_shapes=True)" in verdict.basis) is not shapes
