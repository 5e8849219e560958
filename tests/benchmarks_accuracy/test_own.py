"""What a recording has of its own: what is taken away, and what a faulty job then takes, against times by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from benchmarks.accuracy.retimed import judged, own
from benchmarks.accuracy.retimed.case import Base, Case, time_of
from benchmarks.accuracy.retimed.replay import Change, Insert, Job
from benchmarks.accuracy.retimed.unit import Unit, read, steps
from benchmarks.accuracy.verdicts import Named, Said

Host = tuple[str, str, float, float]
Device = tuple[str, int, float, float]
"""Names (and categories), streams, when they begin in the step, and how long they last."""

LAUNCH, KERNEL = "cudaLaunchKernel", "volta_sgemm_64x64_nt"


def unit(host: Sequence[Host], work: Sequence[tuple[Host, Device]], *, device: str = "NVIDIA A100") -> Unit:
    """The middle one of three steps of 1000 us."""
    events: list[dict[str, Any]] = []
    for step in range(3):
        begin, thread = 1000.0 * step, {"ph": "X", "pid": 9, "tid": 9}
        mark = ("user_annotation", f"ProfilerStep#{step}", 0.0, 999.0)
        for category, name, at, lasts in (mark, *host):
            events.append({**thread, "cat": category, "name": name, "ts": begin + at, "dur": lasts, "args": {}})
        for number, ((category, name, at, lasts), (kernel, stream, start, runs)) in enumerate(work):
            args = {"correlation": 100 * step + number + 1, "stream": stream, "device": 0, "bytes": 1_200_000}
            event = {"cat": category, "name": name, "ts": begin + at, "dur": lasts, "args": args}
            events.append({**thread, **event})
            event = {"cat": "kernel", "name": kernel, "ts": begin + start, "dur": runs, "args": args}
            events.append({**event, "ph": "X", "pid": 0, "tid": stream})
    trace = {"deviceProperties": [{"name": device}], "traceEvents": events}
    return read("made.json", trace, steps(trace)[1])


def launches(begins: Sequence[float], kernel_us: float) -> list[tuple[Host, Device]]:
    """Launches of 10 us, whose kernels start 5 us later or when they can."""
    found, free = [], 0.0
    for begin in begins:
        start = max(begin + 15, free + 1)
        free = start + kernel_us
        found.append((("cuda_runtime", LAUNCH, begin, 10.0), (KERNEL, 7, start, kernel_us)))
    return found


def case(of: Unit, change: Change | None = None, cause: str = "communication.straggler") -> Case:
    job = Job(of, 7, 1, "seed", host_noise=0.0, op_noise=0.0)
    us = time_of(job)
    made = change or Change()
    return Case("made", Base("made.json", tight=False, job=job, us=us), job, made, cause, time_of(job, made) / us)


def late(lasts: float, at: float = 300.0) -> Change:
    return Change((Insert(at, lambda _rank, _step: lasts),))


def sent(kernel_us: float) -> Unit:
    """Buffers are joined, sent and copied back from 10 to 280 us; then seven kernels."""
    host = [
        ("user_annotation", "DistributedDataParallel.forward", 5.0, 900.0),
        ("cpu_op", "aten::flatten_dense_tensors", 10.0, 50.0),
        ("cpu_op", "aten::view", 20.0, 5.0),
        ("cpu_op", "c10d::broadcast_", 70.0, 100.0),
        ("cpu_op", "aten::copy_", 180.0, 100.0),
        ("cpu_op", "aten::conv2d", 310.0, 30.0),
        ("cpu_op", "aten::copy_", 700.0, 10.0),
    ]
    sends = [
        (("cuda_runtime", "cudaLaunchKernelExC", 100.0, 10.0), ("ncclDevKernel_Broadcast", 40, 115.0, 20.0)),
        (("cuda_runtime", "cudaMemcpyAsync", 200.0, 10.0), ("Memcpy DtoD (Device -> Device)", 7, 215.0, 2.0)),
    ]
    return unit(host, [*sends, *launches([320.0 + 95 * number for number in range(7)], kernel_us)])


def test_buffers_that_are_sent_cost_a_late_host_what_the_calls_last_and_a_busy_device_nothing() -> None:
    taken = own.broadcasts(sent(40.0))
    assert taken is not None
    assert taken.spans == ((10.0, 280.0),)
    assert taken.lasts == {0: 0.0, 1: 0.0}
    assert own.gain_without(case(sent(40.0)), "communication.buffer-broadcast") == pytest.approx(1000 / 730, rel=2e-3)
    busy = case(sent(150.0))
    assert own.gain_without(busy, "communication.buffer-broadcast") == pytest.approx(1.0, abs=0.01)
    # the fault makes the host late: 1600 us a step, of which the calls take 270
    brought_out = case(sent(150.0), late(600.0))
    assert own.gain_without(brought_out, "communication.buffer-broadcast") == pytest.approx(1600 / 1330, rel=2e-3)


def test_ranks_need_not_meet_where_nothing_is_sent() -> None:
    one = case(sent(40.0))
    taken = own.broadcasts(one.job.unit)
    assert taken is not None
    made, _ = own.without(one.job, Change(), taken)
    assert [op.collective for op in one.job.unit.ops].count(True) == 1
    assert not any(op.collective for op in made.unit.ops)


def test_long_stretches_without_anything_are_python_and_short_ones_are_not() -> None:
    every_100 = unit([], launches([20.0 + 100 * number for number in range(10)], 40.0))
    # nine stretches of 90 us and one of 70: 120 us of the host are left, and the device needs 41 for each kernel
    assert own.gain_without(case(every_100), "host.python") == pytest.approx(1000 / 410, rel=5e-3)
    busy = unit([], launches([20.0 + 100 * number for number in range(10)], 150.0))
    assert own.gain_without(case(busy), "host.python") == pytest.approx(1.0, abs=0.01)
    every_60 = unit([("cpu_op", "aten::add", 0.0, 5.0)], launches([5.0 + 60 * number for number in range(17)], 20.0))
    assert own.python(every_60) is None
    named = unit([("cpu_op", "aten::add", 0.0, 999.0)], launches([20.0, 500.0], 40.0))
    assert own.python(named) is None


def test_what_was_put_into_a_stretch_stays_when_the_stretch_goes() -> None:
    of = unit([], launches([20.0 + 100 * number for number in range(10)], 40.0))
    # 120 us of the host's own and 600 that were put in, in the middle of a stretch
    stopped, taken = case(of, late(600.0, 380.0)), own.python(of)
    assert taken is not None
    assert own.gain_without(stopped, "host.python") == pytest.approx(1600 / 720, rel=5e-3)
    made, change = own.without(stopped.job, stopped.change, taken)
    assert made.unit.calls[3].end < change.inserts[0].at < made.unit.calls[4].begin


def test_a_wait_is_worth_the_gap_after_it() -> None:
    wait = [("cuda_runtime", "cudaDeviceSynchronize", 440.0, 352.0)]
    of = unit(wait, launches([20.0, 120.0, 220.0, 320.0, 420.0], 150.0))
    # the host needs 652 us without the wait, and the device 755
    assert own.gain_without(case(of), "host.sync") == pytest.approx(1000 / 755, rel=5e-3)


def test_pageable_copies_move_as_pinned_ones_and_hold_up_nobody() -> None:
    call = ("cuda_runtime", "cudaMemcpyAsync", 440.0, 352.0)
    copy = (call, ("Memcpy HtoD (Pageable -> Device)", 7, 480.0, 300.0))
    of = unit([], [*launches([20.0, 120.0, 220.0, 320.0, 420.0], 40.0), copy], device="Tesla V100")
    taken = own.pageable(of)
    assert taken is not None
    assert taken.lasts == {5: 100.0}
    assert own.gain_without(case(of), "host.pageable-copy") == pytest.approx(1000 / 652, rel=5e-3)
    assert own.waits(of) is None


def test_products_are_shorter_on_tensor_cores_that_take_no_single_precision() -> None:
    work = launches([20.0 + 100 * number for number in range(10)], 400.0)
    assert own.gain_without(case(unit([], work)), "compute.low-tensor-core") is None
    old = case(unit([], work, device="Tesla V100"))
    assert own.gain_without(old, "compute.low-tensor-core") == pytest.approx(4010 / 1610, rel=1e-3)
    half = Change(ops=lambda op, _rank, _step: 2.0 if op in old.job.unit.ops[:5] else 1.0)
    slow = case(old.job.unit, half)
    # what was done to a kernel is done to it on tensor cores, too
    assert own.gain_without(slow, "compute.low-tensor-core") == pytest.approx(6010 / 2410, rel=1e-3)


def test_batches_made_on_the_training_thread_are_taken_out_and_those_of_workers_are_not() -> None:
    fetch = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    inside = ("cpu_op", "aten::stack", 500.0, 100.0)
    work = launches([20.0, 120.0, 220.0, 320.0, 420.0, 900.0], 40.0)
    of = unit([("user_annotation", fetch, 440.0, 300.0), inside], work)
    assert own.gain_without(case(of), "input.synchronous-loader") == pytest.approx(1000 / 700, rel=2e-3)
    assert own.fetches(unit([("user_annotation", fetch.replace("Single", "Multi"), 440.0, 300.0)], work)) is None


def said(*gains: tuple[str, float]) -> Said:
    findings = tuple(Named(cause, "major", gain, gain, gain, 0.9, ()) for cause, gain in gains)
    return Said(findings[0].id, findings)


SENDS_FIRST = said(("communication.buffer-broadcast", 1.2), ("communication.straggler", 1.15))


def test_a_cause_of_the_recording_may_go_first_where_it_gains_as_much_as_the_fault() -> None:
    # the base is of the device, 1059 us; the host, late by 200, takes 1200 with what is sent and 930 without
    fault = case(sent(150.0), late(200.0))
    assert fault.gain == pytest.approx(1200 / 1059, rel=5e-3)
    assert own.gain_without(fault, "communication.buffer-broadcast") == pytest.approx(1200 / 1058, rel=5e-3)
    assert judged.marked("x", fault, SENDS_FIRST, Said(None, ())).top1
    # the fault must be what comes next
    other = said(("communication.buffer-broadcast", 1.2), ("host.gc", 1.16), ("communication.straggler", 1.15))
    assert not judged.marked("x", fault, other, Said(None, ())).top1
    assert not judged.marked("x", fault, said(("communication.buffer-broadcast", 1.2)), Said(None, ())).top1


def test_a_cause_of_the_recording_that_gains_less_than_the_fault_is_a_miss() -> None:
    # the same, late by 600: the fault gains 1.51, what is sent 1.20
    assert not judged.marked("x", case(sent(150.0), late(600.0)), SENDS_FIRST, Said(None, ())).top1
    # what is not in the recording is no excuse, whatever it is said to gain
    nothing_sent = case(unit([], launches([320.0 + 95 * number for number in range(7)], 40.0)), late(200.0))
    assert own.gain_without(nothing_sent, "communication.buffer-broadcast") is None
    assert not judged.marked("x", nothing_sent, SENDS_FIRST, Said(None, ())).top1


def test_a_control_is_judged_as_before() -> None:
    control = replace(case(sent(150.0), late(200.0)), cause="", gain=None)
    assert judged.marked("x", control, SENDS_FIRST, Said(None, ())).false_alarms == (
        "communication.buffer-broadcast",
        "communication.straggler",
    )
