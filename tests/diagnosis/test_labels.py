"""Verdicts by hand on the recorded traces (labels.json beside them): what may stand on top, what must not be said."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest
from tests.conftest import TRACES, RealTraces

LABELS = TRACES / "labels.json"


@cache
def labels() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(LABELS.read_text("utf-8")) if LABELS.exists() else {}
    return found


@pytest.mark.real_traces
@pytest.mark.parametrize("name", labels() or ["(none)"])
def test_the_verdict_is_what_people_say_of_the_trace(name: str, real_traces: RealTraces) -> None:
    real_traces.path("labels.json")
    label, report = labels()[name], real_traces.report(name)
    fired = {finding.id for finding in report.findings if finding.severity != "info"}
    remedies = [finding.remedy.text + (finding.remedy.patch or "") for finding in report.findings if finding.remedy]
    told = " ".join([report.verdict.summary, *(finding.title for finding in report.findings), *remedies])

    if "first" in label:
        assert report.verdict.cause in label["first"], label["why"]
    assert all(fired.intersection(one_of) for one_of in label.get("must", [])), label["why"]
    assert not fired.intersection(label.get("forbid", [])), label["why"]
    assert all(re.search(text, told) for text in label.get("say", [])), label["why"]
    assert not any(re.search(text, told) for text in label.get("notsay", [])), label["why"]
