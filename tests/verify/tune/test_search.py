"""The search against jobs whose truth is written down: a step's time as a function of its settings, and noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from whystall.verify.tune.candidates import Knob
from whystall.verify.tune.results import Outcome, Seen, Settings, Tuning
from whystall.verify.tune.search import NotMeasurableError, search

LOADER = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "iterable": False}
OPTIMIZER = {"class": "AdamW", "can": ["fused", "foreach"], "fused": None, "foreach": False}


@dataclass
class Job:
    """A job on four cores: milliseconds of input, of compute on one thread, of the optimizer."""

    input_ms: float = 0.0
    compute_ms: float = 40.0
    optimizer_ms: float = 1.0
    workers: int = 0
    threads: int = 4
    noise: float = 0.02
    seed: int = 0
    fails: dict[str, str] = field(default_factory=dict)
    loss_of: Callable[[Settings], float] = lambda _settings: 1.0
    runs: list[Settings] = field(default_factory=list)

    def parts(self, settings: Settings) -> dict[str, float]:
        """The truth."""
        threads = int(settings.get("threads", self.threads))
        workers = int(settings.get("num_workers", self.workers))
        compute = self.compute_ms / min(threads, 4) * (1 + 0.1 * max(threads - 4, 0))
        optimizer = self.optimizer_ms * {"fused": 0.2, "foreach": 0.5}.get(str(settings.get("optimizer")), 1.0)
        wait = self.input_ms if not workers else max(self.input_ms / workers - compute - optimizer, 0.0)
        return {"input": wait, "compute": compute, "optimizer": optimizer}

    def step_ms(self, settings: Settings) -> float:
        return sum(self.parts(settings).values())

    def __call__(self, settings: Settings) -> Outcome:
        self.runs.append(dict(settings))
        for name, because in self.fails.items():
            if name in settings:
                return Outcome(step_s=None, failed_because=because)
        parts, whole = self.parts(settings), self.step_ms(settings)
        generator = np.random.default_rng([self.seed, len(self.runs)])
        step_s = whole / 1e3 * math.exp(generator.normal(0, self.noise))
        loader = LOADER | {"num_workers": self.workers}
        seen = Seen(
            shares={"input": parts["input"] / whole, "optimizer": parts["optimizer"] / whole},
            worker_cpu_share=0.1,
            loaders=[loader],
            optimizers=[OPTIMIZER],
            threads=self.threads,
            cores=4,
        )
        return Outcome(step_s=step_s, losses=[2.0, self.loss_of(settings)], seen=seen)


def tuned(job: Job, most_trials: int = 14) -> Tuning:
    return search(job, most_trials=most_trials)


BADLY_SET = {
    "loader": Job(input_ms=60.0),
    "threads": Job(threads=1),
    "optimizer": Job(optimizer_ms=30.0),
    "all": Job(input_ms=60.0, threads=1, optimizer_ms=30.0),
}
BEST: Settings = {"num_workers": 16, "threads": 4, "optimizer": "fused"}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", sorted(BADLY_SET))
def test_what_is_set_badly_is_found(name: str, seed: int) -> None:
    given = BADLY_SET[name]
    job = Job(given.input_ms, given.compute_ms, given.optimizer_ms, threads=given.threads, seed=seed)

    found = tuned(job)

    before, best = job.step_ms({}), job.step_ms(BEST)
    assert (before - job.step_ms(found.settings)) / (before - best) >= 0.9
    assert len(found.trials) < 15
    assert found.confirmed is not None
    assert found.confirmed.verdict == "faster"


def test_after_the_best_kernels_no_other_ones_are_tried() -> None:
    found = tuned(Job(optimizer_ms=30.0))
    assert [trial.value for trial in found.trials if trial.name == "optimizer"] == ["fused"]


def test_nothing_is_gained_where_nothing_is_wrong() -> None:
    winners = [
        tuned(Job(optimizer_ms=0.1, seed=seed, noise=noise)).settings for seed in range(20) for noise in (0.01, 0.08)
    ]
    assert [one for one in winners if one] == []


def test_a_gain_inside_the_noise_names_no_winner() -> None:
    # The optimizer is worth 4 %, and runs differ by 15 %.
    winners = [tuned(Job(optimizer_ms=0.6, seed=seed, noise=0.15)).settings for seed in range(10)]
    assert winners.count({}) >= 9


def test_what_nobody_waits_for_is_not_tried() -> None:
    job = Job()
    found = tuned(job)
    assert all("num_workers" not in settings for settings in job.runs)
    assert {one.name: one.because for one in found.left_out}["num_workers"] == "nothing waits for it: 0.0% of the steps"


def test_a_setting_that_fails_is_a_result_and_the_next_is_tried() -> None:
    job = Job(input_ms=60.0, optimizer_ms=30.0, fails={"num_workers": "out of memory, ended by signal 9"})
    found = tuned(job)
    failed = [trial for trial in found.trials if trial.verdict == "failed"]
    assert failed
    assert failed[0].because == "out of memory, ended by signal 9"
    assert found.settings == {"optimizer": "fused"}


def test_a_faster_setting_with_other_losses_is_refused() -> None:
    job = Job(optimizer_ms=30.0, loss_of=lambda settings: 1.5 if settings.get("optimizer") == "fused" else 1.0)
    found = tuned(job)
    assert ("fused", "losses differ") in [(trial.value, trial.verdict) for trial in found.trials]
    assert found.settings == {"optimizer": "foreach"}


def test_a_batch_counts_by_the_work_that_it_does() -> None:
    class Batches(Job):
        def step_ms(self, settings: Settings) -> float:
            return 10.0 + float(settings.get("--batch", 8))  # 18 ms for 8 samples, 42 for 32

    found = search(Batches(), knob=Knob("--batch", ("8", "16", "32"), "8"))
    assert found.settings.get("--batch") == "32"
    assert found.confirmed is not None
    assert found.confirmed.speedup == pytest.approx((18 / 8) / (42 / 32), rel=0.05)


def test_a_command_that_does_not_run_is_said() -> None:
    def broken(_settings: Settings) -> Outcome:
        return Outcome(step_s=None, failed_because="exit code 1: KeyError: 'data'")

    with pytest.raises(NotMeasurableError, match="KeyError"):
        search(broken)


def test_trials_and_pairs_have_an_end() -> None:
    job = Job(input_ms=60.0, threads=1, optimizer_ms=30.0)
    found = tuned(job, most_trials=1)
    assert len(found.trials) == 1
    assert found.ended_because == "1 trials were made"
    assert all(len(trial.after_s) <= 6 for trial in found.trials)
