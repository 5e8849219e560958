"""How often identical code is called different: the A/A rate of ``whystall compare`` and ``whystall verify``.

    python benchmarks/same_twice.py                       # simulated runs, a quarter of an hour
    python benchmarks/same_twice.py --pairs 0 --jobs 40   # 40 pairs of real short runs on this machine, seven minutes

A simulated run is a series of step times with what real ones show: neighbours that are alike, a drift, stalls with
heavy tails, a neighbour on the machine that comes and goes, and an offset of the whole run. Both sides of a pair are
drawn from the same; every one that is called faster or slower is an error, and 5 % of them may be.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.paired import paired
from whystall.analysis.run_results import Environment, RunSummary
from whystall.analysis.run_summary import run_summary
from whystall.analysis.whole_job import WholeJob
from whystall.capture.config import CaptureConfig, Schedule
from whystall.cli.thresholds import parse
from whystall.diagnosis.comparison import Comparison, compare_reports
from whystall.run_folder.layout import samples_name
from whystall.trace.samples import RunSamples, read_samples
from whystall.verify.measure import Variant, run_command

STEPS: Final = 200
PAIRS_OF_VERIFY: Final = 8
Sides = tuple[Sequence[float], Sequence[float]]
Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]


def white(generator: np.random.Generator, steps: int) -> NDArray[np.float64]:
    """Steps that differ by 3 % and know nothing of each other."""
    return generator.lognormal(0, 0.03, steps)


def alike(generator: np.random.Generator, steps: int) -> NDArray[np.float64]:
    """Steps like the ones before: an autoregression of 0.97, which forgets in some thirty steps."""
    found = np.empty(steps)
    found[0] = generator.normal(0, 0.04)
    for at in range(1, steps):
        found[at] = 0.97 * found[at - 1] + generator.normal(0, 0.04 * (1 - 0.97**2) ** 0.5)
    return np.exp(found + generator.normal(0, 0.02, steps))


def drifting(generator: np.random.Generator, steps: int) -> NDArray[np.float64]:
    """Steps that become longer or shorter over the run, by some 5 %, and wander."""
    slope = generator.normal(0, 0.05) * np.linspace(-0.5, 0.5, steps)
    wander = np.cumsum(generator.normal(0, 0.03 / steps**0.5, steps))
    return np.exp(slope + wander + generator.normal(0, 0.02, steps))


def stalling(generator: np.random.Generator, steps: int) -> NDArray[np.float64]:
    """One step in forty stalls, by a Pareto of index 1.5: half a step, and now and then many."""
    stalls = (generator.random(steps) < 0.025) * 0.5 * (1 + generator.pareto(1.5, steps))
    return generator.lognormal(0, 0.02, steps) + np.minimum(stalls, 50.0)


def visited(generator: np.random.Generator, steps: int) -> NDArray[np.float64]:
    """A neighbour on the machine comes and goes, for some thirty steps each time, and costs a fifth."""
    changes = np.cumsum(generator.random(steps) < 1 / 30) + generator.integers(2)
    return generator.lognormal(0, 0.02, steps) * np.where(changes % 2, 1.2, 1.0)


def offset(generator: np.random.Generator, steps: int) -> NDArray[np.float64]:
    """Runs that differ as wholes, by 3 %: where memory lies, which cores they got."""
    return generator.lognormal(0, 0.02, steps) * float(generator.lognormal(0, 0.03))


def everything(generator: np.random.Generator, steps: int) -> NDArray[np.float64]:
    """All of these at once."""
    draws = (alike, drifting, stalling, visited, offset)
    found: NDArray[np.float64] = np.prod([draw(generator, steps) for draw in draws], axis=0)
    return found


MODELS: Final[tuple[Draw, ...]] = (white, alike, drifting, stalling, visited, offset, everything)


@dataclass(frozen=True)
class OneRank:
    """A job of one rank."""

    world_size: int | None = 1


@dataclass(frozen=True)
class Simulated:
    """A report of a run that has steps alone."""

    run: Sequence[RunSummary]
    devices: Sequence[Any] = field(default_factory=list)
    operators: Sequence[Any] = field(default_factory=list)
    kernels: Sequence[Any] = field(default_factory=list)
    modules: Sequence[Any] = field(default_factory=list)
    findings: Sequence[Any] = field(default_factory=list)
    abstained: Sequence[Any] = field(default_factory=list)
    counts: Sequence[Any] = field(default_factory=list)
    given: Sequence[Any] = field(default_factory=list)
    environment: Environment | None = None
    samples_per_step: int | None = None
    job: WholeJob | None = None
    source: OneRank = field(default_factory=OneRank)


def summary_of(steps: NDArray[np.float64]) -> RunSummary:
    """The account of a run with these steps, in units of 100 ms."""
    rows = {
        "step": range(1, len(steps) + 1),
        "duration_us": np.round(steps * 1e5).astype(np.int64),
        "flags": [0] * len(steps),
    }
    frame = pl.DataFrame(rows, schema=dict.fromkeys(rows, pl.Int64))
    found = run_summary(RunSamples("simulated", 0, 0, frame, pl.DataFrame({"at_unix_ns": []}), 0))
    if found is None:
        raise ValueError("a simulated run has no steps")
    return found


@dataclass
class Rates:
    """How often pairs of the same were called different."""

    pairs: int = 0
    compared: int = 0
    by_mean: int = 0
    failed_on: int = 0
    proofs: int = 0
    proven: int = 0
    proven_by_mean: int = 0

    def add(self, found: Comparison) -> None:
        """Counts a comparison."""
        self.pairs += 1
        self.compared += found.significant
        self.by_mean += found.mean is not None and not found.mean.low <= 1 <= found.mean.high
        self.failed_on += parse("step>+3%").crossed(found)

    def add_proof(self, medians: Sides, means: Sides) -> None:
        """Counts a proof from pairs of runs, by the median and by the mean."""
        self.proofs += 1
        results = [paired(*times) for times in (medians, means)]
        self.proven += results[0].improved or results[0].worsened
        self.proven_by_mean += results[1].improved or results[1].worsened


def _median(run: RunSummary) -> float:
    return float(run.median_ns)


def _mean(run: RunSummary) -> float:
    return run.mean_ns


def simulated_rates(draw: Draw, pairs: int, seed: int = 0) -> Rates:
    """The rates of one kind of run: each pair compared, and a proof of eight pairs for each."""
    generator = np.random.default_rng([seed, MODELS.index(draw)])
    rates = Rates()
    for _ in range(pairs):
        base, candidate = (Simulated([summary_of(draw(generator, STEPS))]) for _ in range(2))
        rates.add(compare_reports(base, candidate, ("base", "candidate")))
        runs = [[draw(generator, STEPS) for _ in range(PAIRS_OF_VERIFY)] for _ in range(2)]
        medians, means = ([[float(of(run)) for run in side] for side in runs] for of in (np.median, np.mean))
        rates.add_proof((medians[0], medians[1]), (means[0], means[1]))
    return rates


def caught(draw: Draw, slower: float, repeats: int, seed: int = 0) -> float:
    """How often eight pairs of runs fail ``step>+0%`` where the candidate's steps are so many times as long."""
    generator = np.random.default_rng([seed, MODELS.index(draw), 1])
    found = 0
    for _ in range(repeats):
        pairs = [
            tuple(Simulated([summary_of(draw(generator, STEPS) * length)]) for length in (1.0, slower))
            for _ in range(PAIRS_OF_VERIFY)
        ]
        (base, candidate), *again = [(one, other) for one, other in pairs]
        found += parse("step>+0%").crossed(compare_reports(base, candidate, ("base", "candidate"), again))
    return found / repeats


