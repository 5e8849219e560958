"""host.gil: a thread off its core beside others that run Python fires it; one that waits of its own accord does not."""

from __future__ import annotations

import pytest
from tests.diagnosis.cases import found_in_runs, line, run

from whystall.analysis.run_results import SampledLine


def beside(share: float, *, leaf: str = "words:count") -> list[SampledLine]:
    """Where looks found another thread at work."""
    if not share:
        return []
    return [
        SampledLine(part="thread", file="words.py", line=3, function="count", text="n += 1", leaf=leaf, share=share)
    ]


@pytest.mark.parametrize(
    ("on_cpu", "cores", "seen", "fires"),
    [
        (0.6, 0.5, 0.5, True),
        (0.98, 0.5, 0.5, False),  # the training thread has its core all the time
        (0.6, 0.08, 0.5, True),
        (0.6, 0.03, 0.5, False),
        (0.6, 0.01, 0.5, False),  # the others hardly run
        (0.6, 0.5, 0.0, True),  # a look that needs the lock seldom finds who holds it
    ],
)
def test_a_thread_that_holds_the_lock(on_cpu: float, cores: float, seen: float, *, fires: bool) -> None:
    sampled = run(on_cpu_share=on_cpu, thread_cores=cores, beside=beside(seen))
    found = found_in_runs(sampled, cores=8, threads=1)
    assert ("host.gil" in found) is fires
    if fires:
        gain = found["host.gil"].gain
        assert gain is not None
        assert gain.floor <= 1 / 0.6 <= gain.ceiling
        # A look that needs the lock mostly finds such a thread when it has given the lock up.
        assert [place.file for place in found["host.gil"].code] == (["words.py"] if seen else [])


@pytest.mark.parametrize("leaf", ["prefetcher:decode", "tqdm._monitor:run", "ray._private.worker:main_loop"])
def test_threads_of_any_package_hold_it(leaf: str) -> None:
    sampled = run(on_cpu_share=0.6, thread_cores=0.5, beside=beside(0.5, leaf=leaf))
    assert "host.gil" in found_in_runs(sampled, cores=8, threads=1)


@pytest.mark.parametrize("leaf", ["threading:wait", "threading:join", "queue:get", "selectors:select", "select:poll"])
def test_a_thread_that_waits_for_another_of_its_own_accord_needs_no_lock(leaf: str) -> None:
    waits = line(0.39, leaf=leaf)
    found = found_in_runs(
        run(on_cpu_share=0.6, thread_cores=0.5, beside=beside(0.5), places=[waits]), cores=8, threads=1
    )
    assert "host.gil" not in found


def test_a_rank_that_waits_for_others_needs_no_lock() -> None:
    sampled = run(on_cpu_share=0.6, thread_cores=0.5, beside=beside(0.5))
    assert "host.gil" not in found_in_runs(sampled, cores=8, threads=1, processes=2)


def test_a_healthy_run_beside_an_idle_thread_has_none() -> None:
    assert found_in_runs(run(thread_cores=0.01, beside=beside(0.01)), cores=8, threads=1) == {}


@pytest.mark.parametrize(
    ("cores", "others", "fires"), [(0.1, 0.0, True), (0.1, 0.9, False), (0.5, 0.9, True), (0.1, 0.1, True)]
)
def test_others_that_take_cores_are_the_nearer_cause(cores: float, others: float, *, fires: bool) -> None:
    """A thread that runs for a tenth of the time holds no lock for a fifth of it."""
    sampled = run(on_cpu_share=0.78, thread_cores=cores, other_cores=others, beside=beside(0.1))
    assert ("host.gil" in found_in_runs(sampled, cores=8, threads=1)) is fires
