"""The parts of a session: what ran at an instant, what watching cost, what torch's calls lead to."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from whystall.capture.config import CaptureConfig, Schedule
from whystall.capture.evaluation import Evaluation
from whystall.capture.faults import Faults
from whystall.capture.listener import Heard, guarded
from whystall.capture.overhead import Costs, Within
from whystall.capture.recording import Recording
from whystall.capture.samples import ThreadCounters
from whystall.capture.sampling import PartTimes
from whystall.capture.steps import StepFinder
from whystall.capture.sums import rows_of
from whystall.capture.windows import Action
from whystall.run_folder.description import LookCost
from whystall.run_folder.samples import SKIPPED

torch = pytest.importorskip("torch")


class FakeStepper:
    """Writes down what it is told."""

    def __init__(self, *, stepping: bool = True) -> None:
        self.stepping = stepping
        self.told: list[object] = []

    def on_stepping_thread(self) -> bool:
        return self.stepping

    def step_ended(self, flags: int = 0, *, in_call: bool = False) -> None:
        self.told.append(("step", flags))

    def optimizer_found(self, optimizer: object) -> None:
        self.told.append(("optimizer", optimizer))

    def loader_found(self, loader: object) -> None:
        self.told.append(("loader", loader))

    def given(self, batch: object, source: str) -> None:
        self.told.append((source, batch))

    def look_no_more(self) -> None:
        """Nothing looks here."""

    def make_room(self) -> None:
        self.told.append("room")

    def before_backward(self) -> None:
        """Nothing is looked at."""


def test_the_first_optimizer_is_told_of_once_and_every_step_of_it() -> None:
    stepper = FakeStepper()
    heard = Heard(stepper, StepFinder(), PartTimes(), torch)
    for optimizer in ("first", "second", "first"):
        heard.optimizer_begins()
        heard.optimizer_ends(optimizer)
    heard.scaler_begins()
    heard.scaler_ends()
    assert stepper.told == [("optimizer", "first"), ("step", 0), ("step", 0), ("step", SKIPPED)]


def test_what_other_threads_do_is_no_part_of_a_step() -> None:
    stepper, parts, finder = FakeStepper(stepping=False), PartTimes(), StepFinder()
    heard = Heard(stepper, finder, parts, torch)
    for _ in range(100):
        heard.loader_begins("loader")
        heard.forward_begins()
        heard.forward_ends()
        heard.backward_begins()
        heard.backward_ends()
        heard.input_ends(None)
        heard.loader_ends()
    assert set(stepper.told) == {("loader", "loader")}
    assert finder.source is None
    assert parts.at(time.perf_counter_ns()) == "other"


def test_batches_are_handed_on_from_where_they_come() -> None:
    stepper = FakeStepper()
    heard = Heard(stepper, StepFinder(), PartTimes(), torch)
    heard.input_begins()
    heard.input_ends("a batch")
    heard.forward_begins(("tokens",), {"mask": "ones"})
    assert stepper.told == [("loader", "a batch"), ("forward", (("tokens",), {"mask": "ones"}))]


def test_a_checkpoint_in_a_forward_pass_is_a_checkpoint() -> None:
    parts = PartTimes()
    heard = Heard(FakeStepper(), StepFinder(), parts, torch)
    heard.forward_begins()
    assert parts.at(time.perf_counter_ns()) == "forward"
    heard.save_begins()
    assert parts.at(time.perf_counter_ns()) == "save"
    heard.save_ends()
    assert parts.at(time.perf_counter_ns()) == "forward"


def test_a_part_that_fails_is_named_and_the_others_go_on() -> None:
    faults, stepper = Faults(), FakeStepper()
    heard: Any = Heard(stepper, StepFinder(), PartTimes(), torch)
    heard.forward_begins = lambda *_, **_named: 1 / 0
    listener = guarded(heard, faults)
    listener.forward_begins((), {}, learns=True, trains=True)
    listener.optimizer_ends("first")
    assert list(faults.reasons) == ["forward times"]
    assert ("step", 0) in stepper.told


def test_costs_are_shares_of_the_steps_outside_windows() -> None:
    costs = Costs()
    costs.outside(100, 8)
    costs.outside(300, 0)
    costs.profiled(500)
    costs.paused(40)
    costs.paused(2)
    costs.looked(900, "modules")  # of 200 usually
    costs.looked(250, "operators")
    costs.looked(100, "operators")
    told = costs.told(export_ns=7, watched_ns=9_000, threads_ns=90)
    assert told.looks == {
        "modules": LookCost(steps=1, longer_ns=700),
        "operators": LookCost(steps=2, longer_ns=0),  # they were no longer than others
    }
    assert (told.looked_ns, told.threads_share) == (700, 0.01)
    assert (told.hooks_share, told.profiled_over_unprofiled, told.export_ns) == (8 / 400, 2.5, 7)
    assert (told.paused_ns, told.watched_ns) == (42, 9_000)
    assert Costs().told(0, 0).profiled_over_unprofiled is None


def test_our_time_within_a_step_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr("whystall.capture.clock.perf_counter_ns", lambda: next(clock))
    within = Within()
    assert within.timed(lambda given, *, by: given / by)(6, by=2) == 3.0
    assert within.take() == 100
    within.timed(lambda: within.without(40))()
    with pytest.raises(ZeroDivisionError):
        within.timed(lambda: 1 / 0)()
    assert (within.take(), within.take()) == (160, 0)


def test_a_job_that_profiles_itself_gets_no_window_of_ours(tmp_path: Path) -> None:
    notes: list[str] = []
    profiler = SimpleNamespace(_is_profiler_enabled=True)
    torch = SimpleNamespace(autograd=SimpleNamespace(profiler=profiler))
    recording = Recording(torch, CaptureConfig(folder=str(tmp_path), schedule=Schedule()), tmp_path, notes.append)
    recording.windows.request()
    assert recording.windows.step_ended(1, 1) is Action.START
    recording.act(Action.START)
    assert notes == ["a window was not opened: the job is profiling itself"]
    assert not recording.windows.recording
    recording.stop()
    assert not recording.running


def spin(ns: int) -> None:
    """Lets time pass, whatever else the machine does meanwhile."""
    until = time.perf_counter_ns() + ns
    while time.perf_counter_ns() < until:
        pass


def test_an_optimizer_that_calls_the_whole_step_is_only_what_it_does_itself() -> None:
    """As Lightning trains: forward and backward run in the closure of `optimizer.step`."""
    parts = PartTimes()
    began = time.perf_counter_ns()
    parts.optimizer.begin()
    parts.forward.begin()
    spin(3_000_000)
    parts.forward.end()
    parts.backward.begin()
    parts.forward.begin()  # computed again
    spin(2_000_000)
    parts.forward.end()
    parts.backward.end()
    spin(1_000_000)
    parts.optimizer.end()
    whole_us = (time.perf_counter_ns() - began) // 1000
    _, forward, backward, optimizer, _, _ = parts.take_us()
    assert forward >= 3_000
    assert backward >= 2_000
    assert optimizer >= 1_000
    assert forward + backward + optimizer <= whole_us


def test_a_closure_whose_forward_pass_nobody_hooks_is_no_optimizer() -> None:
    """Lightning's `training_step` calls parts of a model: what comes before the backward pass is the forward pass."""
    parts = PartTimes()
    heard = Heard(FakeStepper(), StepFinder(), parts, torch)
    parts.take_us()
    for _ in range(2):
        heard.optimizer_begins()
        spin(3_000_000)
        heard.backward_begins()
        spin(2_000_000)
        heard.backward_ends()
        spin(1_000_000)
        parts.optimizer.end()
        _, forward, backward, optimizer, _, _ = parts.take_us()
        assert forward >= 3_000
        assert backward >= 2_000
        assert 1_000 <= optimizer < 3_000


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets microseconds pass on a clock that stands still otherwise."""
    now = [1_000_000]
    monkeypatch.setattr("whystall.capture.clock.perf_counter_ns", lambda: now[0])

    def passes(us: int) -> None:
        now[0] += us * 1000

    return passes


def test_what_a_closure_does_after_the_model_is_no_optimizer(passes: Callable[[int], None]) -> None:
    """A metric over all of the epoch in Lightning's `training_step`, after the call of the whole model."""
    parts = PartTimes()
    heard = Heard(FakeStepper(), StepFinder(), parts, torch)
    parts.take_us()
    for _ in range(2):
        passes(10)
        heard.optimizer_begins()
        parts.forward.begin()
        passes(1_000)
        parts.forward.end()
        passes(4_000)
        heard.backward_begins()
        passes(2_000)
        heard.backward_ends()
        passes(700)
        parts.optimizer.end()
        assert parts.take_us()[1:4] == (5_000, 2_000, 700)


