"""Runs a command again for some steps with one thing changed at a time, and reports the effect of each change."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np

from whystall.capture.config import CaptureConfig, ExperimentName, ExperimentSetup, Schedule
from whystall.diagnosis.experiment import Experiment, failure, needed, outcome
from whystall.diagnosis.finding import Finding
from whystall.errors import InputError, UsageError
from whystall.run_folder.contents import read_run_folder
from whystall.trace.samples import read_samples
from whystall.verify.measure import Variant, run_command

# The first steps compile, load and warm up, and an experiment's change takes effect in them.
_UNSTEADY_STEPS: Final = 5
_FEWEST_STEPS: Final = 5
_LONGEST_RUN_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class _Measured:
    """The mean steady step of one run, its own description of the change, or why there is neither."""

    step_ns: int | None
    change: str | None
    because: str | None


def run_experiments(
    command: Sequence[str],
    findings: Sequence[Finding],
    *,
    names: Sequence[ExperimentName] | None = None,
    steps: int = 40,
    progress: Callable[[str], None] = lambda _text: None,
) -> list[Experiment]:
    """The outcomes of the experiments that findings call for, or of those named.

    One that fails stops none of the others.
    """
    chosen = [name for name in get_args(ExperimentName) if name in (needed(findings) if names is None else names)]
    if not chosen:
        return []
    first = _measure(command, "nothing", steps)
    if first.step_ns is None:
        return [failure(name, f"the run without a change failed: {first.because}") for name in chosen]
    progress(f"experiment: nothing changed, a step takes {first.step_ns / 1e6:.4g} ms")
    measured: dict[ExperimentName, _Measured] = {}
    for name in chosen:
        measured[name] = one = _measure(command, name, steps)
        told = one.because if one.step_ns is None else f"{one.change}, a step takes {one.step_ns / 1e6:.4g} ms"
        progress(f"experiment {name}: {told}")
    last = _measure(command, "nothing", steps)  # the noise between two equal runs, with all others between them
    bases = [first.step_ns, *([last.step_ns] if last.step_ns is not None else [])]
    return [
        outcome(name, one.step_ns, bases, one.change, findings)
        if one.step_ns is not None
        else failure(name, one.because or "unknown")
        for name, one in measured.items()
    ]


def _measure(command: Sequence[str], name: ExperimentName, steps: int) -> _Measured:
    folder = Path(tempfile.mkdtemp(prefix="whystall-experiment-"))
    config = CaptureConfig(
        folder=str(folder), schedule=Schedule(repeat=0), experiment=ExperimentSetup(name=name, steps=steps)
    )
    try:
        code, _ = run_command(Variant(tuple(command)), config, _LONGEST_RUN_S)
        return _read(folder, name, code)
    except (UsageError, InputError, OSError) as error:
        return _Measured(None, None, str(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read(folder: Path, name: ExperimentName, code: int) -> _Measured:
    if code != 0:
        return _Measured(None, None, f"the command ended with exit code {code}")
    run = read_run_folder(folder)
    broken = next((rank["not_recorded"]["experiment"] for rank in run.ranks if _failed(rank)), None)
    if broken is not None:
        return _Measured(None, None, str(broken))
    durations = max((_steady_ns(path) for path in run.samples), key=len, default=[])
    if len(durations) < _FEWEST_STEPS:
        return _Measured(None, None, f"only {len(durations)} steady steps were seen, {_FEWEST_STEPS} are needed")
    change = next((str(rank["experiment"]) for rank in run.ranks if rank.get("experiment")), None)
    if change is None and name != "nothing":
        return _Measured(None, None, _UNCHANGED[name])
    return _Measured(int(np.mean(durations)), change, None)


_UNCHANGED: Final = {
    "input": "no DataLoader handed out batches",
    "gc": "garbage collection was off already",
    "logging": "logging could not be silenced",
    "threads": "there is no other number of threads to try",
}


def _failed(rank: dict[str, Any]) -> bool:
    return "experiment" in (rank.get("not_recorded") or {})


def _steady_ns(path: Path) -> list[int]:
    return [us * 1000 for us in read_samples(path).steps["duration_us"].drop_nulls().to_list()[_UNSTEADY_STEPS:]]
