"""From a case to findings: every rule asked, every gain replayed, the causes weighed against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import msgspec

from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import Cause, causes
from whystall.diagnosis.experiment import bearing, saved_by
from whystall.diagnosis.finding import (
    Abstention,
    Diagnosis,
    Evidence,
    Finding,
    Gain,
    PathPart,
    Plan,
    Rejected,
    Remedy,
    Scope,
    Verification,
)
from whystall.diagnosis.rule import CPU_ERROR, MISSING, MODEL_ERROR, Candidate, Rule, Signal, available
from whystall.diagnosis.wording import evidence_of, of_what, told
from whystall.replay.graph import Change, play
from whystall.replay.outcome import length_ns, path_parts

# A finding fires when its floor is worth this share of the step, or twice the noise (DESIGN, "fire rule").
LEAST_SHARE: Final = 0.02
NOISES: Final = 2.0
# What is named although its removal gains nothing must be at least this share of the step.
_LARGE: Final = 0.2
# What only counts once other causes are gone is told from this share on.
NEXT_SHARE: Final = 0.05
_MOST_SAVED: Final = 0.9999
# The confidence in what an experiment showed.
_TRIED: Final = 0.97
Severity = Literal["info", "minor", "major", "critical"]
_SEVERITIES: Final[tuple[tuple[float, Severity], ...]] = ((0.20, "critical"), (0.10, "major"), (0.03, "minor"))


@dataclass(frozen=True, slots=True)
class _Weighed:
    """A candidate with the shares of the step that its removal saves."""

    candidate: Candidate
    floor: float
    expected: float
    ceiling: float
    adds: float
    """What it saves beyond the specific causes; for specific ones ``expected``."""
    tried: str = ""
    """What an experiment changed to go without it."""


def diagnose(case: Case, rules: Sequence[Rule]) -> Diagnosis:
    """The findings on a case, the most valuable first; what is hidden comes last."""
    have = available(case)
    candidates: list[Candidate] = []
    abstained: list[Abstention] = []
    failures: list[str] = []
    for rule in rules:
        missing = [signal for signal in rule.needs if signal not in have]
        if not missing:
            try:
                candidates += rule.find(case)
            except Exception as error:  # noqa: BLE001 - a recording that one rule stumbles over has others to say something
                failures.append(f"the rule for {rule.cause} failed ({type(error).__name__}: {error})")
        elif _concerns(missing, have):
            abstained.append(Abstention(id=rule.cause, missing_signals=[MISSING[signal] for signal in missing]))
    candidates = _joined(case, candidates)
    standing = _once([_standing(one) for one in candidates if one.standing is not None])
    weighed = _merged(_weighed(case, [one for one in candidates if one.standing is None]))
    least = max(LEAST_SHARE, NOISES * case.noise)
    firing = [one for one in weighed if one.floor >= least and one.adds >= LEAST_SHARE]
    firing.sort(key=lambda one: (-one.adds, one.candidate.cause))
    quiet = [one for one in weighed if one not in firing]
    unnamed = [one for one in firing if one.candidate.unnamed]
    firing = [one for one in firing if not one.candidate.unnamed]
    findings = [_finding(case, one, quiet, firing) for one in firing]
    findings += [_info(case, one, one.candidate.hidden or "", one.floor) for one in unnamed]
    findings += [one for one in standing if one.id not in {other.id for other in findings}]
    findings += _quiet_findings(case, quiet, firing)
    return Diagnosis(
        findings=findings,
        abstained=abstained,
        plan=_plan(case, firing),
        fidelity=case.fidelity.share if case.graph is not None else None,
        noise=case.noise if case.has_steps else None,
        failures=failures,
        critical_path=_critical_path(case),
    )


def _concerns(missing: Sequence[Signal], have: frozenset[Signal]) -> bool:
    """Whether a rule speaks of such a job at all: one of accelerators speaks of no job that launches nothing on any."""
    return "cpu_only" not in missing and ("device" not in missing or "launch_calls" in have)


def _critical_path(case: Case) -> list[PathPart]:
    if case.graph is None:
        return []
    whole, steps = max(case.window_ns, 1), max(case.steps, 1)
    return [
        PathPart(what=what, per_step_ns=ns // steps, share=round(ns / whole, 4))
        for what, ns in path_parts(case.graph, case.base).items()
    ]


def _joined(case: Case, candidates: Sequence[Candidate]) -> list[Candidate]:
    """One candidate of each cause and of each way to know it, on all ranks where it is at work: ranks wait for each other."""
    groups: dict[tuple[str, str, bool], list[Candidate]] = {}
    out: list[Candidate] = []
    for one in candidates:
        replayed_together = one.expected is not None and len(case.ranks) > 1
        if len(one.ranks) == 1 and (one.saved is not None or replayed_together):
            groups.setdefault((one.cause, one.detail, one.saved is not None), []).append(one)
        else:
            out.append(one)
    for group in groups.values():
        out += [_union(case, group)] if len({one.ranks for one in group}) > 1 else group
    return out


def _union(case: Case, group: Sequence[Candidate]) -> Candidate:
    worst = max(group, key=lambda one: (one.attributed_ns, [-rank for rank in one.ranks]))
    together = replace(
        worst,
        ranks=tuple(sorted({rank for one in group for rank in one.ranks})),
        confidence=min(one.confidence for one in group),
    )
    if worst.saved is None:
        return replace(
            together,
            expected=_all(case, [one.expected for one in group]),
            ceiling=_all(case, [one.ceiling for one in group]),
            least=_all(case, [one.least for one in group]),
        )
    # The step is as long as that of the slowest rank: removed on all ranks, a cause saves at least what it costs where it
    # costs least. As a rule the rank that it costs most is the one that the others wait for.
    shares = [one.saved for one in group if one.saved is not None]
    return replace(
        together,
        saved=(min(floor for floor, _, _ in shares), worst.saved[1], max(ceiling for _, _, ceiling in shares)),
    )


def _all(case: Case, changes: Sequence[Change | None]) -> Change | None:
    """All changes at once, or none where one is missing."""
    joined: Change | None = None
    for change in changes:
        if change is None:
            return None
        joined = _both(case, joined, change)
    return joined


def _merged(weighed: Sequence[_Weighed]) -> list[_Weighed]:
    """One of each cause and rank: what samples measured over the whole run goes before what was replayed of a part.

    The evidence of both is kept.
    """
    out: list[_Weighed] = []
    for one in weighed:
        at = next((at for at, other in enumerate(out) if _same(one.candidate, other.candidate)), None)
        if at is None:
            out.append(one)
            continue
        # Samples go before a replay; of two replays the one that explains more.
        first, second = sorted((one, out[at]), key=lambda each: (each.candidate.saved is None, -each.expected))
        candidate = replace(
            first.candidate,
            evidence=(*first.candidate.evidence, *second.candidate.evidence),
            code=first.candidate.code or second.candidate.code,
            expected=first.candidate.expected or second.candidate.expected,
            hidden=first.candidate.hidden or second.candidate.hidden,
            ranks=tuple(sorted({*first.candidate.ranks, *second.candidate.ranks})),
        )
        out[at] = replace(first, candidate=candidate)
    return out


def _same(one: Candidate, other: Candidate) -> bool:
    """Whether both tell of the same: the same cause on the same ranks, or on some of those that the other way finds."""
    if (one.cause, one.unnamed) != (other.cause, other.unnamed):
        return False
    ranks, others = set(one.ranks), set(other.ranks)
    if (one.saved is None) == (other.saved is None):
        return ranks == others
    return ranks <= others or others <= ranks


def _standing(candidate: Candidate) -> Finding:
    """A finding that costs something else than time."""
    cause = causes()[candidate.cause]
    return Finding(
        id=cause.id,
        title=cause.title,
        severity=candidate.standing or "info",
        scope=Scope(ranks=list(candidate.ranks), steps=list(candidate.steps)),
        attributed_ns_per_step=candidate.attributed_ns,
        gain=None,
        confidence=candidate.confidence,
        evidence=list(candidate.evidence),
        code=list(candidate.code),
        rejected=[],
        missing_signals=list(candidate.missing),
        could_be=list(candidate.could_be),
        remedy=Remedy(text=cause.remedy, patch=cause.patch, risk=cause.risk),
        verify=_verification(cause),
    )


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """The first of each cause and rank: one that a trace shows comes before what samples say of it."""
    first = {(one.id, *one.scope.ranks): one for one in reversed(findings)}
    return [one for one in findings if first[one.id, *one.scope.ranks] is one]


def _weighed(case: Case, candidates: Sequence[Candidate]) -> list[_Weighed]:
    """All candidates weighed, tier by tier: a general cause counts for what it adds once the specific ones are gone."""
    least = max(LEAST_SHARE, NOISES * case.noise)
    removed: Change | None = None
    out: list[_Weighed] = []
    for tier in sorted({one.tier for one in candidates}):
        found = [_weigh(case, one, removed) for one in candidates if one.tier == tier]
        for one in found:
            if one.floor >= least and one.adds >= LEAST_SHARE:
                removed = _both(case, removed, one.candidate.expected)
        out += found
    return out


def _both(case: Case, one: Change | None, other: Change | None) -> Change | None:
    if one is None or other is None:
        return other if one is None else one
    return one.then(other, case.replayed)


def _weigh(case: Case, candidate: Candidate, removed: Change | None = None) -> _Weighed:
    return _by_experiment(case, _as_recorded(case, candidate, removed))


def _by_experiment(case: Case, one: _Weighed) -> _Weighed:
    """A cause that a further run of the job went without counts for what that run showed."""
    candidate = one.candidate
    experiment = bearing(case.facts.experiments, candidate.cause)
    step_ns = candidate.step_ns or case.step_ns
    # Runs that are short may never come to what happens now and then: then they say nothing of it.
    if experiment is None or (experiment.base_step_ns or 0) < step_ns * (1 - one.expected / 2):
        return one
    floor, expected, ceiling = saved_by(experiment)
    method = f"experiment: {experiment.change}"
    if experiment.name == "input":  # it goes without making batches at all, which is more than any remedy does
        floor, expected, ceiling = min(one.floor, ceiling), min(one.expected, ceiling), min(one.ceiling, ceiling)
        method = f"{candidate.method}; an experiment sets the limit: {experiment.change}"
    seen = Evidence(what=f"speed-up in an experiment, {experiment.change}", value=experiment.speedup or 1.0, unit="x")
    return replace(
        one,
        candidate=replace(candidate, evidence=(*candidate.evidence, seen), method=method, confidence=_TRIED),
        floor=floor,
        expected=expected,
        ceiling=ceiling,
        adds=expected if candidate.saved is not None else min(one.adds, expected),
        tried=experiment.change,
    )


def _as_recorded(case: Case, candidate: Candidate, removed: Change | None = None) -> _Weighed:
    if candidate.saved is not None:
        usual = case.facts.remedies.get(candidate.cause, 1.0)
        floor, expected, ceiling = (min(max(share, 0.0), _MOST_SAVED) for share in candidate.saved)
        floor, expected = _scaled(floor, min(usual, 1.0)), _scaled(expected, usual)
        return _Weighed(candidate, min(floor, expected), expected, max(ceiling, expected), expected)
    before = max(case.window_ns, 1)
    again = candidate.recurrence
    weight = again.weight(case.steps) if again is not None else 1.0
    usual = case.facts.remedies.get(candidate.cause, 1.0)
    expected = min(_scaled(_saved(case, candidate.expected, before), weight * usual), candidate.most)
    ceiling = _scaled(_saved(case, candidate.ceiling, before), weight) if candidate.ceiling is not None else expected
    unsure = case.noise + (1 - case.fidelity.share)
    # What happens now and then was seen so often; another window may have seen it more or less.
    counted = 0.5 / max(again.count, 1) ** 0.5 if again is not None else 0.0
    floor = _scaled(expected, 1 - max(candidate.uncertainty, counted)) - unsure
    if candidate.least is not None:
        floor = min(floor, _saved(case, candidate.least, before) - unsure)
    adds = expected
    if removed is not None and candidate.expected is not None:
        left = length_ns(case.replayed, play(case.replayed, removed))
        adds = min(_saved(case, removed.then(candidate.expected, case.replayed), max(left, 1)), candidate.most)
    ceiling = max(min(ceiling, candidate.most), _scaled(expected, 1 + counted))
    model = MODEL_ERROR if any(rank.on_device for rank in case.ranks) else CPU_ERROR
    ceiling = min(ceiling + (1 - ceiling) * (unsure + model), _MOST_SAVED)
    return _Weighed(candidate, max(floor, 0.0), expected, ceiling, adds)


def _scaled(saved: float, factor: float) -> float:
    """The share saved when the time to save, against what stays, is ``factor`` times as much."""
    ratio = saved / (1 - saved) * factor
    return ratio / (1 + ratio)


def _saved(case: Case, change: Change | None, before: int) -> float:
    if change is None:
        return 0.0
    after = length_ns(case.replayed, play(case.replayed, change))
    return min(max(1 - after / before, 0.0), _MOST_SAVED)


def _speedup(saved: float) -> float:
    return round(1 / (1 - min(saved, _MOST_SAVED)), 4)


def severity_of(saved: float) -> Severity:
    """The severity of a cause by the share of speed that its removal adds (reference: causes.md)."""
    gained = 1 / (1 - saved) - 1
    return next((name for limit, name in _SEVERITIES if gained >= limit), "info")


def _finding(case: Case, one: _Weighed, quiet: Sequence[_Weighed], firing: Sequence[_Weighed]) -> Finding:
    candidate = one.candidate
    cause = causes()[candidate.cause]
    return Finding(
        id=cause.id,
        title=f"{cause.title}{': ' if candidate.detail else ''}{candidate.detail}",
        severity=severity_of(one.expected),
        scope=Scope(ranks=list(candidate.ranks), steps=list(candidate.steps)),
        attributed_ns_per_step=candidate.attributed_ns,
        gain=Gain(
            floor=_speedup(one.floor),
            expected=_speedup(one.expected),
            ceiling=_speedup(one.ceiling),
            method=candidate.method,
            step_ns=candidate.step_ns or case.step_ns or None,
            of=of_what(case, candidate),
        ),
        confidence=round(candidate.confidence * case.fidelity.share, 2),
        evidence=[*evidence_of(case, candidate), *_rank_reason(one)],
        code=list(candidate.code),
        rejected=[
            msgspec.structs.replace(other, because=told(case, candidate, other.because))
            for other in (*_rejected(candidate, quiet), *_below(one, firing))
        ],
        missing_signals=list(candidate.missing),
        could_be=list(candidate.could_be),
        remedy=Remedy(text=cause.remedy, patch=cause.patch, risk=cause.risk),
        verify=_verification(cause),
    )


def _rank_reason(one: _Weighed) -> list[Evidence]:
    """Why a general cause may stand below a specific one that gains less by itself."""
    if one.adds >= one.expected:
        return []
    what = "saved of the step once the more specific causes are removed, by which it ranks"
    return [Evidence(what=what, value=round(one.adds, 4), unit="share")]


def _verification(cause: Cause) -> Verification:
    command = f"whystall verify --finding {cause.id} --before 'COMMAND' --after 'COMMAND'"
    return Verification(command=command, expect=cause.proof)


def _rejected(candidate: Candidate, quiet: Sequence[_Weighed]) -> list[Rejected]:
    """The rivals that do not fire, each once: for what it is worth where it is worth most."""
    rivals = [other for other in quiet if other.candidate.cause in candidate.rivals]
    most = {other.candidate.cause: other for other in sorted(rivals, key=lambda other: other.expected)}
    return [
        Rejected(id=other.candidate.cause, because=_why_quiet(other))
        for other in rivals
        if most[other.candidate.cause] is other
    ]


def _why_quiet(one: _Weighed) -> str:
    if one.adds < LEAST_SHARE <= one.floor:
        return f"its removal alone saves {_percent(one.expected)} of the step, but nothing more once this is removed"
    if one.tried:
        return f"an experiment went without it ({one.tried}) and saved {_percent(one.expected)} of the step"
    return f"its removal saves {_percent(one.expected)} of the step"


def _below(one: _Weighed, firing: Sequence[_Weighed]) -> list[Rejected]:
    return [
        Rejected(
            id=other.candidate.cause,
            because=f"it is at work as well, yet its removal saves {_percent(other.expected)}, not {_percent(one.expected)}",
        )
        for other in firing
        if other is not one and other.candidate.cause in one.candidate.rivals and other.expected < one.expected
    ]


def _quiet_findings(case: Case, quiet: Sequence[_Weighed], firing: Sequence[_Weighed]) -> list[Finding]:
    """What does not fire and should be known: what counts once the firing causes are gone, and what is large but hidden."""
    removed: Change | None = None
    for one in firing:
        removed = _both(case, removed, one.candidate.expected)
    left = length_ns(case.replayed, play(case.replayed, removed)) if removed is not None else 0
    out = []
    for one in quiet:
        candidate = one.candidate
        follows = 0.0
        if removed is not None and candidate.expected is not None and candidate.saved is None and not one.tried:
            both = removed.then(candidate.expected, case.replayed)
            follows = _saved(case, both, max(left, 1)) * (1 - candidate.uncertainty)
        if follows >= NEXT_SHARE and one.expected < LEAST_SHARE:
            detail = f"it counts once {firing[0].candidate.cause} is removed, and would then save {_percent(follows)}"
            out.append(_info(case, one, f"{causes()[candidate.cause].title}: {detail}"))
        elif candidate.hidden is not None and _is_large(case, one) and one.expected < LEAST_SHARE:
            out.append(_info(case, one, candidate.hidden))
    return out


def _is_large(case: Case, one: _Weighed) -> bool:
    return one.candidate.attributed_ns >= _LARGE * max(case.step_ns, 1)


def _info(case: Case, one: _Weighed, title: str, floor: float = 0.0) -> Finding:
    """What is said without a remedy: its removal gains nothing by itself, or nobody can tell what it is."""
    candidate = one.candidate
    return Finding(
        id=candidate.cause,
        title=told(case, candidate, title[:1].upper() + title[1:]),
        severity="info",
        scope=Scope(ranks=list(candidate.ranks), steps=list(candidate.steps)),
        attributed_ns_per_step=candidate.attributed_ns,
        gain=_known_gain(case, one, floor),
        confidence=round(candidate.confidence, 2),
        evidence=evidence_of(case, candidate),
        code=[],
        rejected=[],
        missing_signals=list(candidate.missing),
        could_be=list(candidate.could_be),
        remedy=None,
        verify=None,
    )


def _known_gain(case: Case, one: _Weighed, floor: float) -> Gain | None:
    """The gain of what is only told; none where nothing limits it, since the graph explains too little."""
    if one.ceiling >= _MOST_SAVED:
        return None
    return Gain(
        floor=_speedup(floor),
        expected=_speedup(one.expected),
        ceiling=_speedup(one.ceiling),
        method=one.candidate.method,
        of=of_what(case, one.candidate),
    )


def _plan(case: Case, firing: Sequence[_Weighed]) -> Plan | None:
    """All firing causes removed one after the other, the best next each time; gains of sets are replayed, not added.

    What samples found to be worth less than its replay counts for so much less in the plan.
    """
    left = [one for one in firing if one.candidate.expected is not None]
    if len(left) < 2:
        return None
    whole = max(case.window_ns, 1)
    order: list[str] = []
    gains: list[float] = []
    change: Change | None = None
    replayed = reached = 0.0
    weight = {id(one): _sampled_weight(case, one) for one in left}
    while left:
        tried = [(_saved(case, _both(case, change, one.candidate.expected), whole), one) for one in left]
        saved, best = max(tried, key=lambda pair: ((pair[0] - replayed) * weight[id(pair[1])], pair[1].candidate.cause))
        left.remove(best)
        added = max(saved - replayed, 0.0) * weight[id(best)]
        if order and added < LEAST_SHARE * (1 - reached):
            continue
        change, replayed = _both(case, change, best.candidate.expected), saved
        reached += added
        order.append(best.candidate.cause)
        gains.append(_speedup(reached))
    return Plan(causes=order, speedups=gains) if len(order) > 1 else None


def _sampled_weight(case: Case, one: _Weighed) -> float:
    """What samples of the whole run found a cause to be worth, of what its replay says of the recorded steps; at most 1."""
    if one.candidate.saved is None:
        return 1.0
    alone = _saved(case, one.candidate.expected, max(case.window_ns, 1))
    return min(one.expected / alone, 1.0) if alone > 0 else 0.0


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


__all__ = ["Evidence", "diagnose", "severity_of"]
