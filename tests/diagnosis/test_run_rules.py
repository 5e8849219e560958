"""Rules on samples: for each a run that fires it, one that nearly does, and healthy ones beside them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

import whystall
import whystall.plugins
from whystall.analysis.run_results import AllocatorRun, MemoryRise, RunSummary, SampledLine, SlowStep
from whystall.analysis.trace_analysis import analyze_trace
from whystall.diagnosis.case import Case, RunFacts
from whystall.diagnosis.catalogue import causes
from whystall.diagnosis.diagnose import diagnose, diagnose_run
from whystall.diagnosis.finding import Finding
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.rules.input.synchronous_loader import WORKERS_OF_REMEDY
from whystall.run_folder.samples import BEFORE, CALLED
from whystall.testing import trace

STEP_NS = 100_000_000
HEALTHY = {"input": 0.005, "forward": 0.4, "backward": 0.5, "optimizer": 0.05, "save": 0.0, "gc": 0.0, "other": 0.045}


def run(*, shares: dict[str, float] | None = None, places: Iterable[SampledLine] = (), **more: Any) -> RunSummary:
    values: dict[str, Any] = {
        "rank": 0,
        "steps": 100,
        "profiled": 0,
        "total_ns": 100 * STEP_NS,
        "p10_ns": STEP_NS,
        "median_ns": STEP_NS,
        "p90_ns": STEP_NS,
        "p99_ns": STEP_NS,
        "max_ns": STEP_NS,
        "trend_per_1000_steps": None,
        "shares": {**HEALTHY, **(shares or {})},
        "on_cpu_share": 0.98,
        "involuntary_switches_per_step": 0.5,
        "major_faults_per_step": 0.0,
        "rss_start_bytes": 1 << 30,
        "rss_end_bytes": 1 << 30,
        "slow_ns": 0,
        "slow": [],
        "durations_ns": [STEP_NS] * 100,
        "places": list(places),
        "looks": 1000,
        **more,
    }
    return RunSummary(**values)


def place(share: float, text: str = "x = f()", *, part: str = "other", leaf: str = "__main__:main") -> SampledLine:
    return SampledLine(part=part, file="train.py", line=7, function="main", text=text, leaf=leaf, share=share)


def named(sampled: RunSummary, **facts: Any) -> dict[str, Finding]:
    found = diagnose(Case(runs=(sampled,), facts=RunFacts(**facts)), RULES)
    assert found.failures == []
    return {finding.id: finding for finding in found.findings if finding.severity != "info"}


def loader(workers: int, *, persistent: bool = True) -> dict[str, Any]:
    return {"cores": 8, "threads": 4, "loaders": ({"workers": workers, "persistent_workers": persistent},)}


def test_a_healthy_run_has_no_finding() -> None:
    looks = [place(0.9, part="forward"), place(0.04, leaf="torch.nn.functional:cross_entropy")]
    assert named(run(places=looks), **loader(0)) == {}


@pytest.mark.parametrize(("share", "fires"), [(0.3, True), (0.015, False)])
def test_input_on_the_training_thread(share: float, *, fires: bool) -> None:
    found = named(run(shares={"input": share}, on_cpu_share=1 - share), **loader(0))
    assert ("input.synchronous-loader" in found) is fires
    if fires:
        gain = found["input.synchronous-loader"].gain
        assert gain is not None
        assert gain.floor <= 1 / (1 - share) <= gain.ceiling


def test_input_that_computes_gains_only_on_cores_that_are_free() -> None:
    """Two cores, both busy with training for 60 % of the time: of 40 % of input, workers could hide half at best."""
    facts = {"cores": 2, "threads": 2, "loaders": ({"workers": 0},)}
    found = named(run(shares={"input": 0.4}, on_cpu_share=1.0), **facts)["input.synchronous-loader"]
    assert found.gain is not None
    assert found.gain.expected < 1 / (1 - 0.25)


@pytest.mark.parametrize(
    ("workers", "cpu", "cause"),
    [
        (1, 0.02, "input.too-few-workers"),
        (2, 0.5, "input.too-few-workers"),
        (8, 0.9, "input.cpu-bound"),
        (8, 0.05, "input.storage-bound"),
    ],
)
def test_workers_that_do_not_keep_up(workers: int, cpu: float, cause: str) -> None:
    sampled = run(shares={"input": 0.3}, workers=workers, worker_cpu_share=cpu)
    assert list(named(sampled, **loader(workers))) == [cause]


def test_handing_over_a_batch_that_is_ready_is_no_wait_for_workers() -> None:
    """Each step waits as long as any other, and no longer than a hand-over takes: more workers would change nothing."""
    facts: dict[str, Any] = {"shares": {"input": 0.04}, "workers": 2, "worker_cpu_share": 0.1}
    assert named(run(**facts, ready_input_ns=2_000_000), **loader(2)) == {}
    assert list(named(run(**facts), **loader(2))) == ["input.too-few-workers"]


def test_one_odd_step_is_no_slow_loader() -> None:
    """A wait of 0.4 s in one of a hundred steps of 0.1 s: 4 % of the time, and the error of that is as large."""
    facts: dict[str, Any] = {"shares": {"input": 0.04}, "workers": 2, "worker_cpu_share": 0.1}
    assert named(run(**facts, share_errors={"input": 0.04}), **loader(2)) == {}
    assert list(named(run(**facts, share_errors={"input": 0.001}), **loader(2))) == ["input.too-few-workers"]


def test_workers_that_take_all_cores_also_slow_the_training_thread() -> None:
    """Of a step 20 % is spent waiting for batches and 30 % waiting for a core: without the workers' load half is left."""
    facts = {"cores": 2, "threads": 1, "loaders": ({"workers": 2, "persistent_workers": True},)}
    sampled = run(shares={"input": 0.2}, on_cpu_share=0.5, workers=2, worker_cpu_share=0.9)
    gain = named(sampled, **facts)["input.cpu-bound"].gain
    assert gain is not None
    assert gain.expected == pytest.approx(2.0, rel=0.03)


