"""Jobs of many kinds under ``whystall run``: the right number of steps, the same output, nothing broken."""

from __future__ import annotations

import json
import sys

import pytest
from tests import plain_jobs
from tests.capture.conftest import JOBS, TIMEOUT_S, Jobs, Ran

import whystall

JOB = str(JOBS / "many_ways.py")
MADE_BEFORE = """
import torch, whystall
model = torch.nn.Linear(512, 512)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
with whystall.profile(output="run"):
    for _ in range(12):
        torch.nn.functional.relu(model(torch.ones(64, 512))).mean().backward()
        optimizer.step()
"""


LOOKS_FIRST = """
import importlib.util, sys
assert importlib.util.find_spec("torch") is not None
assert "torch" not in sys.modules
spec = importlib.util.find_spec("torch")
assert spec.origin.endswith("__init__.py") and spec.loader.is_package("torch")
import torch
assert type(torch.__loader__).__module__ == "_frozen_importlib_external"
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for _ in range(12):
    model(torch.ones(4, 8)).mean().backward()
    optimizer.step()
"""
"""Transformers and polars ask whether there is a torch before anybody imports it."""


MADE_FOR_EACH = """
import time, torch
class Answers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = torch.nn.Embedding(2000, 256), torch.nn.Linear(256, 8)
    def forward(self, given):
        return self.out(self.words(given).mean(1))
answered, ends = 0, time.monotonic() + 8
while time.monotonic() < ends:
    with torch.no_grad():
        Answers().eval()(torch.randint(2000, (4, 16)))
    answered += 1
print(answered)
"""


def run_both_ways(jobs: Jobs, *words: str) -> tuple[Ran, Ran]:
    plain = plain_jobs.run([JOB, *words], jobs.home, jobs.environment(LASTS_S="0.3"), timeout_s=TIMEOUT_S)
    without = Ran(plain.code, plain.stdout.decode(), plain.stderr.decode(), jobs.folder)
    return without, jobs.whystall(JOB, *words)


def assert_unharmed(without: Ran, ran: Ran) -> None:
    assert ran.code == without.code, ran.stderr
    assert ran.stdout == without.stdout
    assert all(rank["not_recorded"] == {} for rank in ran.ranks())


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("persistence", ["persistent", "fresh"])
def test_data_loader_workers(jobs: Jobs, context: str, persistence: str) -> None:
    without, ran = run_both_ways(jobs, "loader", context, persistence)
    assert_unharmed(without, ran)
    assert [rank["steps"] for rank in ran.ranks()] == [32]  # the workers left nothing
    assert sum(step["input_us"] for step in ran.steps()) > 0
    (loader,) = ran.ranks()[0]["loaders"]
    assert (loader["workers"], loader["batch_size"]) == (2, 8)
    assert loader["persistent_workers"] == (persistence == "persistent")
    assert loader["epochs"] == 2


def test_padding_of_batches_is_counted(jobs: Jobs) -> None:
    without, ran = run_both_ways(jobs, "padded")
    assert_unharmed(without, ran)
    seen = ran.ranks()[0]["padding"]
    batches = seen["batches"]
    assert 0 < batches <= 12  # none while the profiler runs
    assert seen["positions"] == [batches * 4 * 16, batches * 4 * 16**2]
    assert seen["needed"] == [batches * 4 * 5, batches * 4 * 5**2]
    assert seen["real"] == [batches * 2 * (3 + 5), batches * 2 * (3**2 + 5**2)]
    assert seen["sizes"] == [[4, 16]]


@pytest.mark.parametrize("how", ["compiled", "compiled_in_place"])
def test_compiled_model_is_not_compiled_more_often(jobs: Jobs, how: str) -> None:
    without, ran = run_both_ways(jobs, how)
    assert_unharmed(without, ran)
    assert ran.ranks()[0]["steps"] == 16


def test_two_optimizers_make_one_step(jobs: Jobs) -> None:
    without, ran = run_both_ways(jobs, "two_optimizers")
    assert_unharmed(without, ran)
    assert ran.ranks()[0]["steps"] == 15  # the first round tells which of them take turns


def test_step_that_the_scaler_skips_is_a_step(jobs: Jobs) -> None:
    without, ran = run_both_ways(jobs, "skipping_scaler")
    assert_unharmed(without, ran)
    assert ran.ranks()[0]["steps"] == 16
    assert [step["step"] for step in ran.steps() if step["flags"] & 2] == [9]


def test_inference_steps_are_batches_or_forward_passes(jobs: Jobs) -> None:
    without, ran = run_both_ways(jobs, "batches_only")
    assert_unharmed(without, ran)
    assert ran.ranks()[0]["steps_from"] == "batches"
    assert ran.ranks()[0]["steps"] > 100


