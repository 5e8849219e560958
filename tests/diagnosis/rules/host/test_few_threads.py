"""host.few-threads: cores that stand idle beside a job on CPUs fire it; used ones and small operators do not."""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import case_of, run, told_of
from tests.diagnosis.jobs import shaped

from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.finding import Finding
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.run_facts import RunFacts
from whystall.testing import TraceBuilder, trace

LONG_NS: Final = 8_000_000
PAUSE_NS: Final = 2_000_000


def steps(operator_ns: int = LONG_NS, times: int = 1) -> TraceBuilder:
    """Eight steps of 10 ms, of which 8 are in operators."""
    built, at = trace(), 0
    for number in range(8):
        begin = at
        for _ in range(times):
            built.operator("aten::mm", at=at, lasts=operator_ns, **shaped([512, 512], [512, 512]))
            at += operator_ns
        at += PAUSE_NS
        built.step(number, at=begin, lasts=at - begin)
    return built


def found(
    *built: TraceBuilder, threads: int = 1, cores: int = 2, processes: int = 1, **sampled: Any
) -> dict[str, Finding]:
    runs = [run(rank=rank, **{"other_cores": 0.0, **sampled}) for rank in range(len(built))]
    facts = RunFacts(threads=threads, cores=cores, processes=processes)
    told = diagnose(case_of(*built, facts=facts, runs=runs), RULES)
    assert told.failures == []
    return {finding.id: finding for finding in told.findings}


def test_one_thread_beside_an_idle_core_is_worth_knowing_and_no_more() -> None:
    """One thread may be meant: a healthy job is not alarmed, and other causes go first."""
    finding = found(steps())["host.few-threads"]
    assert (finding.severity, finding.gain) == ("info", None)
    assert finding.evidence[1].value == pytest.approx(2)
    assert finding.remedy is not None
    assert finding.remedy.patch == "torch.set_num_threads(2)"


def test_of_many_cores_all_are_told() -> None:
    finding = found(steps(), cores=64)["host.few-threads"]
    assert finding.remedy is not None
    assert finding.remedy.patch == "torch.set_num_threads(64)"


def test_ranks_share_the_cores() -> None:
    two = steps(), steps()
    assert "host.few-threads" in found(*two, processes=2, cores=4)
    assert "host.few-threads" not in found(*two, processes=2, cores=2)


@pytest.mark.parametrize(
    ("built", "more"),
    [
        pytest.param(steps(), {"threads": 2}, id="a thread for each core"),
        pytest.param(steps(), {"other_cores": 0.7}, id="other processes use the core"),
        pytest.param(steps(), {"workers": 2, "worker_cpu_share": 0.5}, id="workers of a loader use it"),
        pytest.param(steps(), {"thread_cores": 0.5}, id="a thread of the user's uses it"),
        pytest.param(steps(40_000, 200), {}, id="operators that no thread would be woken for"),
    ],
)
def test_cores_that_are_used_and_small_operators_are_none(built: TraceBuilder, more: dict[str, Any]) -> None:
    assert "host.few-threads" not in found(built, **more)


def test_without_a_watched_run_nobody_knows_the_cores() -> None:
    assert "host.few-threads" not in told_of(steps())
