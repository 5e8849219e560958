"""host.cpu-contention: time off the core with a competitor and its mark fires it; one of the three alone does not."""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnosis.cases import line, run

from whystall.analysis.run_results import RunSummary
from whystall.diagnosis.case import Case
from whystall.diagnosis.diagnose import diagnose, diagnose_run
from whystall.diagnosis.finding import Finding
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.run_facts import RunFacts


def told(*runs: RunSummary, **facts: Any) -> dict[str, Finding]:
    """All that is told of sampled runs, one per rank, by cause: what other programs cost is told without severity."""
    found = diagnose(Case(runs=runs, facts=RunFacts(**facts)), RULES)
    assert found.failures == []
    return {finding.id: finding for finding in found.findings}


@pytest.mark.parametrize(
    ("threads", "others", "switches", "fires"),
    [
        (16, 0.0, 20.0, True),  # twice as many threads as cores
        (4, 3.0, 20.0, True),  # other processes use three cores
        (4, 0.3, 20.0, True),  # they use a third of a core
        (16, 0.0, 4.0, True),  # taken off its core 40 times a second
        (16, 0.0, 2.5, False),  # and 25 times, as any thread
        (4, 0.0, 20.0, False),  # nobody to compete with
        (16, 0.0, 0.1, False),  # never taken off its core: it waits for something
        (8, 0.2, 20.0, False),  # as many threads as cores, and next to nothing beside them
    ],
)
def test_contention_needs_a_reason_and_its_mark(threads: int, others: float, switches: float, *, fires: bool) -> None:
    sampled = run(on_cpu_share=0.6, involuntary_switches_per_step=switches, other_cores=others)
    assert ("host.cpu-contention" in told(sampled, cores=8, threads=threads)) is fires


@pytest.mark.parametrize(
    ("threads", "queued", "fires"),
    [
        (1, None, True),  # the kernel does not tell
        (1, 0.35, True),  # ready to run, and on no core
        (1, 0.02, False),  # off its core of its own accord: it polls, or waits for a device or a socket
        (4, 0.02, True),  # it waits for its siblings, which may lack a core
    ],
)
def test_a_single_thread_lacks_a_core_only_while_it_is_ready_to_run(
    threads: int, queued: float | None, *, fires: bool
) -> None:
    sampled = run(on_cpu_share=0.6, involuntary_switches_per_step=20.0, other_cores=3.0, queued_share=queued)
    assert ("host.cpu-contention" in told(sampled, cores=8, threads=threads)) is fires


def test_it_is_worth_the_time_off_the_core_at_most() -> None:
    """The rank lacks the core set aside for it for two fifths of the time (causes.md, T * (1 - off-CPU share))."""
    sampled = run(on_cpu_share=0.6, involuntary_switches_per_step=20.0, other_cores=3.0, queued_share=0.4)
    gain = told(sampled, cores=1, threads=1, bound=True)["host.cpu-contention"].gain
    assert gain is not None
    assert gain.floor <= 1 / 0.6 <= gain.ceiling
    assert gain.expected == pytest.approx(1 / 0.6, rel=0.02)


def test_threads_that_wait_for_a_sibling_without_a_core_may_be_worth_more() -> None:
    """Two threads on two cores beside two busy processes: 220 ms a step where 57.7 ms were measured without them."""
    sampled = run(on_cpu_share=0.49, involuntary_switches_per_step=20.0, other_cores=1.0, queued_share=0.4)
    together, alone = (
        told(sampled, cores=2, threads=threads, bound=True)["host.cpu-contention"].gain for threads in (2, 1)
    )
    assert together is not None
    assert alone is not None
    assert together.floor <= 220 / 57.7 <= together.ceiling
    assert alone.ceiling < 220 / 57.7  # one thread waits for no sibling


def test_ranks_of_one_job_share_the_cores() -> None:
    """Four ranks of four threads on eight cores: each by itself would fit."""
    sampled = run(on_cpu_share=0.6, involuntary_switches_per_step=20.0, other_cores=0.0)
    assert "host.cpu-contention" in told(sampled, cores=8, threads=4, processes=4)
    assert "host.cpu-contention" not in told(sampled, cores=16, threads=4, processes=4)


