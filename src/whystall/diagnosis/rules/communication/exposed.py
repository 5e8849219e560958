"""Collectives that the step waits for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.results import Step
from whystall.analysis.steadiness import steady
from whystall.diagnosis import evidence
from whystall.diagnosis.blocking import blocking
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.circumstances import circumstances
from whystall.diagnosis.detectors.collectives import (
    EXCHANGE,
    POINT_TO_POINT,
    Collectives,
    are,
    collectives,
    met_by_all,
    spent_ns,
    step_of,
    waited_and_moved_ns,
)
from whystall.diagnosis.detectors.issuers import issuer_of_most
from whystall.diagnosis.detectors.messages import loud_steps
from whystall.diagnosis.detectors.whole_units import Limits, WholeUnits, whole_units
from whystall.diagnosis.finding import Evidence, Per, Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.replay.graph import Mask

CAUSE: Final = cause_beside(__name__)
_LEAST_COMPUTE: Final = CAUSE.threshold("least_compute")
_BUCKET_BYTES: Final = CAUSE.threshold("bucket_bytes")
_LEAST_LEFT: Final = CAUSE.threshold("least_left")
_LEAST_UNMET: Final = CAUSE.threshold("least_unmet")
_OF_ISSUER: Final = CAUSE.threshold("of_issuer")
_UNITS: Final = Limits(
    units=int(CAUSE.threshold("most_units")),
    layers=int(CAUSE.threshold("least_layers")),
    first=CAUSE.threshold("first_unit"),
    large=CAUSE.threshold("large_unit"),
    bytes=CAUSE.threshold("most_of_bytes"),
    hidden=CAUSE.threshold("hidden_unit"),
    outside=CAUSE.threshold("outside_units"),
)
_OF_UNITS: Final = CAUSE.threshold("of_units")
_MOSTLY_WAITING: Final = CAUSE.threshold("mostly_waiting")


@dataclass(frozen=True, slots=True)
class _Times:
    """Communication per step and rank: the whole, its exposed part, and the part that compute hides."""

    total_ns: int
    exposed_ns: int
    hidden_share: float


def in_trace(case: Case) -> Iterator[Replayed]:
    """All collectives of all ranks, as if nothing had to wait for them."""
    if not any(_computes(rank) for rank in case.ranks):
        return
    nodes = np.zeros(len(case.replayed.start), np.bool_)
    stays = np.ones(len(nodes))
    units = _units(case)
    for at, rank in enumerate(case.ranks):
        found = collectives(case, rank)
        ours = ~are(found, POINT_TO_POINT)
        nodes |= found.nodes(case, ours)
        # Experts need exchanged data at once, and the last bucket of a step has nothing left to hide behind.
        movable = (found.node >= 0) & ours & ~are(found, EXCHANGE)
        left = np.where(_last_of_step(rank, found), _last_bucket(found), 0.0)
        if units:
            left = np.where(units[at].chosen, units[at].stays, left)
        stays[found.node[movable]] = left[movable]
    if nodes.any():
        yield _unwaited(case, nodes, stays, units[0] if units else None)


def _units(case: Case) -> list[WholeUnits]:
    """The units of each rank, where all ranks gather their parameters in so few that nothing hides them."""
    found = [whole_units(case, rank, collectives(case, rank), _UNITS) for rank in case.ranks]
    units = [one for one in found if one is not None]
    return units if len(units) == len(found) else []


def _last_bucket(found: Collectives) -> NDArray[np.float64]:
    """The share of each collective that would be in the last bucket; 1 if sizes are unknown."""
    return np.where(found.size > 0, np.minimum(_BUCKET_BYTES / np.maximum(found.size, 1), 1.0), 1.0)


def _computes(rank: RankCase) -> bool:
    """Whether a rank's compute was recorded: with collectives alone, it is unknown whether anything waits for them."""
    devices = rank.analysis.devices
    computing = sum(device.ledger.compute for device in devices)
    return computing >= _LEAST_COMPUTE * max(sum(device.window_ns for device in devices), 1)


def _has_all(case: Case) -> bool:
    """Whether all ranks of the job were recorded: then collectives lack twins for another reason."""
    recorded, world = _ranks(case)
    return 0 < world <= recorded


def _ranks(case: Case) -> tuple[int, int]:
    """The number of recorded ranks, and that of the job's; 0 where it is not known."""
    worlds = [rank.trace.metadata.world_size or 0 for rank in case.ranks]
    return len(case.ranks) + case.summarised.ranks, max(worlds, default=0)