def test_an_optimizer_that_calls_its_closure_again_keeps_what_it_does_between(passes: Callable[[int], None]) -> None:
    parts = PartTimes()
    heard = Heard(FakeStepper(), StepFinder(), parts, torch)
    parts.take_us()
    passes(10)
    heard.optimizer_begins()
    for _ in range(3):
        parts.forward.begin()
        passes(1_000)
        parts.forward.end()
        heard.backward_begins()
        passes(500)
        heard.backward_ends()
        passes(3_000)  # a search along a line
    parts.optimizer.end()
    assert parts.take_us()[1:4] == (3_000, 1_500, 9_000)


def test_a_look_before_the_backward_pass_of_a_closure_finds_the_forward_pass() -> None:
    """From the second step on: of the first nobody knows yet that the optimizer calls it."""
    parts = PartTimes()
    heard = Heard(FakeStepper(), StepFinder(), parts, torch)
    found = []
    for _ in range(2):
        heard.optimizer_begins()
        found.append(parts.at(time.perf_counter_ns()))
        heard.backward_begins()
        found.append(parts.at(time.perf_counter_ns()))
        heard.backward_ends()
        found.append(parts.at(time.perf_counter_ns()))
        parts.optimizer.end()
    assert found == ["optimizer", "backward", "optimizer", "forward", "backward", "optimizer"]


