"""All cases, in the order in which they are shown."""

from __future__ import annotations

from benchmarks.accuracy.simulator import (
    cases_compute,
    cases_controls,
    cases_host,
    cases_parallel,
    cases_queue,
    cases_recorded,
    cases_serving,
)
from benchmarks.accuracy.simulator.case import Case
from benchmarks.accuracy.simulator.draw import drawn

FAMILIES = (cases_host.cases, cases_compute.cases, cases_parallel.cases, cases_controls.cases)
BLIND_FAMILIES = (cases_queue.cases, cases_recorded.cases, cases_serving.cases)
"""Written by someone who had not seen the rules."""


def all_cases() -> tuple[Case, ...]:
    """Every case."""
    return tuple(case for family in (*FAMILIES, *BLIND_FAMILIES) for case in family())


def by_name(name: str) -> Case:
    """One case, of the registry or drawn."""
    return drawn(name) if name.startswith("drawn-") else next(case for case in all_cases() if case.name == name)
