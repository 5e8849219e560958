"""Workers that leave no free core: for themselves, or for training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.input_waits import InputWaits, input_waits, starved_for
from whystall.diagnosis.detectors.samples import from_samples, without_others
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)
_LEAST_QUEUED: Final = CAUSE.threshold("least_queued")
_LEAST_CORES: Final = CAUSE.threshold("least_cores")
_MOST_OF_OTHERS: Final = CAUSE.threshold("most_of_others")


def in_samples(case: Case) -> Iterator[Sampled]:
    """Waits for workers that take the cores; the training thread lacks those as well."""
    for waits in input_waits(case):
        shares = waits.run.shares
        lacking = max(1 - waits.run.on_cpu_share - shares.get("input", 0.0) - shares.get("save", 0.0), 0.0)
        waited = evidence.share("of the steps' time the training thread waited for a core", lacking)
        if waits.starved == CAUSE.id and waits.starving is not None:
            yield starved_for(waits, waits.starving + lacking, waited)
        elif _takes_cores(case, waits):
            yield _crowding(case, waits, max(lacking, waits.run.queued_share or 0.0))


def _takes_cores(case: Case, waits: InputWaits) -> bool:
    """Whether batches come in time at the cost of training: it waits for a core that no other program uses."""
    cores, threads, run = case.facts.cores, case.facts.threads, waits.run
    if cores is None or threads is None or run.queued_share is None or case.facts.processes * threads > cores:
        return False
    busy = waits.workers * (run.worker_cpu_share or 0.0)
    return (
        busy >= _LEAST_CORES
        and busy + threads > cores
        and run.queued_share >= _LEAST_QUEUED
        and (run.other_cores or 0.0) <= _MOST_OF_OTHERS
    )


def _crowding(case: Case, waits: InputWaits, off: float) -> Sampled:
    run = waits.run
    return from_samples(
        CAUSE.id,
        run,
        off,
        saved=without_others(off, case.facts.threads or 1),
        evidence=(
            evidence.share("of the steps' time the training thread waited for a core", off),
            evidence.count("cores that the loader's workers use", waits.workers * (run.worker_cpu_share or 0.0)),
            evidence.count("workers of the loader", waits.workers),
            evidence.count("threads of torch", case.facts.threads or 1),
            evidence.count("cores", case.facts.cores or 1),
        ),
        method="samples: time off the core",
        confidence=0.75,
        detail="its workers take cores from training",
        rivals=("host.cpu-contention", "input.too-few-workers"),
    )


RULE = Rule(CAUSE, (Finder(in_samples, ("samples", "no_device")),))
