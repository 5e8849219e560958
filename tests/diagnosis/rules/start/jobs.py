"""Watched jobs with lines that take long outside of steps."""

from __future__ import annotations

from collections.abc import Sequence

from tests.diagnosis.cases import case_of, run
from tests.diagnosis.rules.host.test_few_threads import steps

from whystall.analysis.whole_job import RankStart, WholeJob
from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.finding import Finding
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.run_facts import RunFacts
from whystall.run_folder.job_times import JobPlace
from whystall.vocabulary.job_work import IMPORTS as IMPORT

S = 1_000_000_000
IMPORTS = JobPlace("train.py", 3, "<module>", "from heavy import Thing", "heavy:made", 4 * S, IMPORT)
HIDDEN = JobPlace("train.py", 9, "<module>", "optimizer = torch.optim.AdamW(parameters)", "torch:made", 4 * S, IMPORT)
PREPARES = JobPlace("train.py", 20, "indexed", "index[word] = at", "train:indexed", 4 * S)


def found(
    *before: JobPlace,
    within: tuple[JobPlace, ...] = (),
    after: tuple[JobPlace, ...] = (),
    wall_s: int = 20,
    used: Sequence[str] = (),
    others: Sequence[RankStart] = (),
    loaders: Sequence[dict[str, int | bool | None]] = (),
) -> dict[str, Finding]:
    """The causes outside of steps that are named for a job with these lines."""
    job = WholeJob(
        rank=0,
        wall_ns=wall_s * S,
        parts=[],
        first_step_ns=9 * S,
        before_steps=list(before),
        within_steps=list(within),
        after_steps=list(after),
        used=list(used),
        others=list(others),
    )
    told = diagnose(case_of(steps(), facts=RunFacts(job=job, loaders=tuple(loaders)), runs=[run(rank=0)]), RULES)
    assert told.failures == []
    outside = {one.id: one for one in told.findings if one.id.startswith(("start.", "end."))}
    for one in outside.values():
        if one.saves is not None:
            assert 0 <= one.saves.floor_ns <= one.saves.expected_ns <= one.saves.ceiling_ns <= job.wall_ns
            assert 0 <= one.saves.first_step_ns <= one.saves.expected_ns
    return outside


def line(
    work: str, seconds: float, text: str = "prepare()", *, at: int = 30, role: str = "", leaf: str = "m:f"
) -> JobPlace:
    """A line that does this kind of work for so long."""
    return JobPlace("train.py", at, "main", text, leaf, round(seconds * S), work, role)


def preparing(ns: int) -> JobPlace:
    """A line of the job's own that takes this long."""
    return JobPlace("train.py", 30, "indexed", "index[key] = at", "train:indexed", ns)
