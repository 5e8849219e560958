"""The top of every format: one step's ledger, and losses and repairs of the input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from whystall.analysis.price import Price
from whystall.analysis.results import Device, Ledger, Step
from whystall.analysis.steadiness import Steady, least_computing, mean_of, mean_step, steady, unlike_steps
from whystall.analysis.whole_job import WholeJob
from whystall.analysis.work_results import Throughput
from whystall.diagnosis.finding import Gain
from whystall.report import format as fmt
from whystall.report.names import clean, first_sentence
from whystall.report.ranks import RankReport, only_summarised
from whystall.report.schema import Report, Source
from whystall.report.vocabulary import PARTS, Part
from whystall.trace.steps import is_of_an_engine

_LONGEST_SENTENCE = 600
_LONG_START = 0.1
_LEAST_PART = 0.01
_MOST_PARTS = 5
_FEW_OF_MANY = 24


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a ledger: its time, its share as shown, and where it lies in the bar, in percent."""

    part: Part
    ns: int
    tenths: int
    start: float
    width: float

    @property
    def percent(self) -> str:
        """The share as shown; the shares of a bar add up to 100.0 %."""
        return fmt.percent_of_tenths(self.tenths)

    @property
    def time(self) -> str:
        """The time as shown."""
        return fmt.duration(self.ns)


def segments(ledger: Ledger) -> tuple[Segment, ...]:
    """The parts of a ledger that are not empty, in the order of attribution."""
    return segments_of(ledger.parts())


def segments_of(parts: Mapping[str, int], drawn_ns: int = 0) -> tuple[Segment, ...]:
    """The parts that are not empty, in the order of attribution; the bar as a whole is at least ``drawn_ns``."""
    shown = [(part, parts[part.key]) for part in PARTS if parts.get(part.key, 0) > 0]
    whole = max(sum(ns for _, ns in shown), drawn_ns)
    result, before = [], 0
    for (part, ns), tenths in zip(shown, fmt.tenths(ns for _, ns in shown), strict=True):
        result.append(Segment(part, ns, tenths, before * 100 / whole, ns * 100 / whole))
        before += ns
    return tuple(result)


def empty_parts(ledger: Ledger) -> tuple[str, ...]:
    """The parts that hold no time, in words."""
    parts = ledger.parts()
    return tuple(words_of(part) for part in PARTS if parts[part.key] <= 0)


def words_of(part: Part) -> str:
    """The name of a part of a ledger within a sentence."""
    word = part.label.removeprefix("Idle: ")
    return word if word == "Python" else word.lower()


@dataclass(frozen=True, slots=True)
class Bar:
    """The ledger of a window, or the mean of several, ready to be drawn, with its name."""

    device: Device
    of: str
    has_step: bool
    window_ns: int
    ledger: Ledger
    aside: str = ""

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The parts of the bar."""
        return segments(self.ledger)

    @property
    def window(self) -> str:
        """The window in words."""
        return f"{self.of}, {fmt.duration(self.window_ns)}{self.aside}"


def bar_of(device: Device, *, watched: bool = False) -> Bar:
    """The mean of a device's steady steps, or its whole window where no step was marked.

    In a ``watched`` job these are the recorded steps; gains may refer to the steps of the whole run.
    """
    mean = mean_step(device.steps)
    if mean is None:
        whole = "The whole recording" if device.kind == "cpu" else "From the first device event to the last"
        return Bar(device, whole, False, device.window_ns, device.ledger)
    what = (
        f"Mean of {mean.steps:,}{_of_all(device, mean.steps)}{' recorded' * watched} steps{_known_by(device)}"
        if mean.steps > 1
        else f"Step {clean(device.steps[0].name, 60)}"
    )
    return Bar(device, what, True, mean.window_ns, mean.ledger)


def _of_all(device: Device, steady: int) -> str:
    """The number of all steps, where the first, the last or one that was cut is left out."""
    return f" of {len(device.steps):,}" if steady < len(device.steps) else ""


def _known_by(device: Device) -> str:
    """The source of steps that no profiler or engine marked."""
    source = (device.steps_from or "").partition(" (")[0]
    marked = source.startswith(_MARKED) or is_of_an_engine(device.steps_from)
    return "" if marked or not source else f" (by {clean(source, 60)})"


def bars_beside(device: Device) -> tuple[Bar, ...]:
    """Bars beside the mean: one per kind of an engine's steps, or a usual and a slow step if steps differ."""
    if is_of_an_engine(device.steps_from):
        kinds = _bars_by_kind(device)
        return kinds if len(kinds) > 1 else ()
    unlike = unlike_steps(device.steps)
    if unlike is None:
        return ()
    slow = f"A slow step ({unlike.slow_steps:,} of {unlike.steps:,})"
    usual = "A usual step" if 2 * unlike.slow_steps <= unlike.steps else "A fast step"
    named = ((usual, unlike.usual), (slow, unlike.slow))
    return tuple(
        Bar(device, f"{words}, {clean(step.name, 60)}", True, step.window_ns, step.ledger) for words, step in named
    )


