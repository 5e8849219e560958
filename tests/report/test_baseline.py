"""Baselines as files: what comes back, what is refused, and what is said of gates."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from benchmarks.same_twice import Simulated, summary_of
from hypothesis import given, settings
from hypothesis import strategies as st

import whystall
from whystall.analysis.run_noise import RunNoise
from whystall.cli.thresholds import parse
from whystall.diagnosis.comparison import compare_reports, compare_with_baseline
from whystall.diagnosis.count_changes import counts_of_runs
from whystall.diagnosis.sides import RunLength
from whystall.report.baseline import Baseline, baseline_of, decode_baseline, encode_baseline
from whystall.report.baseline_text import saved_json, saved_text, too_fine
from whystall.report.schema import Report
from whystall.testing import trace

NAMES = ("main", "candidate")


def recorded(kernel_ns: int, *, launches: int = 3) -> Report:
    built = trace()
    for number in range(10):
        at = number * 2_000_000
        built.step(number, at=at, lasts=kernel_ns)
        for launch in range(launches):
            built.launch(
                "gemm", at=at + 9_000 * launch, call_lasts=3_000, runs_at=at + 9_000 * launch + 4_000, lasts=4_000
            )
    return whystall.analyze(built.load())


@pytest.fixture(scope="module")
def runs() -> list[Report]:
    return [recorded(lasts) for lasts in (1_000_000, 1_020_000, 980_000, 1_000_000)]


def test_a_baseline_comes_back_and_compares_as_its_run_does(runs: list[Report]) -> None:
    one = baseline_of(runs[:1])
    data = encode_baseline(one)
    assert encode_baseline(decode_baseline(data)) == data
    read = decode_baseline(data)
    assert read.noise is None
    slower = recorded(1_400_000, launches=4)
    assert compare_with_baseline(read.report, read.runs, [slower], NAMES) == compare_reports(runs[0], slower, NAMES)
    demo = whystall.analyze(whystall.demo_recording())
    assert len(encode_baseline(baseline_of([demo]))) < len(whystall.render(demo, "json")) * 0.6


def test_several_runs_measure_their_noise(runs: list[Report]) -> None:
    read = decode_baseline(encode_baseline(baseline_of(runs)))
    assert read.noise is not None
    assert read.noise.runs == 4
    # A window runs from the first launch of a step to that of the next one; the last step ends with its own events.
    assert [run.median_ns for run in read.runs] == [2_000_000] * 4
    assert read.noise.spread == 0.0


@pytest.mark.parametrize("at", [0, 1, 40, 200, -3])
def test_a_damaged_file_is_refused_with_a_sentence(runs: list[Report], at: int) -> None:
    data = bytearray(encode_baseline(baseline_of(runs[:1])))
    data[at] ^= 0x15
    with pytest.raises(ValueError, match=r"\w"):
        decode_baseline(bytes(data))


def test_a_file_that_was_changed_by_hand_is_refused_and_one_with_other_blanks_is_not(runs: list[Report]) -> None:
    data = encode_baseline(baseline_of(runs[:1]))
    changed = data.replace(b'"median_ns": 2000000', b'"median_ns": 3000000')
    assert changed != data
    with pytest.raises(ValueError, match="was changed after it was saved, or is damaged"):
        decode_baseline(changed)
    respaced = data.replace(b"\n", b"\r\n")
    assert decode_baseline(respaced) == decode_baseline(data)
    assert decode_baseline(msgspec.json.format(data, indent=-1)) == decode_baseline(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"schema":"whystall.baseline/2","whystall":"9","content":"","runs":[],"report":{}}',
        b'{"schema":"whystall.baseline/1","whystall":"0","content":"","runs":[],"report":' + b"[" * 100_000,
    ],
)
def test_what_is_no_baseline_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode_baseline(data)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_end_in_anything_but_a_sentence(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode_baseline(data)


def signed(runs: object, report: object) -> bytes:
    """A file whose digest is right, whatever it holds."""
    from whystall.report.baseline import _digest

    parts = [msgspec.json.encode(one) for one in (runs, report)]
    head = {"schema": "whystall.baseline/1", "whystall": "0", "content": _digest(*parts)}
    return msgspec.json.encode({**head, "runs": runs, "report": report})


@pytest.mark.parametrize("length", [0, -5, "long", None, 1e400])
def test_lengths_that_no_step_has_are_refused(runs: list[Report], length: object) -> None:
    said = {"steps": 10, "measured_by": "trace", "mean_ns": 5, "median_ns": 5}
    report = json.loads(whystall.render(runs[0], "json"))
    assert decode_baseline(signed([said], report)).runs[0].mean_ns == 5
    for wrong in ([{**said, "median_ns": length}], [], [said] * 1_001):
        with pytest.raises(ValueError, match=r"\w"):
            decode_baseline(signed(wrong, report))


def of_lengths(lengths: list[float]) -> list[RunLength]:
    ns = [round(length * 1e8) for length in lengths]
    return [RunLength(steps=200, measured_by="samples", mean_ns=one, median_ns=one) for one in ns]


def simulated(generator: np.random.Generator, slower: float = 1.0, spread: float = 0.06) -> Simulated:
    """A run whose steps differ by 2 %, and as a whole by more than is usual on a CPU."""
    return Simulated([summary_of(generator.lognormal(0, 0.02, 200) * float(generator.lognormal(0, spread)) * slower)])


def rate(slower: float, spread: float) -> tuple[float, float]:
    """How often one run against a baseline of six is called different, and how often without the baseline's noise."""
    generator = np.random.default_rng(5)
    told = without = 0
    for _ in range(200):
        six = [simulated(generator, spread=spread) for _ in range(6)]
        lengths = of_lengths([run.run[0].median_ns / 1e8 for run in six])
        candidate = simulated(generator, slower, spread)
        told += compare_with_baseline(six[0], lengths, [candidate], NAMES).significant
        without += compare_reports(six[0], candidate, NAMES).significant
    return told / 200, without / 200