@pytest.mark.parametrize(
    ("own", "peer", "rank"),
    [(0.95, 0.6, 0), (0.6, 0.95, 1), (0.95, 0.92, None), (0.5, 0.5, None)],
)
def test_a_rank_that_works_longer_in_every_step_holds_up_the_others(own: float, peer: float, rank: int | None) -> None:
    runs = (run(rank=0, on_cpu_share=own), run(rank=1, on_cpu_share=peer))
    found = diagnose(Case(runs=runs, facts=RunFacts(cores=8, threads=1, processes=2)), RULES).findings
    late = [finding for finding in found if finding.id == "communication.straggler"]
    assert [finding.scope.ranks for finding in late] == ([] if rank is None else [[rank]])
    if late and late[0].gain is not None:
        assert late[0].gain.expected == pytest.approx(1 / (1 - 0.35), rel=0.01)


def test_python_is_as_long_as_the_clock_says_and_not_as_the_looks_happen_to_fall() -> None:
    """The clock gives 20 % to what is no named part; nine of ten looks at it found the user's Python."""
    looks = [
        place(0.18, "total += token"),
        place(0.02, "loss.backward()", leaf="torch.autograd:_engine"),
        place(0.8, part="forward"),
    ]
    gain = named(run(shares={"other": 0.2, "forward": 0.245}, places=looks))["host.python"].gain
    assert gain is not None
    assert gain.expected == pytest.approx(1 / (1 - 0.18), rel=0.01)
    held = [place(0.1, "total += token"), place(0.08, "optimizer.zero_grad()", leaf=BEFORE), *looks[1:]]
    found = named(run(shares={"other": 0.2, "forward": 0.245}, places=held))["host.python"]
    assert found.gain == gain
    assert [where.symbol for where in found.code] == ["total += token"]


