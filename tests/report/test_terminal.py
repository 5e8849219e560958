from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest

from whystall.report.registry import Options
from whystall.report.schema import Report
from whystall.report.terminal import render_terminal

GOLDEN = Path(__file__).parent / "golden"


def test_the_text_is_as_recorded(named_sample: tuple[str, Report]) -> None:
    name, report = named_sample
    golden = GOLDEN / f"{name}.txt"
    text = render_terminal(report)
    if os.environ.get("WHYSTALL_UPDATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("width", [40, 80, 100, 160])
def test_no_line_is_wider_than_asked(sample: Report, width: int, verbose: bool) -> None:
    for line in render_terminal(sample, Options(width=width, verbose=verbose)).splitlines():
        assert len(line) <= width


def test_plain_text_has_no_control_characters(sample: Report) -> None:
    text = render_terminal(sample, Options(verbose=True))
    assert not {c for c in text if unicodedata.category(c) in {"Cc", "Cf"}} - {"\n"}


def test_colour_comes_only_from_us(samples: dict[str, Report]) -> None:
    text = render_terminal(samples["hostile"], Options(colour=True, verbose=True))
    assert "\x1b[" in text
    assert "\x1b]8" not in text
    assert "\x1b[31mred" not in text
    assert "[bold red]" in text


def test_the_environment_changes_nothing(samples: dict[str, Report], monkeypatch: pytest.MonkeyPatch) -> None:
    plain, coloured = render_terminal(samples["gpu"]), render_terminal(samples["gpu"], Options(colour=True))
    for name, value in {"COLUMNS": "33", "NO_COLOR": "1", "FORCE_COLOR": "1", "TERM": "dumb", "COLORTERM": ""}.items():
        monkeypatch.setenv(name, value)
    assert render_terminal(samples["gpu"]) == plain
    assert render_terminal(samples["gpu"], Options(colour=True)) == coloured


_SCREEN = 48
"""Lines of a terminal on a small laptop."""


def test_it_fits_on_a_screen(named_sample: tuple[str, Report]) -> None:
    name, report = named_sample
    assert len(render_terminal(report).splitlines()) <= _SCREEN, name


def test_the_verdicts_facts_stand_there_once(samples: dict[str, Report]) -> None:
    short, long = (render_terminal(samples["diagnosed"], Options(verbose=verbose)) for verbose in (False, True))
    assert short.count("1.22x (1.12 to 1.31)") == 1
    assert short.count("Log the loss every 50 steps.") == long.count("do: Log the loss every 50 steps.") - 1 == 1
    assert "considered and rejected" in long
    assert "considered and rejected" not in short


def test_verbose_shows_more(samples: dict[str, Report]) -> None:
    assert "SIGNALS" in render_terminal(samples["gpu"], Options(verbose=True))
    assert "SIGNALS" not in render_terminal(samples["gpu"])


def test_the_verdict_comes_first(sample: Report) -> None:
    first = render_terminal(sample, Options(width=400)).split("\n\n")[1]
    assert first.strip()


def test_the_largest_report_stays_short(huge_report: Report) -> None:
    assert len(render_terminal(huge_report)) < 30_000


def test_the_whole_report_shows_the_roofline_chains_origins_and_what_is_not_covered(samples: dict[str, Report]) -> None:
    text = render_terminal(samples["gpu"], Options(verbose=True))
    for heading in ("ROOFLINE", "FUSIBLE CHAINS", "ORIGINS", "COMPILED KERNELS", "NOT COVERED"):
        assert heading in text
    assert "ROOFLINE" not in render_terminal(samples["gpu"])