def test_a_look_at_an_optimizer_after_the_backward_pass_finds_the_optimizer() -> None:
    parts = PartTimes()
    heard = Heard(FakeStepper(), StepFinder(), parts, torch)
    for _ in range(2):
        heard.backward_begins()
        heard.backward_ends()
        heard.optimizer_begins()
        assert parts.at(time.perf_counter_ns()) == "optimizer"
        parts.optimizer.end()


def looked_at(
    passes: Callable[[int], None],
    every: int,
    *,
    given: str = "held out",
    trains: bool = False,
    learns: bool = False,
    calls: bool = True,
) -> list[str]:
    """What looks find in 48 steps, of which every so manyth is followed by passes that learn nothing.

    Those are ``given`` the same samples each time, others, what it learns from later, or but one over and over. The
    model ``calls`` itself to learn.
    """
    parts = PartTimes()
    heard = Heard(FakeStepper(), StepFinder(), parts, torch)
    found = []
    data, held_out = torch.randn(8, 4), torch.randn(2, 8, 4)

    def sample(number: int) -> Any:
        if given == "one":
            return held_out[0, :1].expand(8, 4).contiguous()
        return {"held out": held_out[number], "others": torch.randn(8, 4), "learned from": data[2:3]}[given]

    def look() -> None:
        passes(10)
        found.append(parts.at(time.perf_counter_ns()))
        passes(10)

    for step in range(48):
        if calls:
            heard.forward_begins((data,))
            look()
            heard.forward_ends()
        heard.backward_begins()
        look()
        heard.backward_ends()
        heard.optimizer_begins()
        look()
        parts.optimizer.end()
        parts.take_us()
        if step % every == every - 1:
            for number in torch.randperm(2).tolist():
                heard.forward_begins((sample(number),), learns=learns, trains=trains)
                look()
                heard.forward_ends()
                look()  # what is measured of it
        passes(5)
    return found


def test_passes_in_evaluation_mode_now_and_then_are_an_evaluation(passes: Callable[[int], None]) -> None:
    """From the second one on."""
    found = looked_at(passes, 12)
    assert found.count("evaluation") == 3 * 4
    assert [found.count(part) for part in ("backward", "optimizer")] == [48, 48]


