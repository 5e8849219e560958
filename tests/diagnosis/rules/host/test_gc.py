"""host.gc: collections that hold up the step fire it, as each version of the profiler names them;
short and hidden ones do not.
"""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import found_in, found_in_runs, line, run
from tests.diagnosis.jobs import Job, is_worth

PRODUCT_NS: Final = 2_000_000


def training(name: str, lasts: int, *, every: int = 1, queued: bool = False, api: str = "cuda") -> Job:
    """Twelve steps of a product of 2 ms; before it, every few steps, something else on the host."""
    job = Job(api=api)
    for number in job.steps(12):
        if queued:
            job.operator("aten::mm", "gemm", 2 * lasts)
        if number % every == 0:
            job.built.python(name, at=job.at, lasts=lasts)
            job.python(lasts)
        job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("name", "api"),
    [
        ("Python GC", "cuda"),
        ("Python GC", "hip"),
        ("<built-in function collect>", "cuda"),
        ("<built-in method collect of module object at 0x7f0a1c2b3d40>", "cuda"),
    ],
)
def test_collections_in_every_step_are_worth_their_time(name: str, api: str) -> None:
    job = training(name, 1_000_000, api=api)
    is_worth(found_in(job.built)["host.gc"], job.step_ns / (job.step_ns - 1_000_000))


def test_a_collection_every_third_step_is_worth_a_third_of_it() -> None:
    job = training("Python GC", 3_000_000, every=3)
    finding = found_in(job.built)["host.gc"]
    assert finding.gain is not None
    assert finding.gain.floor <= (PRODUCT_NS + 1_000_000) / PRODUCT_NS <= finding.gain.ceiling


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(training("Python GC", 20_000), id="one per cent"),
        pytest.param(training("Python GC", 1_000_000, queued=True), id="behind queued work"),
        pytest.param(training("data.py(3): collect_samples", 1_000_000), id="the user's own function"),
        pytest.param(training("<built-in method collectstatic of module>", 1_000_000), id="another collect"),
    ],
)
def test_short_and_hidden_collections_and_other_functions_are_none(job: Job) -> None:
    assert "host.gc" not in found_in(job.built)


@pytest.mark.parametrize(("share", "fires"), [(0.2, True), (0.01, False)])
def test_collections_that_python_timed(share: float, *, fires: bool) -> None:
    found = found_in_runs(run(shares={"gc": share}))
    assert ("host.gc" in found) is fires
    if fires:
        is_worth(found["host.gc"], 1 / (1 - share))


def test_pauses_of_the_collector_are_not_python_of_the_users() -> None:
    sampled = run(shares={"gc": 0.3, "other": 0.04}, places=[line(0.3, "total += token")])
    assert list(found_in_runs(sampled)) == ["host.gc"]


@pytest.mark.parametrize(
    ("text", "own"), [("gc.collect()", True), ("import gc; gc.collect(2)", True), ("tidy()", False)]
)
def test_collections_that_a_line_asks_for_are_left_out_there(text: str, *, own: bool) -> None:
    """What Python collects by itself is frozen and switched off; what the job asks for is asked for less often."""
    sampled = run(shares={"gc": 0.5}, places=[line(0.3, text), line(0.5, "loss.backward()", part="backward")])
    finding = found_in_runs(sampled)["host.gc"]
    assert finding.remedy is not None
    assert ("out of the loop" in finding.remedy.text) is own
    assert [place.symbol for place in finding.code] == ([text] if own else [])


@pytest.mark.parametrize(("share", "cause"), [(0.5, "host.gc"), (0.01, "host.python")])
def test_python_that_no_event_names_is_a_collection_where_python_says_so(share: float, cause: str) -> None:
    """Before torch 2.13 a trace shows none; Python times them in every step of the run."""
    lasts = 8_000_000
    job = Job()
    for number in job.steps(20):
        if number % 4 == 1:
            job.python(lasts)
        job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.wait()
    mean = PRODUCT_NS + lasts // 4
    measured = run(shares={"gc": share}, total_ns=100 * mean, median_ns=PRODUCT_NS, p90_ns=PRODUCT_NS + lasts)
    found = found_in(job.built, runs=[measured])
    assert set(found) & {"host.gc", "host.python"} == {cause}
    is_worth(found[cause], mean / PRODUCT_NS, within=0.15)


@pytest.mark.parametrize(("name", "explicit"), [("<built-in function collect>", True), ("Python GC", False)])
def test_an_explicit_collection_is_to_be_left_out_and_not_switched_off(name: str, *, explicit: bool) -> None:
    finding = found_in(training(name, 2_000_000).built)["host.gc"]
    assert finding.remedy is not None
    assert (finding.remedy.patch == "-gc.collect()") is explicit
    assert ("gc.disable()" in (finding.remedy.patch or "")) is not explicit
