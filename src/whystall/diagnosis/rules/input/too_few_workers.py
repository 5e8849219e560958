"""Workers that together make fewer batches than are used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np

from whystall.analysis.steadiness import mean_step
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.input_waits import WAITS, starved, waited_for_iterator
from whystall.diagnosis.detectors.loader import (
    LEFT_OF_FETCH,
    beside_training,
    fetches_from_workers,
    keeping_up,
    waiting_nodes,
    waits_for_another_loader,
    with_workers,
)
from whystall.diagnosis.detectors.samples import from_stack_samples, measured_runs
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of

CAUSE: Final = cause_beside(__name__)
_WORKERS: Final = 8
# With this many times the workers their storage, memory or lock may bind instead.
_MOST_TIMES: Final = 4
# A fetch hardly waits if it takes less than this share of the longest; where most do, single ones may be at fault.
_PROMPT: Final = 0.1
_MOSTLY_PROMPT: Final = 0.6
_SELDOM: Final = ("input.heavy-tail", "input.worker-restart")
# Workers that do not keep up may be too few, or lack cores or data: only samples of them show which.
_SLOW: Final = ("input.cpu-bound", "input.storage-bound")
_ANOTHER: Final = "an iterator waits for batches that other threads or processes make"
_MOVED_TO_DEVICE: Final = CAUSE.threshold("moved_to_device")
_EITHER: Final = (
    " A trace does not show the reason of the workers' waits: where no core is free for more of them, make samples "
    "cheaper; where storage is slow, move the data closer."
)


def in_trace(case: Case) -> Iterator[Replayed]:
    """Fetches from workers that the training thread waits for in most steps."""
    for rank in case.ranks:
        found = fetches_from_workers(case, rank)
        if found is None:
            continue
        begin, end, spikes = found
        usual = ~spikes
        if not np.count_nonzero(usual) or (end - begin)[usual].sum() <= 0:
            continue
        nodes = waiting_nodes(case, rank, begin[usual], end[usual])
        per_step = case.time_of(nodes)
        wait = per_step / max(case.step_ns, 1)
        idle = _idle_share(rank)
        waits = np.sort((end - begin)[usual])
        prompt = float(np.mean(waits < _PROMPT * waits[-1]))
        seldom = bool(prompt >= _MOSTLY_PROMPT)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time("waiting for the loader's workers", per_step, case.events_of(nodes), per=case.per),
                evidence.share(f"of the {case.per}", wait),
                *(() if idle is None else (evidence.share(f"of the {case.per} with the device idle meanwhile", idle),)),
                *((evidence.share("of the fetches that hardly wait", prompt),) if seldom else ()),
            ),
            removal=case.without(nodes, LEFT_OF_FETCH),
            ceiling=case.without(nodes),
            method="replay: batches ready when they are asked for",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.1,
            confidence=0.6 if seldom else 0.85,
            could_be=(*(_SELDOM if seldom else ()), *(() if case.runs else _SLOW)),
            rivals=("input.synchronous-loader", "host.python", "host.sync"),
            missing=() if case.runs else ("the workers' CPU time (samples of a watched run)",),
            if_hidden="the training thread waits for its loader, but the device has work queued meanwhile: leave it",
            remedy=_more_workers(case, wait, on_device=rank.on_device, also="" if case.runs else _EITHER),
        )


def in_trace_of_another_loader(case: Case) -> Iterator[Replayed]:
    """Waits in an iterator other than torch's loader, until threads or processes have made a batch."""
    for rank in case.ranks:
        nodes = waits_for_another_loader(case, rank)
        if case.sampled(rank) is not None or not nodes.any():
            continue
        per_step = case.time_of(nodes)
        idle = _idle_share(rank)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time(
                    "the training thread sleeps or waits for its next batch",
                    per_step,
                    case.events_of(nodes),
                    per=case.per,
                ),
                evidence.share(f"of the {case.per}", per_step / max(case.step_ns, 1)),
                *(() if idle is None else (evidence.share(f"of the {case.per} with the device idle meanwhile", idle),)),
            ),
            removal=case.without(nodes, LEFT_OF_FETCH),
            ceiling=case.without(nodes),
            method="replay: batches ready when they are asked for",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            # Work that moves from the host to the device takes time there.
            uncertainty=_MOVED_TO_DEVICE,
            confidence=0.85,
            detail=_ANOTHER,
            could_be=_SLOW,
            rivals=("input.synchronous-loader", "host.python", "host.sync"),
            missing=("the CPU time of what makes the batches",),
            if_hidden="the training thread waits for its input, but the device has work queued meanwhile: leave it",
            remedy=CAUSE.remedies["another_loader"],
        )


def _idle_share(rank: RankCase) -> float | None:
    """The share of the steady steps in which the rank's first device idles because the host waits for input."""
    means = [mean_step(device.steps) for device in rank.analysis.devices if rank.on_device]
    mean = means[0] if means else None
    return None if mean is None else mean.ledger.idle_input / max(mean.window_ns, 1)


def in_samples(case: Case) -> Iterator[Sampled]:
    """Waits for workers that neither lack cores nor wait for storage, as far as is known."""
    for found in starved(case, "input.too-few-workers"):
        busy = [run.worker_cpu_share for run in case.runs if run.rank in found.ranks]
        waiting = all(share is not None and share < WAITS for share in busy)
        wait = found.attributed_ns / max(found.step_ns or 0, 1)
        # This many more workers make batches faster by the same factor at most.
        most = 1 - _have(case) / _wanted(case, wait, waiting=waiting)
        remedy = _more_workers(case, wait, on_device=False, waiting=waiting)
        floor, expected, ceiling = found.saved
        yield replace(found, saved=(min(floor, most), min(expected, most), ceiling), remedy=remedy)


def in_samples_of_another_loader(case: Case) -> Iterator[Sampled]:
    """Lines that wait for the next item of an iterator other than torch's loader."""
    for run in measured_runs(case):
        lines, share = waited_for_iterator(run)
        if lines:
            rivals = ("host.python", "input.synchronous-loader")
            found = from_stack_samples(CAUSE.id, run, lines, share, "an iterator that waits for its next item", rivals)
            low, expected, ceiling = found.saved
            yield replace(
                found,
                saved=(min(low, share * (1 - _MOVED_TO_DEVICE)), expected, ceiling),
                detail=_ANOTHER,
                could_be=_SLOW,
                remedy=CAUSE.remedies["another_loader"],
            )


def _have(case: Case) -> int:
    return max((int(loader.get("workers") or 0) for loader in case.facts.loaders), default=0)


def _wanted(case: Case, wait: float, *, waiting: bool) -> int:
    """The number of workers that keep up, limited by cores; the entry's number where it is unknown.

    One more is always allowed: workers that take all cores are another cause.
    """
    have = _have(case)
    wanted = min(keeping_up(have, 1 - wait), _MOST_TIMES * have) if have else _WORKERS
    return max(beside_training(case, wanted, waiting=waiting), have + 1)


def _more_workers(case: Case, wait: float, *, on_device: bool, waiting: bool = False, also: str = "") -> Remedy:
    """The remedy for workers that are waited for during a share ``wait`` of the step."""
    wanted = _wanted(case, wait, waiting=waiting)
    found = with_workers(CAUSE, case, wanted, on_device=on_device, waiting=waiting, also=", prefetch_factor=4")
    return msgspec.structs.replace(found, text=f"{found.text}{also}")


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace",)),
        Finder(in_trace_of_another_loader, ("trace", "python_stacks")),
        Finder(in_samples, ("samples", "no_device")),
        Finder(in_samples_of_another_loader, ("samples", "no_device")),
    ),
)