def test_inference_steps_are_forward_passes_of_the_whole_model(jobs: Jobs) -> None:
    ran = jobs.watched(JOB, "forward_passes", optimizer_within_s=0.5)
    assert ran.code == 0, ran.stderr
    told = json.loads((ran.folder / "rank0.run.json").read_text())
    assert told["steps_from"] == "forward passes"
    assert told["steps"] == 92  # the passes before it was clear that there is no optimizer were none
    assert told["not_recorded"] == {}


def test_inference_that_is_over_soon_has_steps(jobs: Jobs) -> None:
    """No optimizer was made when the model was complete: nobody waits for its first step."""
    without, ran = run_both_ways(jobs, "short_inference")
    assert_unharmed(without, ran)
    assert ran.ranks()[0]["steps_from"] == "forward passes"
    assert ran.ranks()[0]["steps"] >= 5  # a busy machine does few


def test_requests_to_a_traced_model_are_steps(jobs: Jobs) -> None:
    without, ran = run_both_ways(jobs, "traced_service")
    assert_unharmed(without, ran)
    assert ran.ranks()[0]["steps_from"] == "forward passes"
    assert ran.ranks()[0]["steps"] >= 20


@pytest.mark.parametrize("waits", ["join", "result", "select"])
def test_a_service_on_a_thread_has_steps_while_the_main_thread_waits(jobs: Jobs, waits: str) -> None:
    without, ran = run_both_ways(jobs, "service_on_a_thread", waits)
    assert_unharmed(without, ran)
    [rank] = ran.ranks()
    assert rank["steps_from"] == "forward passes"
    assert rank["steps"] >= 20
    assert rank["traces"]


def test_steps_of_a_job_that_updates_its_weights_itself_are_backward_passes(jobs: Jobs) -> None:
    without, ran = run_both_ways(jobs, "by_hand")
    assert_unharmed(without, ran)
    assert ran.ranks()[0]["steps_from"] == "backward passes"
    assert ran.ranks()[0]["steps"] == 17  # with the eighth it was clear that there is no optimizer


def test_a_moment_of_a_loop_of_tensors_is_recorded_with_its_lines(jobs: Jobs) -> None:
    without, ran = run_both_ways(jobs, "tensors_alone")
    assert_unharmed(without, ran)
    (rank,) = ran.ranks()
    assert rank["steps_from"] is None
    assert any("recorded by the clock" in note for note in rank["notes"])
    most = max(rank["in_windows"], key=lambda place: len(place["at_unix_ns"]))
    assert most["text"] == "held = (held @ held).tanh()  # the line"


def test_an_optimizer_that_is_made_late_says_which_module_is_trained(jobs: Jobs) -> None:
    without, ran = run_both_ways(jobs, "late_optimizer")
    assert_unharmed(without, ran)
    assert ran.ranks()[0]["steps_from"] == "optimizer"
    steps = ran.steps()[-8:]
    assert all(step["forward_us"] > 0 for step in steps)


def test_a_copied_model_is_known(jobs: Jobs) -> None:
    without, ran = run_both_ways(jobs, "copied_model")
    assert_unharmed(without, ran)
    assert sum(step["forward_us"] for step in ran.steps()) > 0


def test_a_scripted_model_stays_whole(jobs: Jobs) -> None:
    without, ran = run_both_ways(jobs, "scripted_model")
    assert_unharmed(without, ran)
    assert ran.ranks()[0]["steps"] == 16


def test_a_watched_model_is_saved_copied_and_exported_as_it_is(jobs: Jobs) -> None:
    without, ran = run_both_ways(jobs, "exported_model")
    assert_unharmed(without, ran)
    assert ran.ranks()[0]["steps"] == 16
    # What was saved is loaded where there is no whystall.
    load = "import sys, torch; sys.modules['whystall'] = None; m = torch.load('model.pt', weights_only=False)"
    loaded = jobs.command(sys.executable, "-c", f"{load}; print(m(torch.ones(1, 8)).shape)")
    assert (loaded.code, loaded.stdout) == (0, "torch.Size([1, 1])\n"), loaded.stderr


def test_a_watched_model_lives_no_longer(jobs: Jobs) -> None:
    without, ran = run_both_ways(jobs, "model_that_is_let_go")
    assert_unharmed(without, ran)
    assert "gone True" in ran.stdout


@pytest.mark.parametrize("how", ["compiled_whole_step", "compiled_constructor"])
def test_compiled_functions_around_modules_stay_whole(jobs: Jobs, how: str) -> None:
    without, ran = run_both_ways(jobs, how)
    assert_unharmed(without, ran)


