"""The dashboard for Grafana asks for what is written, and shows all of it."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from whystall.report.metrics import RankMetrics, metrics_text, points_of_ranks, points_of_report
from whystall.report.schema import Report
from whystall.vocabulary.metrics import METRICS, Histogram

DASHBOARD = Path(__file__).parents[2] / "docs" / "assets" / "grafana.json"
# What Prometheus itself appends to a histogram's name.
PARTS = ("_bucket", "_sum", "_count")


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return loaded


@pytest.fixture
def written(samples: dict[str, Report]) -> dict[str, set[str]]:
    """The series that a watch writes, each with its labels."""
    ranks = [RankMetrics(0, Histogram((0.1, 1.0), [3, 2, 1], 7.5), {"input": 0.25}, 1.5)]
    text = metrics_text("run", [*points_of_ranks(ranks), *points_of_report(samples["diagnosed"])])
    out: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(\w+)\{(.*)\} ", text, re.MULTILINE):
        out.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return out


def queries(dashboard: dict[str, Any]) -> list[tuple[str, str]]:
    """Each query with the legend that is made of its labels."""
    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    return [(target["expr"], target["legendFormat"]) for target in targets]


def names(query: str) -> set[str]:
    return set(re.findall(r"whystall_\w+", query))


def declared(series: str) -> str:
    """The metric that a series is of."""
    histograms = {metric.name for metric in METRICS if metric.kind == "histogram"}
    return next((name for name in histograms for part in PARTS if series == name + part), series)


def test_every_metric_is_shown_and_no_other_is_asked_for(
    dashboard: dict[str, Any], written: dict[str, set[str]]
) -> None:
    asked = {series for query, _ in queries(dashboard) for series in names(query)}
    assert {declared(series) for series in asked} == {metric.name for metric in METRICS}
    assert asked <= set(written)


def test_labels_that_are_asked_for_are_written(dashboard: dict[str, Any], written: dict[str, set[str]]) -> None:
    for query, legend in queries(dashboard):
        (labels,) = {frozenset(written[series] - {"le"}) for series in names(query)}
        selected = {label for inside in re.findall(r"\{([^}]*)\}", query) for label in re.findall(r"(\w+)=~", inside)}
        kept = {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
        told = set(re.findall(r"\{\{(\w+)\}\}", legend))
        assert selected | kept | told <= labels | {"le"}, query
        # What a legend names is left after summing up.
        assert not kept or told <= kept, query
        assert query.count("(") == query.count(")")


def test_variables_are_asked_of_what_is_written(dashboard: dict[str, Any], written: dict[str, set[str]]) -> None:
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard))) - {"__rate_interval", "__all"}
    assert used == set(variables)
    for name in ("run", "rank"):
        series, label = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", variables[name]["definition"]).groups()  # type: ignore[union-attr]
        assert label == name
        assert label in written[series]


def test_panels_have_places_of_their_own_and_the_chosen_source(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["description"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = [one[at] + one[size] <= other[at] or other[at] + other[size] <= one[at] for at, size in ("xw", "yh")]
        assert any(apart)
