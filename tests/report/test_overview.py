from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.diagnosis.cases import run as a_run
from tests.report.conftest import report as made

from whystall.analysis.results import Ledger
from whystall.diagnosis.finding import Gain
from whystall.diagnosis.verdict import ledger_verdict
from whystall.report import overview
from whystall.report.html import render_html
from whystall.report.redaction import redacted
from whystall.report.schema import Report
from whystall.report.terminal import render_terminal
from whystall.report.vocabulary import PART, PARTS

ledgers = st.builds(Ledger, **{name: st.integers(0, 10**12) for name in Ledger().parts()})


@given(ledgers)
def test_a_bar_is_whole(ledger: Ledger) -> None:
    segments = overview.segments(ledger)
    assert sum(segment.ns for segment in segments) == ledger.total_ns
    if segments:
        assert sum(segment.tenths for segment in segments) == 1000
        assert sum(segment.width for segment in segments) == pytest.approx(100)
        assert segments[-1].start + segments[-1].width == pytest.approx(100)


def test_every_part_of_the_ledger_has_its_words() -> None:
    assert list(PART) == list(Ledger().parts())
    assert len({part.glyph for part in PARTS}) == len({part.label for part in PARTS}) == len(PARTS)
    assert len({(part.colour, part.pattern) for part in PARTS}) == len(PARTS)


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.key)
def test_labels_in_the_bar_have_enough_contrast(part: Any) -> None:
    bright, dark = sorted((luminance(part.colour), luminance(part.ink)), reverse=True)
    assert (bright + 0.05) / (dark + 0.05) >= 4.5


def test_the_bar_is_the_mean_of_the_steady_steps(samples: dict[str, Report]) -> None:
    """Of six steps the first two and the last are left out: two of 122.51 ms and one of 152.51 ms stay: 132.51."""
    bar = overview.headline(samples["gpu"])
    assert bar is not None
    assert bar.window == "Mean of 3 of 6 steps, 133 ms"
    assert bar.window_ns == bar.ledger.total_ns
    assert bar.ledger.idle_input == pytest.approx((8.75 + 8.75 + 38.75) / 3 * 1e6, abs=1)
    assert bar.ledger.compute == pytest.approx(61.2e6, abs=1)


def test_a_usual_and_a_slow_step_stand_beside_a_mean_that_is_neither(samples: dict[str, Report]) -> None:
    device = samples["gpu"].devices[0]
    assert overview.bars_beside(device) == ()  # 1.24 times is no other kind of step
    slow = msgspec.structs.replace(device.steps[4], window_ns=400_000_000)
    beside = overview.bars_beside(msgspec.structs.replace(device, steps=[*device.steps[:4], slow, device.steps[5]]))
    assert [bar.window for bar in beside] == [
        "A usual step, ProfilerStep#2, 123 ms",
        "A slow step (1 of 3), ProfilerStep#4, 400 ms",
    ]


