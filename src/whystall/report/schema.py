"""``whystall.report/1``: the one structure every renderer reads and ``report.json`` holds."""

from __future__ import annotations

import inspect
from typing import Final, Literal

import msgspec
import numpy as np

from whystall.analysis.counters import DeviceCounter
from whystall.analysis.memory_results import MemoryPeak
from whystall.analysis.price import Price
from whystall.analysis.results import (
    Collective,
    Device,
    Host,
    InputWait,
    Kernel,
    KernelFamily,
    Module,
    Operator,
    Phase,
    RankMeetings,
    Result,
    Timeline,
)
from whystall.analysis.run_results import Environment, RunSummary, SideBySide
from whystall.analysis.supply import InputSupply
from whystall.analysis.whole_job import WholeJob
from whystall.analysis.work_results import Efficiency, GivenRows, KernelChains, KernelOrigins, StepCount
from whystall.diagnosis.experiment import Experiment
from whystall.diagnosis.finding import Abstention, Blocking, Finding, PathPart, Plan, Verdict
from whystall.json_text import parse_json
from whystall.report.registry import Options, render

SCHEMA: Final = "whystall.report/1"


class SourceFile(Result, frozen=True, kw_only=True):
    """One file that was read; ``path`` is the base name only, so that reports can be shared.

    For a rank not analysed ``in_depth`` the report has devices, ratings and communication, and no more.
    """

    path: str
    rank: int
    bytes: int
    raw_bytes: int
    events: int
    truncated: bool
    in_depth: bool = True
    host: int | None = None
    """The number of its host, where ``ranks.json`` names hosts: from 0, by their lowest ranks."""


class Dropped(Result, frozen=True, kw_only=True):
    """Events that were set aside, and the device time they would have carried."""

    reason: str
    events: int
    device_ns: int
    rank: int


class Source(Result, frozen=True, kw_only=True):
    """The input, its losses and repairs, and the signals that the capture lacks."""

    files: list[SourceFile]
    framework: str | None
    ranks: list[int]
    world_size: int | None
    events: int
    dropped: list[Dropped]
    warnings: list[str]
    missing_signals: list[str]
    signals: dict[str, bool]
    command: str | None = None
    """The command of a watched job as one types it, its arguments left out."""
    began_unix_ns: int | None = None
    """When a watched job began."""
    inputs: str | None = None
    """For a report stored in its own folder: a digest of the folder's content. It is shown while that
    is the same."""


class Report(Result, frozen=True, kw_only=True):
    """Everything whystall says about a run."""

    schema: Literal["whystall.report/1"] = SCHEMA
    whystall: str
    verdict: Verdict
    source: Source
    devices: list[Device]
    kernels: list[Kernel]
    kernel_families: list[KernelFamily]
    operators: list[Operator]
    modules: list[Module]
    phases: list[Phase]
    communication: list[Collective]
    input: list[InputWait]
    host: Host
    memory: list[MemoryPeak]
    efficiency: Efficiency
    timelines: list[Timeline]
    kernel_chains: list[KernelChains] = msgspec.field(default_factory=list)
    kernel_origins: list[KernelOrigins] = msgspec.field(default_factory=list)
    counts: list[StepCount] = msgspec.field(default_factory=list)
    ranks: list[RankMeetings] = msgspec.field(default_factory=list)
    side_by_side: SideBySide | None = None
    run: list[RunSummary] = msgspec.field(default_factory=list)
    findings: list[Finding] = msgspec.field(default_factory=list)
    plan: Plan | None = None
    abstained: list[Abstention] = msgspec.field(default_factory=list)
    critical_path: list[PathPart] = msgspec.field(default_factory=list)
    blocking: list[Blocking] = msgspec.field(default_factory=list)
    fidelity: float | None = None
    noise: float | None = None
    experiments: list[Experiment] = msgspec.field(default_factory=list)
    environment: Environment | None = None
    """Where a watched job ran."""
    samples_per_step: int | None = None
    """Number of samples that a data loader handed out for a step of one rank, where it is certain."""
    supply: InputSupply | None = None
    """Supply of the loader and demand of the steps, where the samples of a step are known."""
    job: WholeJob | None = None
    """The ledger of the whole job, from its launch to its exit, where it was watched."""
    price: Price | None = None
    """The bill of the whole job, where it ran on GPUs."""
    given: list[GivenRows] = msgspec.field(default_factory=list)
    """Shapes of the largest products of a step of the first rank, which show that batches have one size."""
    device_counters: list[DeviceCounter] = msgspec.field(default_factory=list)
    """Values of the devices' own counters, where they were recorded."""

    def _repr_html_(self) -> str:
        """The report in a notebook's cell: verdict, one step's bar, devices."""
        return render(self, "notebook")


def encode(report: Report) -> bytes:
    """The report as JSON: same report, same bytes."""
    return msgspec.json.format(msgspec.json.encode(report, enc_hook=_plain), indent=1) + b"\n"


def _plain(number: object) -> object:
    """NumPy's numbers as Python's: a rule (perhaps a plugin's) that lets one through must not cost the report."""
    if isinstance(number, np.generic):
        return number.item()
    raise NotImplementedError(type(number))


def render_json(report: Report, _options: Options | None = None) -> str:
    """The report as JSON text."""
    return encode(report).decode()


def decode(data: bytes) -> Report:
    """A report from its JSON. Raises `NotJsonError` with the offending path."""
    return parse_json(data, type=Report)


def json_schema() -> dict[str, object]:
    """The JSON Schema (draft 2020-12) of ``whystall.report/1``; its descriptions are free of indentation."""
    found = msgspec.json.schema(Report)
    for one in found["$defs"].values():
        if "description" in one:  # msgspec cleans them from 0.23 on
            one["description"] = inspect.cleandoc(one["description"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA} | found
