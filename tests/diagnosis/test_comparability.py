"""What can be compared: recordings that differ by machine, ranks or batches, and those that differ by a change."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from benchmarks.same_twice import OneRank, Simulated, summary_of, white

import whystall
from whystall.analysis.run_results import Environment
from whystall.analysis.work_results import GivenRows
from whystall.cli.thresholds import parse
from whystall.diagnosis.comparability import comparability
from whystall.diagnosis.comparison import compare_reports
from whystall.report.comparison import render_comparison
from whystall.report.comparison_page import comparison_document
from whystall.report.document_page import as_page
from whystall.report.redaction import redacted
from whystall.report.schema import Report
from whystall.testing import TraceBuilder, trace

HERE = Environment(cpu="AMD EPYC 7763", cores=8, cores_allowed=8, python="3.11.7", torch="2.13.0")


def other(**facts: Any) -> Environment:
    return msgspec.structs.replace(HERE, **facts)


def a_run(seed: int = 0, **facts: Any) -> Simulated:
    return Simulated([summary_of(white(np.random.default_rng(seed), 200))], **{"environment": HERE, **facts})


def layers(rows: int, *, calls: int = 1, head: int | None = None) -> list[GivenRows]:
    wide = GivenRows(operator="aten::linear", weights=[512, 256], rows=rows, calls=calls)
    return [wide, GivenRows(operator="aten::linear", weights=[10, 512], rows=head or rows, calls=calls)]


def reasons(base: Simulated, candidate: Simulated) -> list[str]:
    return comparability(base, candidate).reasons


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"environment": other(cpu="Intel Xeon")}, "the CPUs differ: AMD EPYC 7763 and Intel Xeon"),
        ({"environment": other(cores=16)}, "the base's machine has 8 cores, the candidate's 16"),
        ({"source": OneRank(world_size=8)}, "the world size of the base's job is 1, of the candidate's 8"),
        ({"samples_per_step": 64}, "batches differ in size: a step of the base has 32 samples, of the candidate 64"),
    ],
)
def test_times_of_another_machine_job_or_batch_are_not_comparable(changed: dict[str, Any], reason: str) -> None:
    base, candidate = a_run(samples_per_step=32), a_run(**{"samples_per_step": 32, **changed})
    assert reasons(base, candidate) == [reason]
    found = compare_reports(base, candidate, ("base", "candidate"))
    assert found.summary == f"Times are not comparable: {reason}. No counts are known of both."
    assert (found.speedup, found.mean, found.median, found.significant) == (None, None, None, False)
    assert parse("step>+0%").is_open(found) == f"not comparable: {reason}"


def test_the_same_and_what_may_be_the_change_itself_compare() -> None:
    assert comparability(a_run(samples_per_step=32), a_run(samples_per_step=32)).unknown == []
    newer = other(torch="2.14.0", cores_allowed=4)
    found = comparability(a_run(), a_run(environment=newer))
    assert found.reasons == []
    assert found.notes == [
        "the base ran with torch 2.13.0, the candidate with 2.14.0",
        "the base might use 8 cores, the candidate 4",
    ]


@pytest.mark.parametrize("environment", [None, Environment(cores=16), Environment(cpu=None)])
def test_what_is_not_known_is_said_and_not_guessed(environment: Environment | None) -> None:
    found = comparability(a_run(), a_run(environment=environment))
    assert found.unknown == ["the CPU", "the size of batches"]
    warnings = compare_reports(a_run(), a_run(environment=environment), ("base", "candidate")).warnings
    assert "not known of both, and taken to be the same: the CPU, the size of batches" in warnings


@pytest.mark.parametrize(
    ("base", "candidate", "differ", "known"),
    [
        (layers(32), layers(32), False, True),
        (layers(32), layers(64), True, True),
        (layers(32), layers(48), True, True),
        (layers(32, calls=4), layers(128, calls=1), False, False),  # micro-batches that are added up
        (layers(32, calls=2), layers(32, calls=1), False, False),  # nothing is computed twice any more
        (layers(32), layers(32, head=1), False, False),  # the last layer is given fewer rows
        (layers(32), [], False, False),
    ],
)
def test_rows_that_every_layer_is_given_are_a_batch(
    base: list[GivenRows], candidate: list[GivenRows], *, differ: bool, known: bool
) -> None:
    found = comparability(a_run(given=base), a_run(given=candidate))
    assert (bool(found.reasons), "the size of batches" not in found.unknown) == (differ, known)
    if differ:
        assert "aten::linear with weights of 512x256 is given 32 rows in the base" in found.reasons[0]


def test_the_loader_s_word_counts_before_that_of_shapes() -> None:
    """Rows that are alike are computed once: every layer has less to do of the same samples."""
    base, candidate = a_run(given=layers(320), samples_per_step=32), a_run(given=layers(32), samples_per_step=32)
    assert reasons(base, candidate) == []


def training(rows: int, *, launches: int = 3) -> TraceBuilder:
    """Eight steps of a product of so many rows, and kernels that take as long as there are rows."""
    built = trace(deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}])
    for number in range(8):
        at = number * 1_000_000
        built.step(number, at=at, lasts=900_000)
        dims: dict[str, Any] = {"Input Dims": [[rows, 256], [512, 256], [512]]}
        built.operator("aten::linear", at=at, lasts=600_000, **dims)
        for launch in range(launches):
            begin = at + 20_000 * launch
            built.launch("gemm", at=begin, call_lasts=5_000, runs_at=begin + 9_000, lasts=rows * 100)
    return built


def of(built: TraceBuilder) -> Report:
    return whystall.analyze(built.load())


def test_counts_of_another_batch_compare_and_times_do_not() -> None:
    found = whystall.compare(of(training(32)), of(training(64, launches=4)))
    assert found.summary.startswith("Times are not comparable: batches differ in size: aten::linear with weights of")
    assert "Counts compare: launches went from 3 to 4 a step" in found.summary
    assert not any(row.beyond_noise for row in (*found.ledger, *found.operators, *found.kernels))
    assert parse("launches>+0").crossed(found)
    for amount in ("copied_bytes", "operators"):
        assert str(parse(f"{amount}>+0").is_open(found)).startswith("not comparable: batches differ")
    assert "copied_bytes" in {row.name for row in whystall.compare(of(training(32)), of(training(32))).counts}
    texts = [render_comparison(found, format_) for format_ in ("terminal", "markdown")]
    for text in (*texts, as_page(comparison_document(found))):
        assert "not comparable" in text
        assert "(noise)" not in text
    same = whystall.compare(of(training(32)), of(training(32)))
    assert (same.incomparable, same.speedup) == ([], 1.0)


def test_a_redacted_report_keeps_what_makes_it_comparable() -> None:
    report = msgspec.structs.replace(of(training(32)), environment=HERE)
    assert comparability(report, redacted(report)).reasons == []
    elsewhere = msgspec.structs.replace(report, environment=other(cpu="AMD EPYC 9654"))
    assert len(comparability(report, redacted(elsewhere)).reasons) == 1