def test_passes_in_evaluation_mode_may_be_over_others_each_time(passes: Callable[[int], None]) -> None:
    assert looked_at(passes, 12, given="others").count("evaluation") == 3 * 4


def test_a_model_may_be_evaluated_in_training_mode(passes: Callable[[int], None]) -> None:
    """On the same samples each time, in another order: from the third one on."""
    found = looked_at(passes, 12, trains=True)
    assert found.count("evaluation") == 2 * 4


@pytest.mark.parametrize(
    ("every", "options"),
    [
        pytest.param(1, {}, id="in each step"),
        pytest.param(12, {"learns": True}, id="with gradients"),
        pytest.param(12, {"given": "learned from"}, id="a policy that acts"),
        pytest.param(12, {"given": "others", "trains": True}, id="a policy that acts, and learns from what it sees"),
        pytest.param(12, {"given": "one", "trains": True}, id="a policy in a world of few places"),
        pytest.param(12, {"calls": False}, id="it learns by another method"),
    ],
)
def test_other_passes_without_gradients_are_none(
    passes: Callable[[int], None], every: int, options: dict[str, Any]
) -> None:
    assert "evaluation" not in looked_at(passes, every, **options)


def test_inputs_of_a_policy_that_acts_in_each_step_are_not_read_for_ever() -> None:
    """Each reading took some 70 µs: a tenth of an actor-critic's short steps."""
    evaluation, read = Evaluation(), 0

    def samples() -> list[int]:
        nonlocal read
        read += 1
        return [read]

    for _ in range(1000):
        for _ in range(5):
            evaluation.begins(samples, trains=False)
        evaluation.ends()
        evaluation.step_ended()
    assert read <= 5 * 32


def test_a_part_that_an_exception_left_open_takes_nothing_of_later_steps() -> None:
    parts = PartTimes()
    parts.take_us()
    parts.forward.begin()  # raises, and never ends
    parts.take_us()
    parts.take_us()
    parts.optimizer.begin()
    spin(1_000_000)
    parts.optimizer.end()
    _, forward, _, optimizer, _, _ = parts.take_us()
    assert (forward, optimizer >= 1_000) == (0, True)


def test_what_a_thread_sleeps_is_no_wait_for_a_core() -> None:
    counters = ThreadCounters()
    time.sleep(0.05)
    *_, queued = counters.since_last()
    counters.close()
    assert queued is None or queued < 40_000


def test_where_the_kernel_tells_nothing_of_queues_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whystall.capture.samples._opened", lambda _: None)
    counters = ThreadCounters()
    assert counters.since_last()[-1] is None
    assert counters.rss_kib() is None
    counters.close()


def test_samples_are_told_apart_by_their_numbers() -> None:
    batch = torch.randn(4, 3)
    assert rows_of(torch, ("text", {"x": batch})) == rows_of(torch, batch.clone())
    assert len(set(rows_of(torch, batch))) == 4
    assert rows_of(torch, (torch.randint(0, 9, (4, 3)), torch.randn(5))) == []  # few whole numbers, and no batch
    assert len(rows_of(torch, torch.randn(500, 9000), most=1 << 16)) == (1 << 16) // 9000
    large = torch.randn(2, 9000)  # of which one sample is more than that: it is known by its beginning
    assert rows_of(torch, large, most=8000, begins=True) == rows_of(torch, large[:1, :8000], most=8000)
    assert rows_of(torch, large, most=8000) == []
    under = torch.func.vmap(lambda one: one.sum() + len(rows_of(torch, one)))(torch.randn(2, 4, 3))
    assert under.shape == (2,)  # what stands for others is not read


@pytest.mark.parametrize(("learns", "steps"), [(True, True), (False, False)])
def test_a_job_that_only_learns_or_only_serves_is_not_asked_for_its_samples(*, learns: bool, steps: bool) -> None:
    """It would cost each call of the model."""
    parts, asked = PartTimes(), 0

    def samples() -> list[int]:
        nonlocal asked
        asked += 1
        return []

    for _ in range(4):
        parts.model_is_called(samples, learns=learns, trains=True)
        if steps:
            parts.optimizer.begin()
            parts.optimizer.end()
            parts.take_us()
    assert asked == 0