def _bars_by_kind(device: Device) -> tuple[Bar, ...]:
    """The mean of each kind of an inference engine's steady steps, the kind that takes most first.

    A device's window holds the host's work for the step after it: if a kind's windows differ in length from its steps,
    no bar is of the kind alone.
    """
    kinds: dict[str, list[Step]] = {}
    for step in steady(device.steps):
        kinds.setdefault(step.name.partition(" ")[0], []).append(step)
    for steps in kinds.values():
        window, own = sum(step.window_ns for step in steps), sum(step.host_ns or step.window_ns for step in steps)
        if abs(window - own) > _NEARLY * own:
            return ()
    means = sorted(((kind, mean_of(steps)) for kind, steps in kinds.items()), key=_takes, reverse=True)
    return tuple(
        Bar(device, f"{mean.steps:,} {kind} step{'s' * (mean.steps > 1)}", True, mean.window_ns, mean.ledger)
        for kind, mean in means
    )


def _takes(of_a_kind: tuple[str, Steady]) -> int:
    return of_a_kind[1].window_ns * of_a_kind[1].steps


_FULLY_COVERED = 0.95
_MARKED = "ProfilerStep"
_SAME_LENGTH = 0.02
_NEARLY = 0.1  # a replay knows the length of steps that are not recorded no better


def headline(report: Report) -> Bar | None:
    """The bar on top of the report: that of the device the verdict names, else of the one that its basis speaks of."""
    measured = [device for device in in_order(report) if device.window_ns > 0]
    spoken_of = (report.verdict.rank, report.verdict.device)
    device = next((device for device in measured if (device.rank, device.device) == spoken_of), None)
    device = device or least_computing(measured)
    if device is None:
        return None
    bar = bar_of(device, watched=bool(report.run))
    return replace(bar, aside=_other_length(bar, report))


def _other_length(bar: Bar, report: Report) -> str:
    """The base of gains where it is not as long as the bar, the verdict's first: two lengths need a reason."""
    others = report.findings if len(report.run) == 1 else []  # with several ranks each has a length of its own
    gains = [report.verdict.gain, *(finding.gain for finding in others if finding.severity != "info")]
    gain = next((one for one in gains if one is not None and _has_other_length(one, bar)), None)
    if gain is None or gain.step_ns is None:
        return ""
    if report.run and not bar.has_step:
        return ""
    if any(_alike(gain.step_ns, other) for run in report.run for other in (run.median_ns, run.mean_ns)):
        return f" ({fmt.duration(gain.step_ns)} when none is recorded)"
    # A device's window begins with its first event; a replayed step begins with the host's work before.
    what = "with the host's part" if gain.step_ns > bar.window_ns else _shortened(report)
    return f" ({fmt.duration(gain.step_ns)} {what})"


def _shortened(report: Report) -> str:
    warms_up = any(finding.id == "host.warm-up" for finding in report.findings)
    return "without what happened once" if warms_up else "as it is replayed"


def _has_other_length(gain: Gain, bar: Bar) -> bool:
    return gain.step_ns is not None and abs(gain.step_ns - bar.window_ns) > _SAME_LENGTH * bar.window_ns


def _alike(one: float, other: float) -> bool:
    return abs(one - other) <= _NEARLY * other


