"""Runs a state of the program in a copy: recorded and diagnosed, for some steps, or to its end."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from whystall.capture.config import CaptureConfig, Schedule, TrialSetup
from whystall.diagnosis.causes import Statistic
from whystall.diagnosis.finding import Finding
from whystall.errors import InputError, UsageError
from whystall.remedies.copies import Workplace, import_path, moved
from whystall.remedies.program import Program
from whystall.run_folder.layout import rank_files
from whystall.trace.samples import read_samples
from whystall.verify.measure import Variant, run_command, run_recorded
from whystall.verify.tune.measurer import outcome_of
from whystall.verify.tune.results import Outcome

LONGEST_S: Final = 20.0
"""A run for some steps ends after this time, once there are a dozen."""
_ALL_STEPS: Final = 1 << 30
_FOR_EVER_S: Final = 1e9
_PATIENCE: Final = 5.0


class Diagnosed(NamedTuple):
    """The content of a recording: its findings, the first ones first, and the machine that it ran on."""

    findings: Sequence[Finding]
    cores: int
    on_device: bool
    in_steps: float = 1.0
    """The share of steps in the time from the first step to the end of the job; 1 where it is not known."""


class Whole(NamedTuple):
    """A run to its end; without ``diagnosed`` where nothing was recorded."""

    exit_code: int
    seconds: float
    output: str
    diagnosed: Diagnosed | None
    steps: int = 0
    left: Mapping[str, int] = MappingProxyType({})
    """The files that it left in its folders, counted by their endings."""


Diagnose = Callable[[Path], Diagnosed]
"""Diagnoses a run folder, by the public API, which the caller passes in. Raises `InputError` for an empty one."""


class ChangedError(UsageError):
    """A run has changed a file of the user's."""


@dataclass
class Runs:
    """Runs states of one program. Use as a context: the copies are removed at its end."""

    place: Workplace
    diagnose: Diagnose
    steps: int = 60
    side_effects: bool = False
    timeout_s: float | None = None
    _copies: Path = field(init=False)
    _imported: dict[str, list[str]] = field(default_factory=dict)
    _longest_s: float = 0.0

    def __enter__(self) -> Self:
        self._copies = Path(tempfile.mkdtemp(prefix="whystall-fix-"))
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._copies, ignore_errors=True)

    def whole(self, program: Program, *, record: bool) -> Whole:
        """Runs it to its end, with or without a recording."""
        folder = Path(tempfile.mkdtemp(dir=self._copies))
        began = time.monotonic()
        code, output = self._run(program, folder, None if record else Schedule(repeat=0))
        seconds = time.monotonic() - began
        try:
            diagnosed = self.diagnose(folder) if record and code == 0 else None
        except InputError:
            diagnosed = None
        steps = max((len(read_samples(path).steps) for path in rank_files(folder, "samples")), default=0)
        return Whole(code, seconds, output, diagnosed, steps, self.place.left(self._copies / "program"))

    def some_steps(self, program: Program, statistic: Statistic, *, whole: bool = False) -> Outcome:
        """Runs it for some steps, or ``whole``: their time, and the loss of each."""
        folder = Path(tempfile.mkdtemp(dir=self._copies))
        steps = self.steps if statistic == "median" else 2 * self.steps
        trial = TrialSetup(
            settings={}, steps=_ALL_STEPS if whole else steps, longest_s=_FOR_EVER_S if whole else LONGEST_S
        )
        try:
            code, output = self._run(program, folder, Schedule(repeat=0), trial)
            return outcome_of(folder, code, output, loss=None, statistic=statistic)
        except ChangedError:
            raise
        except UsageError as error:  # it names the command, whose arguments may be secret
            return Outcome(step_s=None, failed_because=str(error).rpartition(": ")[2])

    def _run(
        self, program: Program, run: Path, schedule: Schedule | None, trial: TrialSetup | None = None
    ) -> tuple[int, str]:
        """Runs it in a new copy; without a schedule with a recording, so that ``run`` is a run folder."""
        copy = self._copies / "program"
        folder = self.place.make(copy, program.files)
        command = moved(program.command, self.place.root, copy)
        paths = [str(copy / one) for one in self._imports(command[0])]
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        paths += [moved(("", one), self.place.root, copy)[1] for one in given if one]
        variant = Variant(command, (("PYTHONPATH", os.pathsep.join(paths)),) if paths else (), str(folder))
        began = time.monotonic()
        patience = _PATIENCE * self._longest_s + 60 if self._longest_s else None
        timeout_s = self.timeout_s or patience
        if schedule is None:
            ended = run_recorded(variant, run, timeout_s)
        else:
            ended = run_command(variant, CaptureConfig(folder=str(run), schedule=schedule, trial=trial), timeout_s)
        self._longest_s = max(self._longest_s, time.monotonic() - began)
        touched = self.place.touched()
        if touched is not None and not self.side_effects:
            raise ChangedError(
                f"the job has written to {self.place.root / touched}, which the copy only links to: nothing more is "
                "run (--allow side-effects goes on)"
            )
        return ended

    def _imports(self, python: str) -> list[str]:
        if python not in self._imported:
            is_python = Path(python).name.startswith("python")
            self._imported[python] = import_path(python if is_python else sys.executable, self.place.root)
        return self._imported[python]