def test_a_loader_that_waits_gains_as_much_as_the_workers_of_the_remedy_make() -> None:
    """Batches of 64 ms, all of it pauses, beside 7 ms of training: four workers make one in 16 ms."""
    shares = {"input": 64 / 71, "forward": 3 / 71, "backward": 3 / 71, "other": 1 / 71}
    gain = named(run(shares=shares, on_cpu_share=8 / 71), **loader(0))["input.synchronous-loader"].gain

    assert gain is not None
    assert gain.expected == pytest.approx(71 / 16, rel=0.05)
    patch = causes()["input.synchronous-loader"].patch
    assert f"num_workers={WORKERS_OF_REMEDY}" in (patch or "")


@pytest.mark.parametrize(("usual_ns", "told"), [(40_000_000, True), (11_000_000, False)])
def test_a_recording_of_far_shorter_steps_is_not_that_of_a_healthy_run(usual_ns: int, told: bool) -> None:
    built = trace()
    for number in range(5):  # nothing but operators, 10 ms each
        built.step(number, at=number * 10_000_000, lasts=9_990_000)
        built.operator("aten::mm", at=number * 10_000_000 + 1_000, lasts=9_900_000)
    recorded = built.load()
    steps = run(median_ns=usual_ns, total_ns=100 * usual_ns, durations_ns=[usual_ns] * 100)

    verdict, found = diagnose_run([recorded], [analyze_trace(recorded, rank=0)], [steps], RunFacts())

    assert ("capture.perturbed" in {finding.id for finding in found.findings}) is told
    assert verdict.summary.startswith("The recorded steps are far shorter" if told else "Healthy")