def test_a_model_made_before_the_watch_is_known_by_its_call(jobs: Jobs) -> None:
    (jobs.home / "job.py").write_text(MADE_BEFORE)
    ran = jobs.command(sys.executable, "job.py")
    assert ran.code == 0, ran.stderr
    assert sum(step["forward_us"] > 0 for step in ran.steps()) >= 8


def test_torch_may_be_looked_for_before_it_is_imported(jobs: Jobs) -> None:
    (jobs.home / "job.py").write_text(LOOKS_FIRST)
    ran = jobs.whystall("job.py")
    assert ran.code == 0, ran.stderr
    assert [rank["steps"] for rank in ran.ranks()] == [12]


def test_threads_beside_the_training(jobs: Jobs) -> None:
    without, ran = run_both_ways(jobs, "threads")
    assert_unharmed(without, ran)
    assert ran.ranks()[0]["steps"] == 40


def test_spawned_processes_are_ranks_of_their_own(jobs: Jobs) -> None:
    _, ran = run_both_ways(jobs, "spawned")
    assert ran.code == 0
    assert [rank["steps"] for rank in ran.ranks()] == [16, 16]


def test_forked_processes_that_join_each_other_are_ranks(jobs: Jobs) -> None:
    """Forked loader workers are none; these are known by the group that they make."""
    without, ran = run_both_ways(jobs, "forked")
    assert (without.code, ran.code) == (0, 0)
    assert [(rank["rank"], rank["steps"]) for rank in ran.ranks()] == [(0, 16), (1, 16)]
    assert all(rank["not_recorded"] == {} for rank in ran.ranks())


def test_exit_in_atexit(jobs: Jobs) -> None:
    without, ran = run_both_ways(jobs, "exit_in_atexit")
    assert_unharmed(without, ran)
    assert ran.ranks()[0]["steps"] == 16


def test_own_profiler_keeps_working(jobs: Jobs) -> None:
    without, ran = run_both_ways(jobs, "own_profiler")
    assert_unharmed(without, ran)
    assert "events True" in ran.stdout
    assert any("profiling itself" in note or "profiler of its own" in note for note in ran.ranks()[0]["notes"])


def test_forward_backward_and_optimizer_are_told_apart(jobs: Jobs) -> None:
    ran = jobs.whystall(JOB, "plain")
    steps = ran.steps()
    for part in ("forward_us", "backward_us", "optimizer_us"):
        assert sum(step[part] for step in steps) > 0
    for step in steps:
        assert step["forward_us"] + step["backward_us"] + step["optimizer_us"] <= step["duration_us"] + 1


def test_ten_thousand_steps_stay_small(jobs: Jobs) -> None:
    ran = jobs.whystall(JOB, "long_run")
    assert ran.ranks()[0]["steps"] == 10_000
    size = (ran.folder / "rank0.samples.jsonl").stat().st_size
    assert size < 200 * 10_000
    early, late = (int(line.split()[1]) for line in ran.stdout.splitlines() if line.startswith("pages"))
    assert (late - early) * 4096 < 8 << 20
    report = whystall.analyze(ran.folder, cache=False)
    assert report.run[0].all_steps == 9_999


def test_a_service_that_makes_its_model_for_each_request_is_recorded_and_told(jobs: Jobs) -> None:
    (jobs.home / "service.py").write_text(MADE_FOR_EACH)
    ran = jobs.whystall("service.py")
    assert ran.code == 0, ran.stderr
    (rank,) = ran.ranks()
    assert 50 < rank["steps"] <= int(ran.stdout)
    assert rank["steps_from"] == "forward passes"
    report = whystall.analyze(ran.folder, cache=False)
    assert report.verdict.cause == "host.model-rebuilt"
    assert report.findings[0].code[0].line == 6


@pytest.mark.parametrize("more", [0, 40])
def test_a_job_whose_steps_come_no_more_is_recorded_by_the_clock(jobs: Jobs, more: int) -> None:
    without, ran = run_both_ways(jobs, "silent_steps", str(more))
    assert_unharmed(without, ran)
    (rank,) = ran.ranks()
    assert rank["steps"] == 4 + more
    assert any(
        "first 4 no further step was seen (steps were recognised by optimizer" in note for note in rank["notes"]
    ) is not bool(more)
    assert len(rank["traces"]) == 1  # of the loop, or of the steps that came after all
    if not more:
        most = max(rank["in_windows"], key=lambda place: len(place["at_unix_ns"]))
        assert most["text"] == "held = (held @ held).tanh()  # the line"
