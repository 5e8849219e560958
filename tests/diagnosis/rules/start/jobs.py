"""Watched jobs with lines that take long outside of steps."""

from __future__ import annotations

from tests.diagnosis.cases import case_of, run
from tests.diagnosis.rules.host.test_few_threads import steps

from whystall.analysis.whole_job import WholeJob
from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.finding import Finding
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.run_facts import RunFacts
from whystall.run_folder.job_times import IMPORTING, JobPlace

S = 1_000_000_000
IMPORTS = JobPlace("train.py", 3, "<module>", "from heavy import Thing", IMPORTING, 4 * S)
HIDDEN = JobPlace("train.py", 9, "<module>", "optimizer = torch.optim.AdamW(parameters)", IMPORTING, 4 * S)
PREPARES = JobPlace("train.py", 20, "tokenized", "ids.extend(encode(line))", "tokenizers:encode", 4 * S)


def found(*before: JobPlace, after: tuple[JobPlace, ...] = (), wall_s: int = 20) -> dict[str, Finding]:
    job = WholeJob(
        rank=0, wall_ns=wall_s * S, parts=[], first_step_ns=9 * S, before_steps=list(before), after_steps=list(after)
    )
    told = diagnose(case_of(steps(), facts=RunFacts(job=job), runs=[run(rank=0)]), RULES)
    assert told.failures == []
    return {one.id: one for one in told.findings if one.id.startswith("start.")}


def preparing(ns: int) -> JobPlace:
    """A line that takes this long."""
    return JobPlace("train.py", 30, "indexed", "index[key] = at", "train:indexed", ns)
