"""A baseline: the runs that later runs of a job are compared with, small enough to lie beside the code.

It holds the part of a report that comparisons read (the machine and versions among it), and the step lengths of each of
its runs, which measure the noise between runs of the same job. A digest of both detects a file that was changed by hand
or damaged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec

from whystall._version import __version__
from whystall.analysis.results import Host
from whystall.analysis.run_noise import RunNoise
from whystall.analysis.work_results import Efficiency
from whystall.diagnosis.comparison import noises_of
from whystall.diagnosis.count_changes import counts_of_runs
from whystall.diagnosis.sides import RunLength, run_steps
from whystall.json_text import NotJsonError, parse_json
from whystall.report.schema import Report, encode
from whystall.report.schema import decode as decode_report

SCHEMA: Final = "whystall.baseline/1"
LARGEST_BYTES: Final = 32 << 20
MOST_RUNS: Final = 1_000

_Runs = Annotated[list[RunLength], msgspec.Meta(min_length=1, max_length=MOST_RUNS)]


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The side to compare with: ``report`` is that of the first of ``runs``, with the counts of all."""

    content: str
    runs: list[RunLength]
    report: Report

    @property
    def noise(self) -> RunNoise | None:
        """Spread of the job's runs, in the median step; ``None`` for a single run."""
        noises = noises_of(self.runs)
        return None if noises is None else noises["median"]


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """The file: ``content`` is of ``runs`` and ``report`` as they stand there, blanks aside."""

    schema: Literal["whystall.baseline/1"] = SCHEMA
    whystall: str
    content: str
    runs: msgspec.Raw
    report: msgspec.Raw


def baseline_of(reports: Sequence[Report]) -> Baseline:
    """The baseline of one or several runs of one job. Raises ``ValueError`` if one has no steps."""
    lengths = []
    for place, report in enumerate(reports, 1):
        steps = run_steps(report)
        if steps is None or min(round(length.ns) for length in steps.by.values()) <= 0:
            raise ValueError(f"run {place} has no steps")
        mean, median = (round(steps.by[key].ns) for key in ("mean", "median"))
        lengths.append(RunLength(steps=steps.steps, measured_by=steps.measured_by, mean_ns=mean, median_ns=median))
    report = msgspec.structs.replace(_compared_part(reports[0]), counts=counts_of_runs(reports))
    return Baseline(content=_digest(msgspec.json.encode(lengths), encode(report)), runs=lengths, report=report)


def encode_baseline(baseline: Baseline) -> bytes:
    """The file of a baseline: same baseline, same bytes."""
    file = _File(
        whystall=__version__,
        content=baseline.content,
        runs=msgspec.Raw(msgspec.json.encode(baseline.runs)),
        report=msgspec.Raw(encode(baseline.report)),
    )
    return msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n"


def decode_baseline(data: bytes) -> Baseline:
    """A baseline from its file. Raises ``ValueError`` with the fault of a bad one."""
    try:
        file = parse_json(data, type=_File)
        if _digest(file.runs, file.report) != file.content:
            raise ValueError("it was changed after it was saved, or is damaged")
        return Baseline(
            content=file.content,
            runs=parse_json(file.runs, type=_Runs),
            report=decode_report(bytes(file.report)),
        )
    except NotJsonError as error:
        raise ValueError(str(error)) from None


def _digest(*parts: bytes | msgspec.Raw) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(msgspec.json.format(bytes(part), indent=-1))
        found.update(b"\n")
    return f"sha256:{found.hexdigest()}"


def _compared_part(report: Report) -> Report:
    """The report without the parts that no comparison reads, such as evidence, timelines and lines of code."""
    findings = [
        msgspec.structs.replace(
            finding,
            evidence=[],
            code=[],
            rejected=[],
            instead=[],
            remedy=None,
            verify=None,
            in_step=None,
            missing_signals=[],
        )
        for finding in report.findings
    ]
    runs = [
        msgspec.structs.replace(run, slow=[], places=[], beside=[], memory_rises=[], windows=[], changed=None)
        for run in report.run
    ]
    return msgspec.structs.replace(
        report,
        findings=findings,
        run=runs,
        kernel_families=[],
        phases=[],
        communication=[],
        input=[],
        host=Host(threads=[], calls=[]),
        memory=[],
        efficiency=Efficiency(devices=[]),
        timelines=[],
        kernel_chains=[],
        kernel_origins=[],
        ranks=[],
        side_by_side=None,
        plan=None,
        critical_path=[],
        blocking=[],
        experiments=[],
    )