def test_runs_that_differ_more_than_is_usual_are_not_called_different_from_a_baseline() -> None:
    told, without = rate(1.0, 0.08)
    assert told <= 0.06
    assert without > 0.08  # which is why noise is measured


def test_on_a_quiet_machine_a_baseline_shows_what_one_run_of_each_cannot() -> None:
    told, without = rate(1.06, 0.01)
    assert told >= 0.9
    assert without < 0.1


def test_several_runs_of_the_candidate_tell_more_than_one(runs: list[Report]) -> None:
    generator = np.random.default_rng(7)
    base = simulated(generator, spread=0.0)
    lengths = of_lengths([1.0, 1.03, 0.97, 1.01, 0.99, 1.02, 0.98, 1.0])
    four = [simulated(generator, spread=0.0) for _ in range(4)]
    one, more = (compare_with_baseline(base, lengths, four[:count], NAMES) for count in (1, 4))
    assert one.speedup_high is not None
    assert more.speedup_high is not None
    assert more.speedup_high < one.speedup_high
    assert (one.base.runs, more.candidate.runs) == (8, 4)
    assert "8 runs of the baseline differ by 2 % (standard deviation)" in one.summary


def test_counts_that_differ_between_runs_of_the_same_are_exact_in_none(runs: list[Report]) -> None:
    odd = recorded(1_000_000, launches=5)
    (launches,) = [row for row in counts_of_runs([runs[0], odd, runs[1]]) if row.name == "launches"]
    assert (launches.usual, launches.least, launches.most, launches.alike, launches.steps) == (3, 3, 5, 0, 30)
    base = msgspec.structs.replace(runs[0], counts=counts_of_runs([runs[0], odd]))
    for many, crosses in ((4, False), (6, True)):
        found = compare_with_baseline(base, of_lengths([1.0, 1.0]), [recorded(1_000_000, launches=many)], NAMES)
        assert parse("launches>+0").crossed(found) is crosses


NOISY = RunNoise(runs=8, spread=0.02)  # least change: 5.1 %


@pytest.mark.parametrize(
    ("condition", "threshold"),
    [
        ("step>+3%", "for 3 % make 7 pairs of runs"),
        ("step>+2ms", "for 2 % make"),
        ("step<-1%", "for 1 % make"),
        ("step>+6%", None),
        ("step>+0%", None),  # whatever is beyond the noise
        ("idle_input>+1%", None),
        ("launches>+0", None),
    ],
)
def test_a_gate_finer_than_the_noise_is_told_what_would_hold(condition: str, threshold: str | None) -> None:
    change = parse(condition).change_of_step(100_000_000)
    said = None if change is None else too_fine(condition, change, NOISY, 1)
    if threshold is None:
        assert said is None
    else:
        assert said is not None
        assert threshold in said
        assert "no change below 5.1 %. A threshold of 6% would hold" in said


def test_what_is_printed_of_a_saved_baseline(runs: list[Report]) -> None:
    base = msgspec.structs.replace(baseline_of(runs[:1]), runs=of_lengths([1.0, 1.02, 0.98, 1.0]))
    text = saved_text(base)
    assert "4 runs, median step 98.0 ms to 102 ms: runs of the same job differ by 1.6 %" in text
    assert "save several runs before" in saved_text(baseline_of(runs[:1]))
    told = json.loads(saved_json(base))
    assert (told["schema"], told["noise"]["runs"], len(told["runs"])) == ("whystall.baseline-noise/1", 4, 4)
    assert json.loads(saved_json(baseline_of(runs[:1])))["noise"] is None


def test_a_run_without_steps_is_no_baseline() -> None:
    bare = whystall.analyze(trace().launch("k", at=0, runs_at=10, lasts=5).load())
    with pytest.raises(ValueError, match="run 1 has no steps"):
        baseline_of([bare])
    assert isinstance(baseline_of([recorded(500_000)]), Baseline)
