"""host.traced-python: a tool that follows Python makes it slow; without one Python is the job's own."""

from __future__ import annotations

import pytest
from tests.diagnosis.cases import found_in_runs, line, run

from whystall.run_folder.description import PythonTool
from whystall.run_folder.samples import CALLED


@pytest.mark.parametrize(
    ("tools", "fires"), [(("tracemalloc",), True), (("tracer",), True), (("profiler",), True), ((), False)]
)
def test_a_tool_that_is_on_is_told_before_the_python_that_it_slows(
    tools: tuple[PythonTool, ...], *, fires: bool
) -> None:
    found = found_in_runs(run(shares={"other": 0.7}, places=[line(0.68, "v[g] = v.get(g, 0) + 1")]), python_tools=tools)
    assert ("host.traced-python" in found) is fires
    assert next(iter(found)) == ("host.traced-python" if fires and tools != ("profiler",) else "host.python")


def test_tracemalloc_is_worth_its_share_of_python() -> None:
    """Python takes 2.4 to 7 times as long under it, and is 68 % of a step."""
    sampled = run(shares={"other": 0.7}, places=[line(0.68, "v[g] = v.get(g, 0) + 1")])
    found = found_in_runs(sampled, python_tools=("tracemalloc",))
    gain = found["host.traced-python"].gain
    assert gain is not None
    for times in (2.4, 5.3, 7.0):
        assert gain.floor <= 1 / (1 - 0.68 * (1 - 1 / times)) <= gain.ceiling
    own = found["host.python"].gain
    assert own is not None
    assert own.expected < 1 / (1 - 0.68 * 0.5)


@pytest.mark.parametrize("leaf", [CALLED, "torch.nn.functional:linear"])
def test_operators_are_not_slower_for_it(leaf: str) -> None:
    sampled = run(shares={"other": 0.7}, places=[line(0.68, "y = f(x)", leaf=leaf)])
    assert "host.traced-python" not in found_in_runs(sampled, python_tools=("tracemalloc",))
