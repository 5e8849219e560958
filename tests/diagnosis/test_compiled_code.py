"""Code that torch compiled for a CPU, whose operators nobody records: it computes, and is no Python."""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnosis.cases import case_of, line, run

from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.finding import Finding
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.run_facts import RunFacts
from whystall.run_folder.samples import BEFORE
from whystall.testing import TraceBuilder, trace

CODE_NS, REST_NS = 8_000_000, 2_000_000


def steps(kind: str = "float", *, marked: bool = True) -> TraceBuilder:
    """Eight steps of 10 ms: code that torch compiled for 8 ms, as its marks show it, and a product."""
    built, at = trace(), 0
    types: dict[str, Any] = {"Input Dims": [[64, 64], [64]], "Input type": ["float", kind]}
    for number in range(8):
        built.step(number, at=at, lasts=CODE_NS + REST_NS)
        built.operator("Torch-Compiled Region: 0/0", at=at, lasts=CODE_NS)
        built.operator("CompiledFunction", at=at + 50_000, lasts=CODE_NS - 100_000, **types)
        if marked:
            built.annotation("## Call CompiledFxGraph fabc ##", at=at + 100_000, lasts=CODE_NS - 200_000)
        built.operator("aten::mm", at=at + CODE_NS, lasts=REST_NS)
        at += CODE_NS + REST_NS
    return built


def found(built: TraceBuilder, **sampled: Any) -> dict[str, Finding]:
    told = diagnose(case_of(built, facts=RunFacts(threads=2, cores=2), runs=[run(**sampled)]), RULES)
    assert told.failures == []
    return {finding.id: finding for finding in told.findings if finding.severity != "info"}


@pytest.mark.parametrize("marked", [False, True])
def test_compiled_code_is_not_the_jobs_python(*, marked: bool) -> None:
    """A look that waits for the lock finds the thread at the line behind the code, which holds it to its end."""
    places = [line(0.8, "y = after(x)", leaf=BEFORE), line(0.2, part="backward", at=9)]
    assert "host.python" not in found(steps(marked=marked), places=places, shares={"other": 0.8, "backward": 0.2})


def test_the_same_without_compiled_code_is() -> None:
    built = trace()
    for number in range(8):
        built.step(number, at=number * 10_000_000, lasts=10_000_000)
        built.operator("aten::mm", at=number * 10_000_000 + CODE_NS, lasts=REST_NS)
    places = [line(0.8, "y = after(x)", leaf=BEFORE), line(0.2, part="backward", at=9)]
    assert "host.python" in found(built, places=places, shares={"other": 0.8, "backward": 0.2})


@pytest.mark.parametrize(("kind", "fires"), [("double", True), ("float", False)])
def test_one_double_makes_doubles_of_compiled_code(kind: str, *, fires: bool) -> None:
    places = [line(1.0, part="forward")]
    told = found(steps(kind), places=places, shares={"forward": 1.0})
    assert ("compute.double-precision" in told) is fires
    if fires:
        gain = told["compute.double-precision"].gain
        assert gain is not None
        assert gain.floor > 1.1