def in_order(report: Report) -> list[Device]:
    """The devices by rank."""
    return sorted(report.devices, key=lambda device: (device.rank, device.device))


def devices_to_show(report: Report, most: int) -> list[Device]:
    """A limited number of devices by rank: those of ranks in depth before others.

    Where only some ranks were analysed in depth, the others are in groups, and few of them here.
    """
    devices, summarised = in_order(report), only_summarised(report)
    most = min(most, _FEW_OF_MANY) if summarised else most
    if len(devices) <= most:
        return devices
    chosen = sorted(devices, key=lambda device: device.rank in summarised)[:most]
    return sorted(chosen, key=lambda device: (device.rank, device.device))


def headline_rank(bar: Bar | None, ranks: Sequence[RankReport]) -> RankReport | None:
    """The rank whose tables stand for all where there is room for one only."""
    if bar is None:
        return ranks[0] if ranks else None
    return next(rank for rank in ranks if rank.rank == bar.device.rank)


def summary(report: Report) -> str:
    """The verdict's sentence, safe to show."""
    return clean(report.verdict.summary, _LONGEST_SENTENCE)


def basis(report: Report) -> str:
    """The grounds of the verdict's sentence, the start of the whole job where it was long, and its price."""
    known = clean(report.verdict.basis, _LONGEST_SENTENCE), start_sentence(report.job), price_sentence(report.price)
    return " ".join(filter(None, known))


def price_sentence(price: Price | None) -> str:
    """The bill of a job; empty where it ran on no GPU.

    >>> price_sentence(Price(devices=8, gpu_hours=2.5, parts=[]))
    'The job held 8 GPUs for 2.50 GPU-hours in all.'
    """
    if price is None:
        return ""
    cost = "" if price.rate is None or price.cents is None else f": {fmt.money(price.cents, price.rate.currency)}"
    return f"The job held {fmt.plural(price.devices, 'GPU')} for {price.gpu_hours:.2f} GPU-hours in all{cost}."


def start_sentence(job: WholeJob | None) -> str:
    """The time to the first step, where it is a tenth of the job, with its three longest parts; else empty."""
    if job is None or not job.first_step_ns or job.first_step_ns < _LONG_START * job.wall_ns:
        return ""
    before = [one for one in job.parts if one.phase == "start"]
    longest = sorted(before, key=lambda one: -one.ns)[:3]
    named = ", ".join(f"{one.part} {fmt.duration(one.ns)}" for one in longest)
    last = f" Rank {job.rank} was ready {fmt.duration(job.ahead_ns)} after the first rank." if job.ahead_ns else ""
    whole = f"{fmt.duration(job.first_step_ns)} of {fmt.duration(job.wall_ns)}"
    return f"The first step ended after {whole}: {named}.{last}"


def job_line(job: WholeJob | None) -> str:
    """The length of the whole job, and the shares of its longest parts; empty where it was not watched."""
    if job is None or not job.wall_ns:
        return ""
    lasts: Counter[str] = Counter()
    for one in job.parts:  # a part may be in several phases of the job
        lasts[one.part] += one.ns
    longest = [(part, ns) for part, ns in lasts.most_common(_MOST_PARTS) if ns >= _LEAST_PART * job.wall_ns]
    named = ", ".join(f"{part} {fmt.share(ns / job.wall_ns)}" for part, ns in longest)
    return f"The whole job, {fmt.duration(job.wall_ns)}{': ' * bool(named)}{named}"


def action(report: Report) -> str:
    """Advice on the first cause: the first sentence of its remedy; empty where there is none."""
    best = next((one for one in report.findings if one.id == report.verdict.cause), None)
    if best is None or best.remedy is None:
        return ""
    return clean(first_sentence(best.remedy.text), _LONGEST_SENTENCE)


def source_line(report: Report) -> tuple[str, ...]:
    """The input, as short phrases."""
    source = report.source
    phrases = [
        clean(source.command, 80) if source.command else None,
        _day(source.began_unix_ns) if source.began_unix_ns else None,
        clean(source.framework, 60) if source.framework else None,
        fmt.plural(len(source.ranks), "rank") if source.ranks else None,
        f"world size {source.world_size:,}" if source.world_size and source.world_size > len(source.ranks) else None,
        fmt.plural(_files(source), "file"),
        fmt.plural(source.events, "event"),
    ]
    return tuple(phrase for phrase in phrases if phrase)


