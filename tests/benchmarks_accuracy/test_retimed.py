"""Steps that are timed anew: the replay against times worked out by hand, and what is judged of a case."""

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from benchmarks.accuracy.recorded import TRACES
from benchmarks.accuracy.retimed import device, host, judged, ranks, traces
from benchmarks.accuracy.retimed.case import Base, Case, time_of
from benchmarks.accuracy.retimed.replay import ALL, Change, Insert, Job, Rank, busy_share, replay, step_time
from benchmarks.accuracy.retimed.unit import NOTHING, Unit, read, steps, tight
from benchmarks.accuracy.verdicts import Named, Said

KERNELS = 10
STEP_US = 1000.0


def recording(kernel_us: float) -> dict[str, Any]:
    """Three steps of ten launches, one every 100 us; a kernel starts 5 us after its launch, or when it can."""
    events: list[dict[str, Any]] = []
    free = 0.0
    for number in range(3 * KERNELS):
        begin = 100.0 * number + 20
        start = max(begin + 15, free + 1)
        free = start + kernel_us
        of = {"args": {"correlation": number, "stream": 7, "device": 0}, "ph": "X"}
        launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": begin, "dur": 10.0}
        events.append({**of, **launch})
        kernel = {"cat": "kernel", "name": "ampere_sgemm", "pid": 0, "tid": 7, "ts": start, "dur": kernel_us}
        events.append({**of, **kernel})
    for step in range(3):
        mark = {"cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 9, "tid": 9, "dur": STEP_US - 1}
        events.append({"ph": "X", "ts": STEP_US * step, **mark})
    return {"deviceProperties": [{"name": "NVIDIA A100"}], "traceEvents": events}


def unit(kernel_us: float) -> Unit:
    trace = recording(kernel_us)
    return read("made.json", trace, steps(trace)[1])


def job(kernel_us: float, *, count: int = 1) -> Job:
    return Job(unit(kernel_us), 7, count, "seed", host_noise=0.0, op_noise=0.0)


def base(of: Job) -> Base:
    return Base("made.json", tight=False, job=of, us=time_of(of))


def test_a_step_without_a_change_takes_what_was_recorded() -> None:
    assert time_of(job(40.0)) == pytest.approx(STEP_US)
    # 150 us of kernel every 100 us: the device bounds the step, once the host is as far ahead as it can be
    assert time_of(job(150.0)) == pytest.approx(KERNELS * 151.0)
    assert busy_share(replay(job(150.0))) == pytest.approx(150 / 151, abs=1e-3)


def test_python_in_a_step_of_the_host_costs_what_it_lasts_and_beside_kernels_nothing() -> None:
    change = Change((Insert(250.0, lambda _rank, _step: 300.0),))
    assert time_of(job(40.0), change) == pytest.approx(STEP_US + 300)
    assert time_of(job(150.0), change) == pytest.approx(KERNELS * 151.0)


def test_a_wait_costs_the_gap_after_it() -> None:
    change = Change((Insert(250.0, lambda _rank, _step: 4.0, waits=ALL),))
    # after the wait, at 250 us, the next launch is at 320: it ends at 330, and its kernel starts 5 us later
    waited = replay(job(150.0), change)[0]
    (first, *_) = [each for each in waited.ops if each[0] == 3 and each[2] > waited.inserted[3][3]]
    assert first[3] - waited.inserted[3][3] == pytest.approx(70 + 10 + 3, abs=2.1)
    assert time_of(job(150.0), change) == pytest.approx(KERNELS * 151 + 3 + 70 + 10 + 3, abs=4)


def test_slow_launches_cost_only_where_the_host_is_behind() -> None:
    twice = Change(calls=lambda _rank, _step: 2.0)
    assert time_of(job(40.0), twice) == pytest.approx(STEP_US + KERNELS * 10)
    assert time_of(job(150.0), twice) == pytest.approx(KERNELS * 151.0)


def test_ranks_wait_for_the_last_one_in_a_collective() -> None:
    one = unit(40.0)
    ops = (*one.ops[:-1], replace(one.ops[-1], collective=True))
    two = Job(replace(one, ops=ops), 7, 2, "seed", host_noise=0.0, op_noise=0.0)
    late = Change((Insert(250.0, lambda _rank, _step: 400.0, when=lambda rank, _step: rank == 1),))
    found = replay(two, late)
    ends = [[end for _, op, _, _, end in rank.ops if op.collective] for rank in found]
    assert ends[0] == ends[1]
    assert step_time(found) == pytest.approx(STEP_US + 400, rel=0.01)


def test_a_device_bound_step_has_no_waits_and_a_quick_host() -> None:
    made = tight(unit(150.0), 0.5)
    assert made.length == pytest.approx(750.0)
    assert all(call.wait == NOTHING for call in made.calls)


CONTROLS = {
    "python-hidden": host.python_hidden,
    "copy-hidden": host.copy_hidden,
    "family": device.family,
    "healthy": device.healthy,
    "start-up": host.start_up,
}


@pytest.mark.parametrize("kind", CONTROLS)
@pytest.mark.parametrize("draw", range(4))
def test_a_control_keeps_the_steps_time(kind: str, draw: int) -> None:
    of = base(job(150.0))
    case = CONTROLS[kind](random.Random(draw), of)  # noqa: S311 - to be drawn alike
    if case is None:
        assert kind in {"family", "copy-hidden", "python-hidden"}
        return
    assert time_of(case.job, case.change) == pytest.approx(of.us, rel=0.03)
    assert not case.cause


@pytest.mark.parametrize("draw", range(6))
def test_a_straggler_is_worth_what_all_wait_for(draw: int) -> None:
    one = unit(40.0)
    ops = (*one.ops[:-1], replace(one.ops[-1], collective=True))
    of = base(Job(replace(one, ops=ops), 7, 3, "seed"))
    case = ranks.straggler(random.Random(draw), of)  # noqa: S311 - to be drawn alike
    assert case is not None
    assert case.gain is not None
    assert case.rank in range(3)
    assert time_of(case.job, case.change) == pytest.approx(of.us * case.gain)


def test_traces_show_the_replayed_times_and_linked_launches(tmp_path: Path) -> None:
    of = job(40.0, count=2)
    change = Change((Insert(250.0, lambda _rank, _step: 300.0, ({"cat": "python_function", "name": "slow"},)),))
    files = traces.write(tmp_path, of, replay(of, change))
    assert [path.name for path in files] == ["rank0.json", "rank1.json"]
    trace = json.loads(files[1].read_text("utf-8"))
    assert trace["distributedInfo"]["rank"] == 1
    assert trace["distributedInfo"]["world_size"] == 2
    events = trace["traceEvents"]
    marks = [each["ts"] for each in events if each["name"].startswith("ProfilerStep")]
    assert [after - before for before, after in pairwise(marks)] == [pytest.approx(STEP_US + 300)] * 6
    kernels = {each["args"]["correlation"]: each["ts"] for each in events if each.get("cat") == "kernel"}
    calls = {each["args"]["correlation"]: each["ts"] for each in events if each.get("cat") == "cuda_runtime"}
    assert kernels.keys() == calls.keys()
    assert all(kernels[key] > calls[key] for key in calls)
    assert [each["dur"] for each in events if each["name"] == "slow"] == [300.0] * 7


def named(cause: str, gain: float) -> Named:
    return Named(cause, "major", gain, gain, gain, 0.9, ())


def test_what_the_recording_has_of_its_own_is_not_held_against_the_verdict() -> None:
    of = base(job(40.0))
    own = Said("compute.fusible", (named("compute.fusible", 1.5),))
    control = Case("family", of, of.job, Change(), same=True)
    assert judged.marked("x", control, own, own).top1
    assert judged.marked("x", control, Said(None, ()), own).false_alarms == ("lost compute.fusible",)
    assert judged.marked("x", control, Said("host.sync", (named("host.sync", 1.2),)), own).false_alarms
    fault = Case("sync", of, of.job, Change(), "host.sync", 1.2)
    both = Said("compute.fusible", (named("compute.fusible", 1.4), named("host.sync", 1.2)))
    assert judged.marked("x", fault, both, own).top1
    faint = Said("compute.fusible", (named("compute.fusible", 1.02),))
    assert not judged.marked("x", fault, both, faint).top1


@pytest.mark.real_traces
@pytest.mark.skipif(not TRACES.exists(), reason="the recorded traces are not here")
@pytest.mark.parametrize("file", ["resnet50-workers4-v100.json.gz", "ddp-2rank-a100.json.gz"])
def test_a_recorded_step_is_replayed_as_it_was(file: str) -> None:
    of = judged.base_of(2, file, close=False, count=1)
    # what the first wait of a step waits for is the step before, which was another one in the recording
    assert of.us == pytest.approx(of.unit.length, rel=0.08)
    found: list[Rank] = replay(judged.base_of(2, file, close=True, count=1).job)
    assert busy_share(found) > 0.94