@pytest.mark.parametrize(("threads", "others", "own"), [(16, 0.0, True), (16, 3.0, True), (4, 3.0, False)])
def test_fewer_threads_are_no_remedy_against_other_processes(threads: int, others: float, *, own: bool) -> None:
    sampled = run(on_cpu_share=0.6, involuntary_switches_per_step=20.0, other_cores=others)
    remedy = told(sampled, cores=8, threads=threads)["host.cpu-contention"].remedy
    assert remedy is not None
    assert ("one thread per core" in remedy.text) is own
    assert ("set_num_threads" in (remedy.patch or "")) is own


def test_processes_of_one_thread_cannot_have_fewer() -> None:
    sampled = run(on_cpu_share=0.6, involuntary_switches_per_step=20.0, other_cores=0.0)
    remedy = told(sampled, cores=2, threads=1, processes=4)["host.cpu-contention"].remedy
    assert remedy is not None
    assert "4 processes of one thread share 2 cores" in remedy.text
    assert "set_num_threads" not in (remedy.patch or "")


@pytest.mark.parametrize(
    ("on_cpu", "shares", "text"),
    [
        (0.97, {}, "x = f()"),  # on its core nearly all the time
        (0.6, {"input": 0.38}, "x = f()"),  # waits for batches
        (0.6, {"save": 0.38}, "x = f()"),  # waits for the disk
        (0.6, {}, "time.sleep(0.04)"),  # sleeps of its own accord
        (0.6, {}, "results = [pipe.recv() for pipe in pipes]"),  # waits for the processes of its environments
    ],
)
def test_a_thread_that_waits_for_something_known_lacks_no_core(
    on_cpu: float, shares: dict[str, float], text: str
) -> None:
    sampled = run(
        on_cpu_share=on_cpu,
        shares=shares,
        involuntary_switches_per_step=20.0,
        other_cores=3.0,
        places=[line(0.38, text, leaf="multiprocessing.connection:_recv" if "recv" in text else None)],
    )
    assert "host.cpu-contention" not in told(sampled, cores=8, threads=16)


@pytest.mark.parametrize(
    ("share", "threads", "first"),
    [
        (0.25, 4, "episodic.checkpoint"),
        (0.10, 4, "episodic.checkpoint"),  # much less than what the other programs cost
        (0.15, 16, "host.cpu-contention"),  # the job's own threads: that is its mistake, too
    ],
)
def test_what_the_job_does_itself_goes_before_what_other_programs_cost(share: float, threads: int, first: str) -> None:
    sampled = run(
        on_cpu_share=0.55 - share / 2,
        shares={"save": share},
        involuntary_switches_per_step=20.0,
        other_cores=3.0,
        places=[line(share, "torch.save(model, path)", part="save")],
    )
    found = told(sampled, cores=8, threads=threads)
    assert {"episodic.checkpoint", "host.cpu-contention"} <= set(found)
    assert next(iter(found)) == first


def test_other_programs_are_no_finding_and_stand_beside_the_verdict() -> None:
    sampled = run(
        on_cpu_share=0.6, involuntary_switches_per_step=20.0, other_cores=3.0, shares={"input": 0.0, "save": 0.0}
    )
    facts = RunFacts(cores=8, threads=4, command="python train.py")
    verdict, diagnosis = diagnose_run([], [], [sampled], facts)
    (finding,) = (one for one in diagnosis.findings if one.id == "host.cpu-contention")
    assert (finding.severity, finding.gain, finding.verify) == ("info", None, None)
    assert verdict.cause is None
    assert verdict.summary == (
        "This machine is shared: other programs use 3.0 cores, and the training thread waits for a core 40.0 % of the "
        "time. Without this wait steps would be 1.67 times as fast, or more where torch's threads also wait for each "
        "other: use no more threads than there are free cores."
    )


