"""Joins the loop of ``whystall fix`` to the analysis, for the command line and for agents."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from whystall._api import analyze
from whystall._inputs import known_rules
from whystall.analysis.whole_job import WholeJob
from whystall.diagnosis.causes import Statistic
from whystall.errors import UsageError
from whystall.remedies.chain import Chain
from whystall.remedies.copies import program_of, workplace
from whystall.remedies.results import Attempt, Fixes
from whystall.remedies.runs import Diagnosed, Runs
from whystall.remedies.store import Store, patched
from whystall.run_folder.contents import read_run_folder
from whystall.run_folder.layout import RUNS


def statistic_of(cause: str) -> Statistic:
    """The statistic of the steps that shows a cause."""
    rule = known_rules().get(cause)
    return "mean" if rule is None else rule.cause.statistic


def diagnose(folder: Path) -> Diagnosed:
    """The findings in a run folder, and the machine that it ran on."""
    report = analyze(folder, cache=False)
    ranks = read_run_folder(folder).ranks
    cores = max((int((rank.get("facts") or {}).get("cores_allowed") or 1) for rank in ranks), default=1)
    on_device = any(device.kind != "cpu" for device in report.devices)
    return Diagnosed(report.findings, cores, on_device, _in_steps(report.job))


def _in_steps(job: WholeJob | None) -> float:
    """The share of a job's time, without its start, that its steps take."""
    spent = (
        {phase: sum(part.ns for part in job.parts if part.phase == phase) for phase in ("steps", "end")} if job else {}
    )
    whole = sum(spent.values())
    return spent["steps"] / whole if whole else 1.0


class Judge:
    """Judges changes of one program for somebody who may not name another command."""

    def __init__(self, command: str) -> None:
        """Takes the command as one types it, to be run in the working folder. Raises `UsageError` for none."""
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"the command cannot be read: {error}") from None
        if not words:
            raise UsageError("the command is empty")
        self._command = (sys.executable, *words[1:]) if words[0] in ("python", "python3") else tuple(words)
        self._folder = Path.cwd()
        self._store = Store(self._folder / RUNS / "agent-fix")

    def attempts(self) -> list[Attempt]:
        """All that was judged so far."""
        return self._store.attempts()

    def __call__(self, patch: bytes) -> Fixes:
        """Keeps or rejects a change. Raises `InputError` where it does not apply, `UsageError` while another runs."""
        place = workplace(self._folder)
        program = program_of(place, self._command)
        changed = patched(place, program, patch, "the patch")
        with self._store.held(), Runs(place, diagnose) as runs:
            chain = Chain(runs, statistic_of, keep=self._store.keep)
            return chain.judge(program, changed, "patch")
