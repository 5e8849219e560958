"""The sections of the report, in one tuple to read top to bottom, and the chapters of the page that they stand in."""

from __future__ import annotations

from dataclasses import dataclass

from whystall.report import overview
from whystall.report.roofline_chart import roofline_table
from whystall.report.sections import capture, chains, counters, device, hosts, job, program, resources, run
from whystall.report.sections.section import (
    InMarkdown,
    InNotebook,
    InTerminal,
    OnPage,
    Section,
)


@dataclass(frozen=True, slots=True)
class Chapter:
    """A heading of the HTML page, with the tables of its sections under it."""

    id: str
    title: str
    listed: bool = True
    """Whether the page's navigation names it."""


CHAPTERS: tuple[Chapter, ...] = (
    Chapter("experiments", "Experiments"),
    Chapter("job", "The whole job"),
    Chapter("run", "The whole run"),
    Chapter("hosts", "Ranks in groups"),
    Chapter("meetings", "Between ranks"),
    Chapter("devices", "Devices"),
    Chapter("steps", "Steps"),
    Chapter("timeline", "Timeline"),
    Chapter("device", "Device", listed=False),
    Chapter("roofline", "Roofline"),
    Chapter("kernels", "Kernels"),
    Chapter("counters", "Device counters"),
    Chapter("operators", "Operators"),
    Chapter("modules", "Modules"),
    Chapter("phases", "Phases"),
    Chapter("communication", "Communication"),
    Chapter("memory", "Memory"),
    Chapter("input", "Input"),
    Chapter("host", "Host"),
    Chapter("capture", "Capture"),
)

_NO_HOST = "no host events: was ProfilerActivity.CPU on?"