def _unwaited(case: Case, nodes: Mask, stays: NDArray[np.float64], units: WholeUnits | None) -> Replayed:
    """``stays`` is the share of each node that the step still waits for, with ``units`` split into layers."""
    transfer = case.transfer_of
    meets = transfer >= 0
    stays[transfer[meets]] = stays[meets]
    times, blocks = _times(case), _blocks_most(case)
    steps, loud = loud_steps(case)
    alone = _lacks_ranks(case, nodes)
    on = f" on the mean of {len(case.ranks)} ranks" if len(case.ranks) > 1 else ""
    whole = "step's" if case.per == "step" else "recording's"
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=times.total_ns,
        evidence=(
            evidence.time("communication of a rank", times.total_ns, case.events_of(nodes), per=case.per),
            evidence.time("of it not behind compute", times.exposed_ns),
            evidence.share("of it hidden behind compute", times.hidden_share),
            *((evidence.text("the step waits most for", blocks),) if blocks else ()),
            *(() if units is None else _told_of(units, case.per)),
            *loud,
        ),
        steps=steps,
        removal=case.without(stays < 1, stays),
        ceiling=case.without(case.with_transfers(nodes)),
        method="replay: nothing waits for collectives but for the last bucket of a step, and for what experts exchange"
        if units is None
        else "replay: a unit for each layer; each pass waits for its first, and for what outlasts its compute",
        ranks=tuple(rank.rank for rank in case.ranks),
        remedy=_of_issuer(case, nodes, blocks) if units is None else CAUSE.remedies["whole_units"],
        uncertainty=0.35 if units is None else _OF_UNITS,
        confidence=0.75 if alone else 0.9,
        tier=3,
        largest_share=_hides_at_most(case, times, nodes),
        missing=("traces of the other ranks",) if alone and not _has_all(case) else (),
        could_be=("communication.straggler",) if alone else (),
        rivals=(
            "communication.small-messages",
            "communication.low-bandwidth",
            "communication.straggler",
            "host.launch-bound",
        ),
        # Collectives that run beside each other may take longer together than the step.
        if_hidden=f"communication takes {min(times.total_ns / max(case.step_ns, 1), 1.0):.0%} of the {whole} time{on}, "
        f"{times.hidden_share:.0%} of it hidden behind compute, and {_what_is_left(case, times, nodes)}",
    )


def _told_of(units: WholeUnits, per: Per) -> tuple[Evidence, ...]:
    return (
        evidence.count("gathers that bring all parameters", units.units, per=per),
        evidence.count("layers that could be units", units.layers.count),
    )


def _hides_at_most(case: Case, times: _Times, nodes: Mask) -> float:
    """The largest share of a step that overlap saves: what moves data still takes its time, behind compute or not."""
    waited, moved = waited_and_moved_ns(case, nodes)
    moves_ns = times.total_ns * moved / max(waited + moved, 1)
    return max(1 - moves_ns / max(case.step_ns, 1), 0.0)


def _of_issuer(case: Case, nodes: Mask, blocks: str) -> Remedy | None:
    """The remedy of what issues most of it, where that is no wrapper of the model; an engine issues its own.

    In a sharded job parameters that are gathered and gradients that are reduced need another remedy each.
    """
    holds = circumstances(case)
    if "when_serving" in holds:
        return None
    kind = issuer_of_most(case, nodes, least=_OF_ISSUER, by_time=True)
    if kind is None and "when_sharded" in holds and "reduce" in blocks:
        return CAUSE.remedies["sharded_gradients"]
    return CAUSE.remedies.get(kind or "")


def _blocks_most(case: Case) -> str:
    """The kind of collective whose transfers hold the step up most, by the replay; empty where none does."""
    return next((row.collective for row in blocking(case) if row.collective and row.blocking_ns), "")


def _what_is_left(case: Case, times: _Times, nodes: Mask) -> str:
    """The sentence on communication whose overlap gains nothing: only hidden communication does no harm."""
    if times.exposed_ns < _LEAST_LEFT * case.step_ns:
        return "its removal gains next to nothing: leave it"
    waited, moved = waited_and_moved_ns(case, nodes)
    if waited > _MOSTLY_WAITING * (waited + moved):
        return "most of it is waiting for ranks that come later: neither less to send nor a faster link shortens that"
    return "what nothing hides is needed at once: less to send or a faster link shortens it, overlap does not"


def _lacks_ranks(case: Case, nodes: Mask) -> bool:
    """Whether much of the time may be waiting for unrecorded ranks: the straggler is unknown then."""
    recorded, world = _ranks(case)
    if recorded == 1 or world > recorded:
        return True
    unmet = np.zeros(len(nodes), np.bool_)
    for rank in case.ranks:
        found = collectives(case, rank)
        unmet |= found.nodes(case, ~met_by_all(case, rank, found))
    return spent_ns(case, nodes & unmet) > _LEAST_UNMET * spent_ns(case, nodes)


def _times(case: Case) -> _Times:
    """Times of the steps that represent a device's recording, as its ledger has them; without steps of all of it."""
    total = exposed = hidden = 0
    for rank in case.ranks:
        for device in rank.analysis.devices:
            inside = steady(device.steps)
            if inside:
                own, bare = (sum(values) // len(inside) for values in zip(*map(_talks, inside), strict=True))
                total, exposed, hidden = total + own, exposed + bare, hidden + own - bare
            else:
                total += device.communication_ns
                exposed += device.exposed_communication_ns
                hidden += device.compute_communication_overlap_ns
    count = max(len(case.ranks), 1)
    return _Times(total // count, exposed // count, hidden / max(total, 1))


def _talks(step: Step) -> tuple[int, int]:
    """The communication that a step enqueued, and its exposed part."""
    return step.communication_ns, min(step.ledger.communication, step.communication_ns)


def _last_of_step(rank: RankCase, found: Collectives) -> NDArray[np.bool_]:
    """The last collective of each step."""
    step = step_of(rank, found)
    order = np.lexsort((found.start, step))
    last = np.zeros(len(step), np.bool_)
    if not len(step):
        return last
    last[order[np.append(np.diff(step[order]) != 0, True)]] = True
    return last & (step >= 0)


RULE = Rule(CAUSE, (Finder(in_trace, ("trace",)),))
