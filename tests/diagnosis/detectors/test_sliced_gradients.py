"""compute.redundant-work: parts that are picked from a tensor one by one, in recordings of torch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.diagnosis.detectors.recordings import found_in, told_in

from whystall.diagnosis.finding import Finding

torch = pytest.importorskip("torch")


def of_parts(found: dict[str, Finding]) -> Finding | None:
    """What is said of parts."""
    one = found.get("compute.redundant-work")
    return one if one is not None and "one by one" in one.title else None


def worked(way: str) -> Callable[[], object]:
    """A step that picks parts."""
    torch.manual_seed(0)
    given, project = torch.randn(32, 64, 16), torch.nn.Linear(16, 128)
    table = torch.nn.Parameter(torch.randn(2000, 128))
    words = list(range(40))
    heads = [torch.nn.Linear(128, 3 * 128) for _ in range(12)]

    def over_time() -> None:
        x = project(given)
        sum(x[:, t].square().mean() for t in range(x.shape[1])).backward()

    def unbound() -> None:
        sum(part.square().mean() for part in project(given).unbind(1)).backward()

    def rows() -> None:
        sum(table[word].square().mean() for word in words).backward()

    def at_once() -> None:
        table[torch.tensor(words)].square().mean().backward()

    def queries_keys_values() -> None:
        x = project(given)
        for head in heads:
            whole = head(x).unflatten(-1, (3, 128))
            x = whole[:, :, 0] * whole[:, :, 1] + whole[:, :, 2]
        x.square().mean().backward()

    def looked_at() -> None:
        with torch.no_grad():
            x = project(given)
            sum(x[:, t].square().mean() for t in range(x.shape[1]))

    ways = {
        "over time": over_time,
        "unbound": unbound,
        "rows of a table": rows,
        "all rows at once": at_once,
        "three parts of each of twelve": queries_keys_values,
        "without gradients": looked_at,
    }
    return ways[way]


@pytest.mark.parametrize(("way", "parts"), [("over time", 64), ("rows of a table", 40)])
def test_parts_that_are_picked_one_by_one_are_worth_the_zeros_in_their_gradients(
    way: str, parts: int, tmp_path: Path
) -> None:
    finding = told_in(worked(way), tmp_path, of_parts, worth=1.3)
    assert finding.evidence[0].value == parts
    assert finding.remedy is not None
    assert "unbind" in (finding.remedy.patch or "")


@pytest.mark.parametrize("way", ["unbound", "all rows at once", "three parts of each of twelve", "without gradients"])
def test_others_are_none(way: str, tmp_path: Path) -> None:
    assert of_parts(found_in(worked(way), tmp_path)) is None