def test_kinds_of_an_engines_steps_stand_beside_their_mean(samples: dict[str, Report]) -> None:
    device = samples["gpu"].devices[0]
    steps = [
        msgspec.structs.replace(
            step, name=f"{'prefill' if number % 3 == 0 else 'decode'} {number}", host_ns=step.window_ns
        )
        for number, step in enumerate(device.steps)
    ]
    served = msgspec.structs.replace(
        device, steps=steps, steps_from="an inference engine's steps (4 decode, 2 prefill)"
    )
    bars = overview.bars_beside(served)
    assert sum(int(bar.of.split()[0]) for bar in bars) == int(overview.bar_of(served).of.split()[2])  # the same steps
    steady = steps[2:-1]
    for bar in bars:
        windows = [step.window_ns for step in steady if step.name.startswith(bar.of.split()[1])]
        assert (int(bar.of.split()[0]), bar.window_ns) == (len(windows), sum(windows) // len(windows))
    alike = [msgspec.structs.replace(step, name=f"decode {number}") for number, step in enumerate(steps)]
    assert overview.bars_beside(msgspec.structs.replace(served, steps=alike)) == ()
    apart = [msgspec.structs.replace(step, host_ns=2 * step.window_ns) for step in steps]
    assert overview.bars_beside(msgspec.structs.replace(served, steps=apart)) == ()


def test_of_one_step_the_bar_is_that_step(samples: dict[str, Report]) -> None:
    report = samples["gpu"]
    device = msgspec.structs.replace(report.devices[0], steps=report.devices[0].steps[:1])
    bar = overview.bar_of(device)
    assert (bar.window, bar.ledger) == ("Step ProfilerStep#0, 123 ms", device.steps[0].ledger)


def test_without_steps_the_bar_is_of_the_whole_recording(samples: dict[str, Report]) -> None:
    report = samples["gpu"]
    device = msgspec.structs.replace(report.devices[0], steps=[])
    bar = overview.headline(msgspec.structs.replace(report, devices=[device]))
    assert bar is not None
    assert (bar.has_step, bar.window_ns, bar.ledger) == (False, device.window_ns, device.ledger)


@pytest.mark.parametrize(
    ("of", "step_ns", "watched", "words"),
    [
        ("step", 190_000_000, 190_000_000, " (190 ms when none is recorded)"),
        ("step", 190_000_000, 182_000_000, " (190 ms when none is recorded)"),
        ("step", 190_000_000, 60_000_000, " (190 ms with the host's part)"),  # whatever it is of, not of these
        ("step", 133_000_000, 133_000_000, ""),
        ("step", 190_000_000, None, " (190 ms with the host's part)"),
        ("step", 100_000_000, None, " (100 ms as it is replayed)"),
        ("recording", 900_000_000, None, " (900 ms with the host's part)"),
    ],
)
def test_a_bar_that_is_not_as_long_as_what_the_gain_is_of_says_so(
    samples: dict[str, Report], of: Any, step_ns: int, watched: int | None, words: str
) -> None:
    report = samples["gpu"]
    gain = Gain(floor=1.1, expected=1.2, ceiling=1.3, method="replay", step_ns=step_ns, of=of)
    verdict = msgspec.structs.replace(report.verdict, gain=gain)
    devices = report.devices if of == "step" else [msgspec.structs.replace(report.devices[0], steps=[])]
    run = [a_run(median_ns=watched, total_ns=100 * watched)] if watched else []
    changed = msgspec.structs.replace(report, verdict=verdict, devices=devices, run=run)
    bar = overview.headline(changed)
    assert bar is not None
    assert bar.window == overview.bar_of(bar.device, watched=watched is not None).window + words


@pytest.mark.parametrize(("severity", "ranks", "words"), [("minor", 1, True), ("info", 1, False), ("minor", 2, False)])
def test_another_findings_length_is_said_beside_the_bar_as_well(
    samples: dict[str, Report], severity: Any, ranks: int, *, words: bool
) -> None:
    report = samples["gpu"]
    gain = Gain(floor=1.1, expected=1.2, ceiling=1.3, method="samples", step_ns=60_000_000)
    some = next(finding for one in samples.values() for finding in one.findings)
    other = msgspec.structs.replace(some, severity=severity, gain=gain)
    measured = a_run(median_ns=60_000_000, total_ns=6_000_000_000)
    changed = msgspec.structs.replace(report, findings=[*report.findings, other], run=[measured] * ranks)
    bar = overview.headline(changed)
    assert bar is not None
    assert ("(60.0 ms when none is recorded)" in bar.window) is words


def test_of_a_cpu_no_share_of_a_gpus_peak_is_missed(samples: dict[str, Report]) -> None:
    assert overview.efficiency_line(samples["cpu"]) == ""
    assert overview.efficiency_line(samples["gpu"]) == "MFU and tensor-core share unknown"


def test_the_verdict_tells_the_shares_that_the_bar_draws(samples: dict[str, Report]) -> None:
    """Of twelve steps the first two idle: nothing of them is in the mean of the others."""
    device = samples["two-ranks"].devices[0]
    busy = Ledger(compute=900_000, idle_python=100_000)
    idle = Ledger(compute=100_000, idle_launch=900_000)
    steps = [msgspec.structs.replace(device.steps[0], ledger=idle if n < 2 else busy) for n in range(12)]
    summary = ledger_verdict([msgspec.structs.replace(device, steps=steps)]).summary
    assert "computes 90.0 % of the time" in summary
    assert "Python between operators (10.0 %)" in summary


def test_the_bar_is_of_the_device_the_verdict_speaks_of(samples: dict[str, Report]) -> None:
    report = samples["two-ranks"]
    idle = Ledger(idle_python=report.devices[1].window_ns)
    worst = msgspec.structs.replace(report.devices[1], ledger=idle, steps=[])
    devices = [report.devices[0], worst]
    changed = msgspec.structs.replace(report, devices=devices, verdict=ledger_verdict(devices))
    bar = overview.headline(changed)
    assert bar is not None
    assert bar.device is worst
    assert changed.verdict.summary.startswith("Of 2 devices, the one of rank 1 computes least")
    of_one_rank = [msgspec.structs.replace(one, rank=0, device=number) for number, one in enumerate(devices)]
    assert ledger_verdict(of_one_rank).summary.startswith("Of 2 devices, device 1 computes least")


def test_losses_name_everything_and_count_what_they_leave_out(samples: dict[str, Report]) -> None:
    report = samples["gpu"]
    assert any("cuda_sync_events" in line for line in overview.losses(report))
    assert any("3 events" in line and "negative" in line for line in overview.losses(report))
    source = msgspec.structs.replace(report.source, warnings=["w"] * 100)
    lines = overview.losses(msgspec.structs.replace(report, source=source), limit=10)
    assert "… and 90 more" in lines


def test_a_peak_that_is_not_known_is_said_to_be_unknown(samples: dict[str, Report]) -> None:
    assert "unknown" in overview.efficiency_line(samples["gpu"])


def test_without_anything_measured_the_verdict_says_why() -> None:
    assert ledger_verdict([], ["Too short: 1 step", "more"]).summary == "No step was recorded. Too short: 1 step."
    assert ledger_verdict([]).summary == "No step was recorded."


def test_what_ran_and_when_stands_first_and_is_not_told_to_others() -> None:
    read = made()
    source = msgspec.structs.replace(
        read.source, command="python train.py ARGS", began_unix_ns=1_800_000_000_000_000_000
    )
    report = msgspec.structs.replace(read, source=source)
    assert overview.source_line(report)[:2] == ("python train.py ARGS", "2027-01-15 08:00 UTC")
    head = render_html(report).partition('<header class="masthead">')[2].partition("</header>")[0]
    assert "python train.py ARGS" in head
    assert "2027-01-15" in head
    assert "python train.py ARGS" in render_terminal(report)
    assert "secret_job" not in render_html(
        redacted(
            msgspec.structs.replace(report, source=msgspec.structs.replace(source, command="python secret_job.py"))
        )
    )


@pytest.mark.parametrize(
    ("paths", "files"),
    [
        (["rank0.json", "rank1.json"], "2 files"),
        (["trace.json", "trace.json"], "2 files"),  # of two folders
        (["merged.json (python 3)", "merged.json (python 4)"], "1 file"),
        (["merged.json (python 3)", "merged.json (python 4)", "rank7.json"], "2 files"),
    ],
)
def test_a_file_that_holds_several_processes_counts_once(paths: list[str], files: str) -> None:
    report = made()
    rows = [msgspec.structs.replace(report.source.files[0], path=path, rank=rank) for rank, path in enumerate(paths)]
    merged = msgspec.structs.replace(report, source=msgspec.structs.replace(report.source, files=rows))
    assert files in overview.source_line(merged)