JOB: Final = """
import sys, torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batch = torch.randn(256, 256)
for step in range(int(sys.argv[1])):
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def real_runs(count: int, steps: int) -> list[RunSummary]:
    """The accounts of so many watched runs of one job, one after another."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(JOB)
        for number in range(count):
            run = folder / f"run{number}"
            config = CaptureConfig(folder=str(run), schedule=Schedule(repeat=0))
            code, output = run_command(Variant((sys.executable, str(folder / "train.py"), str(steps))), config, None)
            summary = run_summary(read_samples(run / samples_name(0))) if code == 0 else None
            if summary is None:
                raise RuntimeError(f"a run ended with {code}: {output}")
            found.append(summary)
            print(
                f"  run {number + 1}: median {found[-1].median_ns / 1e6:.3f} ms, mean {found[-1].mean_ns / 1e6:.3f} ms",
                flush=True,
            )
    return found


def real_rates(runs: Sequence[RunSummary]) -> Rates:
    """The rates of runs of one job: neighbours are pairs, and eight pairs in a row a proof."""
    rates = Rates()
    pairs = list(zip(runs[::2], runs[1::2], strict=True))
    for base, candidate in pairs:
        rates.add(compare_reports(Simulated([base]), Simulated([candidate]), ("base", "candidate")))
    for first in range(0, len(pairs) - PAIRS_OF_VERIFY + 1, PAIRS_OF_VERIFY):
        block = pairs[first : first + PAIRS_OF_VERIFY]
        medians, means = ([[of(pair[side]) for pair in block] for side in (0, 1)] for of in (_median, _mean))
        rates.add_proof((medians[0], medians[1]), (means[0], means[1]))
    return rates


def run_to_run(runs: Sequence[RunSummary]) -> str:
    """By what share runs of the same differ, at one standard deviation."""
    spreads = [float(np.std(np.log([value(run) for run in runs]), ddof=1)) for value in (_median, _mean)]
    return f"run to run the median step differs by {spreads[0]:.1%}, the mean by {spreads[1]:.1%} (standard deviation)"


def row(name: str, rates: Rates) -> str:
    """One line of the table."""

    def share(count: int, of: int) -> str:
        return f"{count / of:8.1%}" if of else "       -"

    cells = [share(count, rates.pairs) for count in (rates.compared, rates.by_mean, rates.failed_on)]
    cells += [share(count, rates.proofs) for count in (rates.proven, rates.proven_by_mean)]
    return f"{name:<12}{rates.pairs:>6}  {'  '.join(cells)}"


def main() -> None:
    """Prints the rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200, help="simulated pairs of each kind (200; 0: none)")
    parser.add_argument("--jobs", type=int, default=0, help="pairs of real runs (none)")
    parser.add_argument("--steps", type=int, default=400, help="steps of a real run (400)")
    options = parser.parse_args()
    print("Called different, of pairs of the same:")
    print("runs         pairs  compare   by mean  fail-on   verify   by mean")
    models = MODELS if options.pairs else ()
    for draw in models:
        print(row(draw.__name__, simulated_rates(draw, options.pairs)), flush=True)
    if models:
        print("\nEight pairs fail step>+0%, of candidates as fast, and 3 % slower:")
    for draw in models:
        rates = [caught(draw, slower, options.pairs) for slower in (1.0, 1.03)]
        print(f"{draw.__name__:<12}" + "".join(f"{rate:8.1%}" for rate in rates), flush=True)
    if options.jobs:
        runs = real_runs(2 * options.jobs, options.steps)
        print(row("real jobs", real_rates(runs)))
        print(run_to_run(runs))


if __name__ == "__main__":
    main()
