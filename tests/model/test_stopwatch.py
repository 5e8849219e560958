"""Kernels belong to the module or node that was open when their launch was called."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from whystall.model.frames import Tree
from whystall.model.profile import model_profile
from whystall.model.stopwatch import BACKWARD_FUNCTION, Stopwatch, _Span


@dataclass
class Event:
    """What a profile's event answers."""

    named: str
    start: int
    duration: int
    correlation: int = 0
    number: int = -1
    thread: int = 1
    kind: int = 0
    device: str = "DeviceType.CPU"

    def name(self) -> str:
        return self.named

    def start_ns(self) -> int:
        return self.start

    def duration_ns(self) -> int:
        return self.duration

    def correlation_id(self) -> int:
        return self.correlation

    def sequence_nr(self) -> int:
        return self.number

    def start_thread_id(self) -> int:
        return self.thread

    def scope(self) -> int:
        return self.kind

    def device_type(self) -> str:
        return self.device


def launch(at: int, correlation: int) -> Event:
    return Event("cudaLaunchKernel", at, 2, correlation)


def kernel(at: int, duration: int, correlation: int) -> Event:
    return Event("gemm", at, duration, correlation, device="DeviceType.CUDA")


def stopwatch(model: nn.Module) -> tuple[Stopwatch, Tree]:
    watch = Stopwatch(model)
    with watch:
        model(torch.zeros(2, 8))
    watch._spans.clear()
    return watch, watch._tree


def test_kernels_follow_their_launches() -> None:
    watch, tree = stopwatch(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    root, (first, second) = tree.root, tree.root.children
    watch._spans = [
        _Span(root, "forward", 0, None, 100),
        _Span(first, "forward", 10, None, 40),
        _Span(second, "forward", 50, None, 90),
    ]
    events: list[Any] = [
        *(launch(20, 1), launch(60, 2), launch(95, 3), launch(200, 4)),
        *(kernel(1000, 70, 1), kernel(1100, 30, 2), kernel(1200, 5, 3), kernel(1300, 9, 4), kernel(1400, 50, 99)),
        Event("aten::mm", 20, 5, 1),  # an operator's own number that happens to be equal
    ]

    times = watch._gather(events)

    assert times == {("0", "forward"): 70, ("1", "forward"): 30, ("", "forward"): 105}


def test_kernels_of_the_backward_pass_follow_their_nodes() -> None:
    watch, _ = stopwatch(nn.Sequential(nn.Linear(8, 8)))
    number = watch._state._starts[-2]  # made while the layer was open
    watch._state._frames[-2] = watch._tree.root.children[0]
    events: list[Any] = [
        Event("AddmmBackward0", 10, 50, number=number, kind=BACKWARD_FUNCTION),
        Event("torch::autograd::AccumulateGrad", 70, 10, kind=BACKWARD_FUNCTION),
        *(launch(20, 1), launch(30, 2), launch(75, 3)),
        *(kernel(500, 40, 1), kernel(600, 20, 2), kernel(700, 3, 3)),
    ]

    times = watch._gather(events)

    assert times == {("0", "backward"): 63, ("", "backward"): 63}


def test_a_threads_own_time_leaves_out_what_lies_inside_and_what_others_took() -> None:
    watch, tree = stopwatch(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    root, (first, second) = tree.root, tree.root.children
    # elapsed 100, 50 and 20; on a processor 60, 30 and 20: the root itself 10 of its 30
    watch._spans = [
        _Span(root, "forward", 0, None, 100, 1_000, 1_060),
        _Span(first, "forward", 10, None, 60, 1_005, 1_035),
        _Span(second, "forward", 70, None, 90, 1_036, 1_056),
    ]

    assert watch._gather([]) == {("", "forward"): 100, ("0", "forward"): 50, ("1", "forward"): 20}
    assert watch.thread_times == {("", "forward"): 60, ("0", "forward"): 30, ("1", "forward"): 20}
    assert watch._by_thread() == {(root, "forward"): 10, (first, "forward"): 30, (second, "forward"): 20}


def test_a_thread_that_sleeps_takes_no_thread_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that other programs move: a millisecond passes at each look, the thread's own moves by one nanosecond."""
    elapsed, own = itertools.count(0, 10**6), itertools.count(0, 1)
    monkeypatch.setattr("whystall.model.stopwatch.time.time_ns", lambda: next(elapsed))
    monkeypatch.setattr("whystall.model.stopwatch.time.thread_time_ns", lambda: next(own))
    model = nn.Sequential(nn.Linear(8, 8))
    with Stopwatch(model) as watch:
        model(torch.zeros(2, 8))
    assert watch.times["", "forward"] == 3 * 10**6  # root before, layer before, layer after, root after
    assert watch.thread_times["", "forward"] == 3


def test_a_profile_has_thread_times_beside_elapsed_ones() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    profile = model_profile(model, torch.zeros(8, 64), optimizer=torch.optim.SGD(model.parameters()), repeats=2)
    for phase in ("forward", "backward", "optimizer"):
        assert getattr(profile, phase).thread_time_ns > 0
    inner = profile.module("0")
    assert inner.forward.thread_time_ns is not None
    assert profile.forward.thread_time_ns is not None
    assert inner.forward.thread_time_ns <= profile.forward.thread_time_ns
    assert inner.backward.thread_time_ns is None  # the profiler that times nodes has no such clock