SECTIONS: tuple[Section, ...] = (
    # Sections of the whole job.
    Section(
        id="experiments",
        scope="job",
        build=run.experiments,
        terminal=InTerminal(columns=("Experiment", "Step", "Without the change", "Speed-up", "Tells"), rows=8),
        markdown=InMarkdown(columns=("Experiment", "Step", "Without the change", "Speed-up", "Tells"), folded=False),
    ),
    Section(
        id="job",
        scope="job",
        build=job.parts,
        markdown=InMarkdown(columns=("Part", "Time", "Share")),
    ),
    Section(
        id="outside",
        scope="job",
        build=job.lines,
        markdown=None,
        page=OnPage(chapter="job"),
    ),
    Section(
        id="run",
        scope="job",
        build=run.steps,
        markdown=InMarkdown(
            columns=("Rank", "Steps", "Median", "p99", "Input", "Forward", "Backward", "Other"), folded=False
        ),
    ),
    Section(
        id="pace", scope="job", build=run.pace, markdown=None, page=None
    ),
    Section(
        id="lines", scope="job", build=run.lines, terminal=InTerminal(rows=3), page=None
    ),
    Section(
        id="places", scope="job", build=run.places, terminal=None, markdown=None, page=OnPage(chapter="run")
    ),
    Section(
        id="slow", scope="job", build=run.slow, page=OnPage(chapter="run")
    ),
    Section(
        id="hosts", scope="job", build=hosts.hosts, terminal=InTerminal(rows=4), markdown=InMarkdown(),
    ),
    Section(
        id="supply",
        scope="job",
        build=resources.supply,
        page=OnPage(chapter="input"),
    ),
    Section(
        id="devices",
        scope="job",
        build=lambda report, limits: device.devices(
            overview.devices_to_show(report, limits.rows), limits, total=len(report.devices)
        ),
        terminal=InTerminal(fewest=2),
        markdown=InMarkdown(fewest=2),
        notebook=InNotebook(),
    ),
    Section(
        id="meetings",
        scope="job",
        build=run.meetings,
    ),
    Section(
        id="blocking",
        scope="job",
        build=resources.blocking,
        page=OnPage(chapter="communication"),
    ),
    # Sections of each device.
    Section(
        id="steps",
        scope="device",
        build=lambda one, limits: device.steps(one.device, limits),
        absent="no step was marked: call prof.step() once per iteration",
        markdown=InMarkdown(columns=("Step", "Window", "Compute", "Communication", "Idle", "Flag")),
    ),
    Section(
        id="events",
        scope="device",
        build=lambda one, limits: device.longest_events(one.timeline, limits),
        absent="no events to draw",
        terminal=None,
        markdown=None,
        page=OnPage(chapter="timeline", rows=20),
    ),
    Section(
        id="facts",
        scope="device",
        build=lambda one, limits: device.facts(one.device, limits),
        markdown=None,
        page=OnPage(chapter="device"),
    ),
    Section(
        id="streams",
        scope="device",
        build=lambda one, limits: device.streams(one.device, limits),
        markdown=None,
        page=OnPage(chapter="device"),
    ),
    Section(
        id="undecided",
        scope="device",
        build=lambda one, limits: capture.undecided(one.device, limits),
        markdown=None,
        page=OnPage(chapter="device"),
    ),
    Section(
        id="uncovered",
        scope="device",
        build=lambda one, limits: device.uncovered(one.rating, one.device, limits),
        markdown=None,
        page=OnPage(chapter="device"),
    ),
    Section(
        id="roofline",
        scope="device",
        build=lambda one, limits: roofline_table(one.rating, limits),
        markdown=None,
    ),
    # Sections of each rank.
    Section(
        id="phases",
        scope="rank",
        build=program.phases,
        absent="no forward, backward or optimizer phase was recognised",
        markdown=None,
    ),
    Section(
        id="families",
        scope="rank",
        build=device.families,
        markdown=None,
        page=OnPage(chapter="kernels"),
    ),
    Section(
        id="kernels",
        scope="rank",
        build=device.kernels,
        absent="no device events",
        markdown=InMarkdown(columns=("Name", "Class", "Count", "Total", "Share"), folded=False),
        page=OnPage(filter=True),
    ),
    Section(
        id="chains",
        scope="rank",
        build=chains.fusible,
        markdown=None,
        page=OnPage(chapter="kernels"),
    ),
    Section(
        id="origins",
        scope="rank",
        build=chains.origins,
        markdown=None,
        page=OnPage(chapter="kernels"),
    ),
    Section(
        id="fused",
        scope="rank",
        build=chains.fused,
        markdown=None,
        page=OnPage(chapter="kernels"),
    ),
    Section(
        id="counters",
        scope="rank",
        build=counters.counters,
        markdown=InMarkdown(columns=("Counter", "Device", "Mean", "Working", "Idle")),
        page=OnPage(filter=True),
    ),
    Section(
        id="operators",
        scope="rank",
        build=program.operators,
        absent="no operators: was ProfilerActivity.CPU on?",
        markdown=InMarkdown(columns=("Operator", "Calls", "Device self", "Host self")),
        page=OnPage(filter=True),
    ),
    Section(
        id="modules",
        scope="rank",
        build=program.modules,
        absent="no module calls: record with with_modules=True or with_stack=True",
        markdown=None,  # drawn as a pie
        page=OnPage(filter=True),
    ),
    Section(
        id="communication",
        scope="rank",
        build=resources.communication,
        absent="no collectives ran",
        markdown=InMarkdown(
            columns=("Collective", "Count", "Bytes", "Total", "Exposed", "Hidden share", "Waiting", "Bus bandwidth"),
            folded=False,
        ),
    ),
    Section(
        id="input",
        scope="rank",
        build=resources.waits,
        absent="no wait for input was seen",
    ),
    Section(
        id="threads",
        scope="rank",
        build=program.threads,
        absent=_NO_HOST,
        markdown=None,
        page=OnPage(chapter="host"),
    ),
    Section(
        id="calls",
        scope="rank",
        build=program.calls,
        absent=_NO_HOST,
        markdown=None,
        page=OnPage(chapter="host", filter=True),
    ),
    Section(
        id="memory",
        scope="rank",
        build=resources.memory,
        absent="no memory events: record with profile_memory=True",
    ),
    # Sections of the recording.
    Section(
        id="signals",
        scope="capture",
        build=capture.signals,
        markdown=None,
        page=OnPage(chapter="capture"),
    ),
    Section(
        id="dropped",
        scope="capture",
        build=capture.dropped,
        page=OnPage(chapter="capture"),
    ),
    Section(
        id="files",
        scope="capture",
        build=capture.files,
        markdown=None,
        page=OnPage(chapter="capture"),
    ),
)  # fmt: skip
"""In reading order; the page groups them under its chapters."""