def _files(source: Source) -> int:
    """How many files there are: one may hold the recordings of several processes, which its rows name in brackets."""
    merged = {(file.path.rpartition(" (")[0], file.bytes) for file in source.files if file.path.endswith(")")}
    return len(merged) + sum(not file.path.endswith(")") for file in source.files)


def _day(unix_ns: int) -> str:
    """A time to the minute, in UTC: a report may be read anywhere."""
    return f"{datetime.fromtimestamp(unix_ns / 1e9, UTC):%Y-%m-%d %H:%M} UTC"


def losses(report: Report, *, limit: int = 50, short: bool = False) -> tuple[str, ...]:
    """Losses, repairs and gaps of the recording, one sentence each; where ``short`` without the way to record more."""
    source = report.source
    lines = [clean(warning, _LONGEST_SENTENCE) for warning in source.warnings[:limit]]
    lines += [
        f"Set aside {fmt.plural(drop.events, 'event')} of rank {drop.rank}"
        f"{f' ({fmt.duration(drop.device_ns)} of device time)' if drop.device_ns else ''}: {clean(drop.reason, 200)}"
        for drop in source.dropped[:limit]
    ]
    lines += [
        f"{clean(file.path, 120)} ends early: what precedes the damage was read"
        for file in [file for file in source.files if file.truncated][:limit]
    ]
    more = len(source.warnings) + len(source.dropped) + sum(file.truncated for file in source.files) - len(lines)
    if more > 0:
        lines.append(f"… and {more:,} more")
    if source.missing_signals:
        signals = (clean(signal, 160) for signal in source.missing_signals[:20])
        names = ", ".join(signal.partition(" (")[0] if short else signal for signal in signals)
        lines.append(f"Not recorded: {names}")
    return tuple(lines)


def throughput_words(rated: Throughput) -> list[str]:
    """Work of each device per second, and its share of a reference or a peak."""
    told = []
    for unit, value in (("tokens", rated.tokens_per_s_per_device), ("samples", rated.samples_per_s_per_device)):
        if value is not None:
            of = ""
            if rated.reference_unit == unit and rated.reference_share is not None:
                against = fmt.quantity(rated.reference_per_s_per_device)
                of = f", {fmt.share(rated.reference_share)} of {against} ({clean(rated.reference_source or '', 120)})"
            told.append(f"{fmt.quantity(value)} {unit}/s for each of {fmt.plural(rated.devices, 'device')}{of}")
    if rated.flops_per_s_per_device is not None:
        of = "" if rated.utilisation is None else f", {fmt.share(rated.utilisation)} of the {rated.precision} peak"
        told.append(f"{fmt.rate(rated.flops_per_s_per_device, 'FLOP/s')} for each device{of}")
    if rated.unknown_because is not None:
        told.append(rated.unknown_because)
    return told


def efficiency_line(report: Report) -> str:
    """Utilisation against the peak, which is never shown as a guess."""
    figures = report.efficiency
    known = [
        ("MFU", figures.mfu),
        ("HFU", figures.hfu),
        ("tensor cores", figures.tensor_core_share),
    ]
    told = [f"{label} {fmt.share(value)}" for label, value in known if value is not None]
    spoken_of = (report.verdict.rank, report.verdict.device)
    rating = next((row for row in figures.devices if (row.rank, row.device) == spoken_of), None)
    if figures.mfu is not None and rating is not None:
        if rating.rated_steps is not None:
            told.append(f"of {fmt.plural(rating.rated_steps, 'steady step')}, without far longer ones")
        if rating.covered_share < _FULLY_COVERED:
            told.append(f"FLOPs known of {fmt.share(rating.covered_share)} of device time, so MFU is at least this")
        if rating.measured is not None:
            told.append(f"no data sheet: {clean(rating.measured, 200)}")
    if figures.throughput is not None:
        told += throughput_words(figures.throughput)
    if not told and all(device.kind == "cpu" for device in report.devices):
        return ""  # a share of a GPU's peak is no question there
    return " · ".join(told) or "MFU and tensor-core share unknown"