@pytest.mark.parametrize(("own", "fires"), [(0.99, False), (0.8, True), (None, True)])
def test_who_fills_all_cores_that_it_may_use_has_lost_none(own: float | None, *, fires: bool) -> None:
    """A job on one core of its own beside its logger's process; others are busy on the machine's other cores."""
    sampled = run(on_cpu_share=0.8, involuntary_switches_per_step=20.0, other_cores=3.0, own_cores=own)
    assert ("host.cpu-contention" in told(sampled, cores=1, threads=1)) is fires


def test_what_the_job_perhaps_loses_goes_before_the_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that differ beside other programs leave a cause uncertain; it is what the owner can act on."""
    monkeypatch.setattr("whystall.diagnosis.weighing.least_saved", lambda *_: 0.5)
    sampled = run(
        on_cpu_share=0.5,
        shares={"save": 0.1},
        involuntary_switches_per_step=20.0,
        other_cores=3.0,
        places=[line(0.1, "torch.save(model, path)", part="save")],
    )
    verdict, _ = diagnose_run([], [], [sampled], RunFacts(cores=8, threads=4))
    assert verdict.cause is None
    assert verdict.summary.startswith("Perhaps: ")
    assert verdict.basis.startswith("This machine is shared: ")


def test_a_cause_of_the_job_keeps_the_headline_on_a_shared_machine() -> None:
    sampled = run(
        on_cpu_share=0.5,
        shares={"save": 0.1},
        involuntary_switches_per_step=20.0,
        other_cores=3.0,
        places=[line(0.1, "torch.save(model, path)", part="save")],
    )
    verdict, _ = diagnose_run([], [], [sampled], RunFacts(cores=8, threads=4))
    assert verdict.cause == "episodic.checkpoint"
    assert verdict.basis.startswith("This machine is shared: other programs use 3.0 cores")


@pytest.mark.parametrize(
    ("bound", "queued", "fires"),
    [(True, 0.4, True), (True, 0.02, False), (True, None, False), (False, 0.4, False)],
)
def test_a_rank_with_a_core_of_its_own_that_waits_for_it_has_it_taken(
    queued: float | None, *, bound: bool, fires: bool
) -> None:
    """Two ranks, each on a core of its own: fewer ranks would leave a core without work."""
    runs = [
        run(rank=0, on_cpu_share=0.55, queued_share=0.01),  # it waits for the other
        run(rank=1, on_cpu_share=0.55, involuntary_switches_per_step=20.0, queued_share=queued),
    ]
    found = told(*runs, cores=1, threads=1, processes=2, cores_here=2, bound=bound)
    assert ("host.cpu-contention" in found) is fires
    if fires:
        finding = found["host.cpu-contention"]
        assert finding.scope.ranks == [1]
        assert finding.remedy is not None
        assert finding.remedy.patch is None
        assert finding.severity != "info"
        assert "set cores aside" in finding.remedy.text


def test_a_rank_on_each_of_two_machines_waits_for_the_other_off_its_core() -> None:
    """Other programs on either machine are no proof that they take its core."""
    runs = [run(rank=rank, on_cpu_share=0.6, involuntary_switches_per_step=20.0, other_cores=2.0) for rank in range(2)]
    assert "host.cpu-contention" not in told(*runs, cores=8, threads=1, processes=2, ranks_here=1)


@pytest.mark.parametrize(
    ("threads", "queued", "others", "fires"),
    [(1, 0.3, 0.9, True), (1, 0.02, 0.9, False), (1, 0.3, 0.05, False), (1, None, 0.9, False), (2, 0.3, 0.9, False)],
)
def test_ranks_of_one_thread_that_wait_for_a_core_beside_other_programs(
    threads: int, queued: float | None, others: float, *, fires: bool
) -> None:
    """Two ranks on as many cores as they have threads: what they wait for each other is no wait for a core."""
    more: dict[str, Any] = {"involuntary_switches_per_step": 20.0, "other_cores": others, "queued_share": queued}
    runs = [run(rank=rank, on_cpu_share=0.55, **more) for rank in range(2)]
    found = told(*runs, cores=2 * threads, threads=threads, processes=2)
    assert ("host.cpu-contention" in found) is fires