def test_a_line_in_a_call_is_python_as_far_as_a_recording_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators of torch's that the loop calls itself are found at the user's line, as a pause would be."""
    looks = [place(0.6, "x = torch.randn(1000, 1000)", leaf=CALLED), place(0.1, "total += token")]
    sampled = run(shares={"other": 0.7, "forward": 0.1, "backward": 0.1}, places=looks)
    for recorded, share in ((0.0, 0.1), (0.4, 0.4), (0.9, 0.7)):
        monkeypatch.setattr("whystall.diagnosis.rules.host.python._recorded_python", lambda *_, found=recorded: found)
        found = named(sampled)["host.python"]
        assert found.gain is not None
        assert found.gain.expected == pytest.approx(1 / (1 - share), rel=0.01)
        assert [where.symbol for where in found.code][-1] == "total += token"


def test_new_workers_each_epoch_are_told_from_slow_ones() -> None:
    spikes = [
        SlowStep(step=step, duration_ns=9 * STEP_NS, excess_ns=8 * STEP_NS, lost_ns={"input": 8 * STEP_NS // 10})
        for step in range(0, 100, 5)
    ]
    sampled = run(shares={"input": 0.2}, slow=spikes, workers=2, worker_cpu_share=0.1)
    assert next(iter(named(sampled, **loader(2, persistent=False)))) == "input.worker-restart"


@pytest.mark.parametrize(
    ("persistent", "every", "cause"),
    [
        (False, 5, "input.worker-restart"),
        (True, 10, "input.heavy-tail"),
        (True, 2, "input.too-few-workers"),  # workers that are too slow deliver in bursts
    ],
)
def test_long_fetches_are_new_workers_rare_samples_or_bursts(persistent: bool, every: int, cause: str) -> None:
    spikes = [
        SlowStep(step=step, duration_ns=3 * STEP_NS, excess_ns=2 * STEP_NS, lost_ns={"input": 2 * STEP_NS})
        for step in range(0, 100, every)
    ]
    sampled = run(
        shares={"input": 0.2}, slow=spikes, total_ns=len(spikes) * 10 * STEP_NS, workers=2, worker_cpu_share=0.5
    )
    assert next(iter(named(sampled, **loader(2, persistent=persistent)))) == cause


@pytest.mark.parametrize(("part", "cause"), [("gc", "host.gc"), ("save", "episodic.checkpoint")])
@pytest.mark.parametrize(("share", "fires"), [(0.2, True), (0.01, False)])
def test_collections_and_checkpoints(part: str, cause: str, share: float, *, fires: bool) -> None:
    assert (cause in named(run(shares={part: share}))) is fires


@pytest.mark.parametrize(
    ("looks", "cause"),
    [
        ([place(0.2, "print(loss.item())")], "episodic.logging"),
        ([place(0.2, leaf="logging:emit")], "episodic.logging"),
        ([place(0.2, part="logging")], "episodic.logging"),
        ([place(0.2, part="evaluation")], "episodic.evaluation"),
        ([place(0.2, part="checkpoint")], "episodic.checkpoint"),
        ([place(0.2, part="compile", leaf="torch._dynamo.symbolic_convert:run")], "host.recompile"),
        ([place(0.2, "total += token")], "host.python"),
        ([place(0.2, leaf="torch.nn.functional:cross_entropy")], None),
        ([place(0.2, part="forward")], None),
        ([place(0.015, "total += token")], None),
    ],
)
def test_lines_name_what_they_do(looks: list[SampledLine], cause: str | None) -> None:
    found = named(run(shares={"other": 0.22}, places=looks))
    assert list(found) == ([cause] if cause else [])
    if cause:
        [where] = found[cause].code
        assert (where.file, where.line, where.symbol) == ("train.py", 7, looks[0].text)


def test_pauses_of_the_collector_are_not_python_of_the_users() -> None:
    sampled = run(shares={"gc": 0.3, "other": 0.04}, places=[place(0.3, "total += token")])
    assert list(named(sampled)) == ["host.gc"]


@pytest.mark.parametrize(
    ("threads", "others", "switches", "fires"),
    [(16, 0.0, 20.0, True), (4, 3.0, 20.0, True), (4, 0.0, 20.0, False), (16, 0.0, 0.1, False)],
)
def test_contention_needs_a_reason_and_its_mark(threads: int, others: float, switches: float, *, fires: bool) -> None:
    sampled = run(on_cpu_share=0.6, involuntary_switches_per_step=switches, other_cores=others)
    assert ("host.cpu-contention" in named(sampled, cores=8, threads=threads)) is fires


@pytest.mark.parametrize(
    ("rise", "device", "fires"), [(100, None, True), (100, 1, True), (40, None, False), (0, 0, False)]
)
def test_memory_that_grows_has_no_gain_and_is_told(rise: int, device: int | None, *, fires: bool) -> None:
    rises = [MemoryRise(device=device, start_bytes=1 << 30, rise_bytes=rise << 20, over_steps=50)]
    found = named(run(memory_rises=rises))
    assert ("memory.growth" in found) is fires
    if fires:
        assert found["memory.growth"].gain is None
        where = "resident memory" if device is None else "memory allocated on device 1"
        assert found["memory.growth"].evidence[0].what == f"{where} rises by"


def beside(share: float) -> list[SampledLine]:
    if not share:
        return []
    return [
        SampledLine(
            part="thread", file="words.py", line=3, function="count", text="n += 1", leaf="words:count", share=share
        )
    ]


@pytest.mark.parametrize(
    ("on_cpu", "cores", "seen", "fires"),
    [(0.6, 0.5, 0.5, True), (0.98, 0.5, 0.5, False), (0.6, 0.01, 0.5, False), (0.6, 0.5, 0.0, True)],
)
def test_a_thread_that_holds_the_lock(on_cpu: float, cores: float, seen: float, *, fires: bool) -> None:
    sampled = run(on_cpu_share=on_cpu, thread_cores=cores, beside=beside(seen))
    found = named(sampled, cores=8, threads=1)
    assert ("host.gil" in found) is fires
    if fires:
        gain = found["host.gil"].gain
        assert gain is not None
        assert gain.floor <= 1 / 0.6 <= gain.ceiling
        # A look that needs the lock mostly finds such a thread when it has given the lock up.
        assert [place.file for place in found["host.gil"].code] == (["words.py"] if seen else [])


def test_a_thread_that_waits_for_another_of_its_own_accord_needs_no_lock() -> None:
    waits = place(0.39, leaf="threading:wait")
    found = named(run(on_cpu_share=0.6, thread_cores=0.5, beside=beside(0.5), places=[waits]), cores=8, threads=1)
    assert "host.gil" not in found


def test_batches_that_are_ready_and_take_long_to_take_over() -> None:
    rebuilding = place(0.3, part="input", leaf="torch.multiprocessing.reductions:rebuild_storage_fd")
    waiting = place(0.1, part="input", leaf="selectors:select")
    longer = place(0.4, part="input", leaf="selectors:select")
    shares = {**HEALTHY, "input": 0.4, "forward": 0.2, "backward": 0.3}
    found = named(run(shares=shares, places=[rebuilding, waiting], worker_cpu_share=0.2, workers=2), **loader(2))
    assert set(found) == {"input.collate"}
    gain = found["input.collate"].gain
    assert gain is not None
    assert gain.expected == pytest.approx(1 / (1 - 0.3 * 0.95), rel=0.01)
    shares = {**shares, "input": 0.7, "forward": 0.1, "backward": 0.1}
    both = named(run(shares=shares, places=[rebuilding, longer], worker_cpu_share=0.2, workers=2), **loader(2))
    assert set(both) == {"input.collate", "input.too-few-workers"}


def test_batches_that_are_waited_for_are_not_taken_over() -> None:
    waiting = place(0.39, part="input", leaf="selectors:select")
    rebuilding = place(0.01, part="input", leaf="torch.multiprocessing.reductions:rebuild_storage_fd")
    shares = {**HEALTHY, "input": 0.4, "forward": 0.2, "backward": 0.3}
    found = named(run(shares=shares, places=[rebuilding, waiting], worker_cpu_share=0.2, workers=2), **loader(2))
    assert "input.collate" not in found
    assert "input.too-few-workers" in found


def test_what_an_allocator_tells_of_a_run() -> None:
    tight = AllocatorRun(device=0, peak_allocated_bytes=60 << 30, peak_reserved_bytes=79 << 30, retries=4, steps=50)
    found = diagnose(Case(runs=(run(allocators=[tight]),)), RULES).findings
    assert [(one.id, one.severity) for one in found] == [
        ("memory.allocator-retry", "minor"),
        ("memory.fragmentation", "info"),
    ]
    assert found[0].evidence[0].value == 4
    fine = AllocatorRun(device=0, peak_allocated_bytes=60 << 30, peak_reserved_bytes=65 << 30, retries=0, steps=50)
    assert diagnose(Case(runs=(run(allocators=[fine]),)), RULES).findings == []


def test_too_few_steps_say_nothing() -> None:
    assert named(run(shares={"input": 0.5}, steps=6), **loader(0)) == {}


def test_rules_of_other_packages_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Case] = []

    def find(case: Case) -> Iterable[Any]:
        asked.append(case)
        return []

    class Entry:
        name = "theirs"

        def load(self) -> Rule:
            return Rule(causes()["host.gil"], (Finder(find, ("trace",)),))

    class Broken(Entry):
        name = "broken"

        def load(self) -> Rule:
            raise ImportError("no such thing")

    def entries(*, group: str) -> list[Any]:
        return [Entry(), Broken()] if group == "whystall.rules" else []

    monkeypatch.setattr(whystall.plugins, "entry_points", entries)
    report = whystall.analyze(whystall.demo_recording(), cache=False)
    assert len(asked) == 1
    assert any("broken could not be loaded: no such thing" in warning for warning in report.source.warnings)


def test_a_cause_on_several_ranks_is_one_finding_worth_at_least_what_it_costs_where_it_costs_least() -> None:
    runs = tuple(
        run(rank=rank, shares={"input": share}, on_cpu_share=1 - share) for rank, share in ((0, 0.2), (1, 0.4))
    )
    found = diagnose(Case(runs=runs, facts=RunFacts(**loader(0))), RULES).findings
    mine = [finding for finding in found if finding.id == "input.synchronous-loader"]
    assert [finding.scope.ranks for finding in mine] == [[0, 1]]
    gain = mine[0].gain
    assert gain is not None
    assert gain.floor <= 1 / (1 - 0.2)
    assert gain.ceiling >= 1 / (1 - 0.4)
