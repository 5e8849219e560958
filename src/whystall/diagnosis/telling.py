"""Turns weighed candidates into findings: firing ones, unnamed costs, and large but hidden ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from whystall.diagnosis.alternatives import alternatives
from whystall.diagnosis.candidate import OF_ONE_RANK, Candidate, Code, Replayed, Standing, Valued, Weighed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import Cause
from whystall.diagnosis.circumstances import beside_compiled, fitting
from whystall.diagnosis.evidence import time
from whystall.diagnosis.finding import Alternative, Evidence, Finding, Gain, Per, Rejected, Remedy, Scope, Verification
from whystall.diagnosis.frameworks import in_words_of
from whystall.diagnosis.gains import MOST_SAVED, percent, saved_by, scaled, severity_of, speedup, together
from whystall.diagnosis.picture import in_step
from whystall.diagnosis.recording import USUAL_NS
from whystall.diagnosis.weighing import LEAST_SHARE, Verdicts, least_saved, saved_unrecorded, worth
from whystall.diagnosis.where import made_at
from whystall.replay.graph import Change

# Two lengths are the same with less between them than this share.
_LONGER: Final = 0.05
# A saving that exceeds the time spent by at most this share of it is the same amount.
_ROUNDED: Final = 0.05
# A cause shown although its removal gains nothing must be at least this share of the step.
_LARGE: Final = 0.2
# Others that are off their cores for this share of a cause's time wait for its rank.
_WAITED: Final = 0.5
# A line that explains this share of a cause is the one to change.
_MOST_OF_IT: Final = 0.5
_NO_ADVICE: Final = (
    "the cause is what to look at: the changes that whystall knows are written for PyTorch, which did not run this"
)
# A cause that only counts once others are gone is shown from this share on.
NEXT_SHARE: Final = 0.05
_LAUNCH_BOUND: Final = "host.launch-bound"
# At most this many lines that set an option come before the lines that take the time.
_MOST_SET: Final = 2


@dataclass(frozen=True, slots=True)
class Teller:
    """Turns candidates of a case into findings, in the words of their causes' entries."""

    case: Case
    causes: Mapping[str, Cause]
    circumstances: tuple[str, ...] = ()
    """Those of the job that remedies are chosen by (`whystall.diagnosis.circumstances`)."""

    def findings(self, weighed: Verdicts, standing: Sequence[Standing]) -> list[Finding]:
        """The findings, the most valuable first; hidden costs come last."""
        out = [self._fired(one, weighed) for one in weighed.firing]
        out += [self._follows_from(late, root) for late, root in weighed.follows]
        out += [self._without_remedy(one, one.candidate.if_hidden or "", one.floor) for one in weighed.nameless]
        out += [self._stands(one) for one in standing if one.cause not in {other.id for other in out}]
        return out + self._quiet(weighed)

    def _fired(self, one: Weighed, weighed: Verdicts) -> Finding:
        case, candidate = self.case, one.candidate
        cause = self.causes[candidate.cause]
        per = candidate.per(case)
        floor, ceiling, before = _as_remembered(case, one)
        floor = min(floor, max(_of_one_line(case, one), min(floor, LEAST_SHARE)))
        floor, guessed = _as_unrecorded(case, one, floor)
        instead = alternatives(case, one, weighed.quiet)
        rejected = [other for other in weighed.quiet if other.candidate.cause not in _causes(instead)]
        return Finding(
            id=cause.id,
            title=self._title(candidate),
            severity=severity_of(one.expected),
            scope=Scope(ranks=list(candidate.ranks), steps=list(candidate.steps)),
            attributed_ns_per_step=candidate.attributed_ns,
            gain=Gain(
                floor=speedup(floor),
                expected=speedup(one.expected),
                ceiling=speedup(ceiling),
                method=candidate.method,
                step_ns=self._step_ns(candidate) or None,
                of=per,
                adds=round(worth(one), 4) if worth(one) < one.expected else None,
            ),
            confidence=round(candidate.certainty(case), 2),
            evidence=[*self._evidence(candidate), *self._beyond(one, per), *before, *guessed],
            code=list(self._code(cause, candidate).lines),
            code_explains=candidate.code.explains,
            rejected=[*_rejected(one, rejected, per), *_beside(one, weighed.firing)],
            missing_signals=list(candidate.missing),
            could_be=list(candidate.could_be),
            remedy=self._remedy(cause, candidate),
            verify=_verification(cause, self.case.facts.command),
            in_step=in_step(case, candidate),
            instead=[self._instead(other) for other in instead],
        )

    def _instead(self, one: Weighed) -> Alternative:
        """Another repair of a finding's loss, with its own gain, lines and remedy."""
        cause, candidate = self.causes[one.candidate.cause], one.candidate
        floor, _ = _as_unrecorded(self.case, one, one.floor)
        return Alternative(
            id=cause.id,
            title=self._title(candidate),
            gain=Gain(
                floor=speedup(floor),
                expected=speedup(one.expected),
                ceiling=speedup(one.ceiling),
                method=candidate.method,
                step_ns=self._step_ns(candidate) or None,
                of=candidate.per(self.case),
            ),
            code=list(self._code(cause, candidate).lines),
            remedy=self._remedy(cause, candidate),
        )

    def _beyond(self, one: Weighed, per: Per) -> list[Evidence]:
        """Why the saving exceeds the time spent in it: its dependants end sooner as well."""
        candidate = one.candidate
        saved = round(candidate.span_ns(self.case) * one.expected)
        more = saved - candidate.attributed_ns
        if not isinstance(candidate, Replayed) or more <= _ROUNDED * candidate.attributed_ns:
            return []
        return [time("saved beyond its own time, in work that waits for it or goes with it", more, per=per)]

    def _step_ns(self, candidate: Valued) -> int:
        """The length that a gain relates to, as reported."""
        own = candidate.span_ns(self.case)
        if self.case.graph is None or own != self.case.step_ns:
            return own
        return self._usual_ns(candidate) or self.case.told_step_ns(candidate.ranks[0] if candidate.ranks else None)

    def _usual_ns(self, candidate: Valued) -> int:
        """The mean of a run's steps where recorded ones take clearly longer: gains are of these; else 0."""
        case = self.case
        rank = next((one for one in case.ranks if not candidate.ranks or one.rank == candidate.ranks[0]), None)
        run = case.sampled(rank) if rank is not None and case.has_steps and candidate.per(case) == "step" else None
        return int(run.mean_ns) if run is not None and run.mean_ns < (1 - _LONGER) * case.step_ns else 0

    def _evidence(self, candidate: Valued) -> list[Evidence]:
        """A candidate's evidence; where recorded steps take clearly longer than others, its times are of these."""
        facts = list(candidate.evidence)
        if not isinstance(candidate, Replayed) or not self._usual_ns(candidate):
            return facts
        return [
            structs.replace(one, what=f"in recorded steps: {one.what}")
            if one.unit == "ns" and one.per == "step"
            else one
            for one in facts
        ]

    def _remedy(self, cause: Cause, candidate: Candidate) -> Remedy:
        """The candidate's own remedy, or the cause's, in the words of the job's trainer."""
        remedy = beside_compiled(self.case, candidate.remedy or fitting(cause, self.circumstances))
        return in_words_of(self.case.facts.trainer, cause.id, remedy)

    def _code(self, cause: Cause, candidate: Candidate) -> Code:
        """The lines at which the program sets the deciding option, then the lines that cost most."""
        given = self.case.facts.settings
        first = next((name for name in cause.deciding(candidate.remedy) if name in given), None)
        return (
            candidate.code if first is None else made_at(list(dict.fromkeys(given[first]))[:_MOST_SET], candidate.code)
        )

    def _title(self, candidate: Valued) -> str:
        """The cause's title, with the details of this case, and the rank if it is one of several."""
        told = filter(None, [candidate.detail, _where(self.case, candidate)])
        return ": ".join(filter(None, [self.causes[candidate.cause].title, "; ".join(told)]))

    def _follows_from(self, one: Weighed, root: Weighed) -> Finding:
        """A candidate that is no cause of its own, with the finding that it follows from."""
        cause, rank = self.causes[root.candidate.cause], one.candidate.ranks[0]
        title = f"{self.causes[one.candidate.cause].title}: rank {rank}, because of {cause.id}"
        return structs.replace(self._without_remedy(one, title), gain=None, because=cause.id)

    def _stands(self, candidate: Standing) -> Finding:
        """A finding that costs something else than time."""
        cause = self.causes[candidate.cause]
        return Finding(
            id=cause.id,
            title=": ".join(filter(None, [cause.title, candidate.detail])),
            severity=candidate.severity,
            scope=Scope(ranks=list(candidate.ranks), steps=list(candidate.steps)),
            attributed_ns_per_step=candidate.attributed_ns,
            gain=None,
            confidence=candidate.confidence,
            evidence=list(candidate.evidence),
            code=list(self._code(cause, candidate).lines),
            code_explains=candidate.code.explains,
            rejected=[],
            missing_signals=list(candidate.missing),
            could_be=list(candidate.could_be),
            remedy=self._remedy(cause, candidate),
            verify=None if candidate.by_others else _verification(cause, self.case.facts.command),
            in_step=in_step(self.case, candidate),
            saves=candidate.saves,
        )

    def _perhaps_told(self, one: Weighed) -> Finding:
        """A possible cause: with the remedy to try, and the way to prove it."""
        cause, candidate = self.causes[one.candidate.cause], one.candidate
        return structs.replace(
            self._without_remedy(one, self._perhaps(one), one.floor),
            code=list(candidate.code.lines if candidate.nameless else self._code(cause, candidate).lines),
            code_explains=candidate.code.explains,
            remedy=None if candidate.nameless else self._remedy(cause, candidate),
            verify=None if candidate.nameless else _verification(cause, self.case.facts.command),
        )

    def _without_remedy(self, one: Weighed, title: str, floor: float = 0.0) -> Finding:
        """A finding without a remedy: its removal gains nothing by itself, or its kind is unknown."""
        candidate = one.candidate
        return Finding(
            id=candidate.cause,
            title=title[:1].upper() + title[1:],
            severity="info",
            scope=Scope(ranks=list(candidate.ranks), steps=list(candidate.steps)),
            attributed_ns_per_step=candidate.attributed_ns,
            gain=self._known_gain(one, floor),
            confidence=round(candidate.confidence, 2),
            evidence=list(candidate.evidence),
            code=[],
            rejected=[],
            missing_signals=list(candidate.missing),
            could_be=list(candidate.could_be),
            remedy=None,
            verify=None,
        )

    def _known_gain(self, one: Weighed, floor: float) -> Gain | None:
        """The gain of a quiet finding; ``None`` where nothing limits it, since the graph explains too little."""
        if one.ceiling >= MOST_SAVED:
            return None
        return Gain(
            floor=speedup(floor),
            expected=speedup(one.expected),
            ceiling=speedup(one.ceiling),
            method=one.candidate.method,
            of=one.candidate.per(self.case),
        )

    def _quiet(self, weighed: Verdicts) -> list[Finding]:
        """Findings that do not fire and are worth knowing.

        Possible causes, causes that count once the firing ones are gone, and large but hidden ones.
        """
        removed: Change | None = None
        for one in weighed.firing:
            removed = together(self.case, removed, one.candidate.removal)
        perhaps = [one for one in weighed.quiet if min(one.expected, one.adds) >= LEAST_SHARE]
        perhaps.sort(key=lambda one: -one.expected)  # in the verdict's order, which shows the first
        out = [self._perhaps_told(one) for one in perhaps]
        ahead = self._host_ahead(weighed, removed)
        for one in (one for one in weighed.quiet if one.expected < LEAST_SHARE):
            title = self.causes[one.candidate.cause].title
            if (follows := self._follows(one, removed)) >= NEXT_SHARE:
                first = weighed.firing[0].candidate.cause
                detail = f"once {first} is removed, removing this saves a further {percent(follows)}"
                out.append(self._without_remedy(one, f"{title}: {detail}"))
            elif self._is_of_the_device(one) and (follows := self._follows(one, ahead)) >= NEXT_SHARE:
                detail = f"once the host launches faster ({_LAUNCH_BOUND}), removing this saves {percent(follows)}"
                out.append(self._without_remedy(one, f"{title}: {detail}"))
            elif one.candidate.if_hidden is not None and self._is_large(one):
                out.append(self._without_remedy(one, one.candidate.if_hidden))
        return out

    def _perhaps(self, one: Weighed) -> str:
        """The title of a cause whose expected saving exceeds the least share, with its uncertainty."""
        candidate, limit = one.candidate, least_saved(self.case, one)
        if one.expected < limit:
            unsure = f"less than {percent(limit)} may be the spread of steps"
        else:
            unsure = f"{percent(one.floor)} to {percent(one.ceiling)}"
        title = f"{self.causes[candidate.cause].title}{': ' if candidate.detail else ''}{candidate.detail}"
        return perhaps_words(title, f"{percent(one.expected)} of the {candidate.per(self.case)}", unsure)

    def _follows(self, one: Weighed, removed: Change | None) -> float:
        """The saving of a cause, carefully estimated, once others are removed."""
        candidate = one.candidate
        if removed is None or candidate.removal is None or not isinstance(candidate, Replayed) or one.tried:
            return 0.0
        both = removed.then(candidate.removal, self.case.replayed)
        return saved_by(self.case, both, max(self.case.length_ns(removed), 1)) * (1 - candidate.uncertainty)

    def _host_ahead(self, weighed: Verdicts, removed: Change | None) -> Change | None:
        """The change to a host that launches faster; ``None`` where no such candidate is known."""
        every = [*weighed.firing, *weighed.nameless, *(late for late, _ in weighed.follows), *weighed.quiet]
        bound = next((one for one in every if one.candidate.cause == _LAUNCH_BOUND), None)
        return None if bound is None else together(self.case, removed, bound.candidate.removal)

    def _is_of_the_device(self, one: Weighed) -> bool:
        return self._is_large(one) and one.candidate.cause.startswith("compute.")

    def _is_large(self, one: Weighed) -> bool:
        return one.candidate.attributed_ns >= _LARGE * max(self.case.step_ns, 1)


def perhaps_words(title: str, saved: str, unsure: str) -> str:
    """A possible cause, short enough for a headline.

    >>> perhaps_words("Parameters are updated one by one", "15.2 % of the step", "5.5 % to 36.0 %")
    'Perhaps: Parameters are updated one by one (15.2 % of the step, 5.5 % to 36.0 %)'
    """
    return f"Perhaps: {title} ({saved}, {unsure})"


def _where(case: Case, candidate: Valued) -> str:
    """The only rank that a cause is at work on, and that the others wait for it where they were seen to."""
    if len(candidate.ranks) != 1 or not candidate.cause.startswith(OF_ONE_RANK):
        return ""
    [rank] = candidate.ranks
    if isinstance(candidate, Replayed):
        several, waits = len(case.ranks) > 1, bool((case.transfer_of >= 0).any())
    else:
        idle = [1 - run.on_cpu_share for run in case.runs if run.rank != rank]
        several = bool(idle)
        waits = min(idle, default=0.0) >= _WAITED * candidate.attributed_ns / max(candidate.span_ns(case), 1)
    return f"on rank {rank}{', for which the others wait' if waits else ''}" if several else ""


def _of_one_line(case: Case, one: Weighed) -> float:
    """The saving from changing its first line alone, where that explains most of it: a reader may change no more."""
    lines = one.candidate.code.lines
    share = lines[0].share if lines else None
    if share is None or share < _MOST_OF_IT:
        return one.floor
    return one.expected * share - one.candidate.noise(case)


def _as_remembered(case: Case, one: Weighed) -> tuple[float, float, list[Evidence]]:
    """The floor and the ceiling, widened to the gains of such remedies on this machine, and the fact that they are.

    It fires by its own floor: earlier trials remove no finding.
    """
    brought = case.facts.remedies.get(one.candidate.cause)
    if brought is None:
        return one.floor, one.ceiling, []
    least, most = (scaled(one.expected, share) for share in brought)
    told = f"{brought[0] * 100:.0f} to {brought[1] * 100:.0f} %"
    what = "such remedies brought on this machine, of the gain predicted"
    return min(one.floor, least), max(one.ceiling, most), [Evidence(what=what, value=told, unit="")]


def _as_unrecorded(case: Case, one: Weighed, floor: float) -> tuple[float, list[Evidence]]:
    """The floor, at most the saving in estimated unrecorded steps, and that saving as a fact."""
    saved = saved_unrecorded(case, one)
    if saved is None or saved >= floor:
        return floor, []
    what = f"speed-up if recording took the host {USUAL_NS // 1000} us an event, as it did where that was measured"
    return saved, [Evidence(what=what, value=speedup(saved), unit="x")]


def without_advice(finding: Finding) -> Finding:
    """The finding for a job that did not run on PyTorch: remedies and their risks are those of PyTorch."""
    if finding.remedy is None:
        return finding
    return structs.replace(finding, remedy=Remedy(text=_NO_ADVICE, patch=None, risk=None))


def _verification(cause: Cause, command: str | None) -> Verification:
    """How to prove a remedy: the job's own command beside that of a changed copy of the script.

    A module that runs by ``-m`` cannot be copied like that: there an environment variable makes the difference.
    """
    how = "--before 'COMMAND' --after 'COMMAND'"
    if command is not None and command.startswith("python -m "):
        how = f"--toggle CHANGED=0,1 -- {command}"
    elif command is not None:
        how = f"--before '{command}' --after '{_changed(command)}'"
    return Verification(command=f"whystall verify --finding {cause.id} {how}", expect=cause.proof)


def _changed(command: str) -> str:
    """The command of a changed copy of a script.

    >>> _changed("python train.py ARGS")
    'python train_changed.py ARGS'
    >>> _changed("torchrun --nproc-per-node 2 a/train.py")
    'torchrun --nproc-per-node 2 a/train_changed.py'
    >>> _changed("torchrun ARGS")
    'torchrun ARGS_CHANGED'
    """
    words = command.split(" ")
    script = next((at for at, word in enumerate(words) if word.endswith((".py", ".pyw")) and word[0] != "."), None)
    if script is None:
        return f"{command}_CHANGED" if command.endswith(" ARGS") else f"{command} CHANGED"
    stem, dot, suffix = words[script].rpartition(".")
    words[script] = f"{stem}_changed{dot}{suffix}"
    return " ".join(words)


def _causes(weighed: Sequence[Weighed]) -> set[str]:
    return {one.candidate.cause for one in weighed}


def _rejected(one: Weighed, quiet: Sequence[Weighed], per: Per) -> list[Rejected]:
    """The rivals that do not fire, each once, with its largest value."""
    rivals = [other for other in quiet if _is_rival(one, other)]
    most = {other.candidate.cause: other for other in sorted(rivals, key=lambda other: other.expected)}
    return [
        Rejected(id=other.candidate.cause, because=_why_quiet(other, per))
        for other in rivals
        if most[other.candidate.cause] is other
    ]


def _is_rival(one: Weighed, other: Weighed) -> bool:
    """Whether a finding names another as weighed against it; two ways to know one cause are no rivals."""
    return other.candidate.cause in one.candidate.rivals and other.candidate.cause != one.candidate.cause


def _why_quiet(one: Weighed, per: Per) -> str:
    saved = f"{percent(one.expected)} of the {per}"
    if one.adds < LEAST_SHARE <= one.floor:
        return f"its removal alone saves {saved}, but nothing more once this is removed"
    if one.tried:
        return f"an experiment went without it ({one.tried}) and saved {saved}"
    return f"its removal saves {saved}"


def _beside(one: Weighed, firing: Sequence[Weighed]) -> list[Rejected]:
    """The rivals that fire as well and are worth less."""
    return [
        Rejected(
            id=other.candidate.cause,
            because=f"it is at work as well, yet its removal saves {percent(other.expected)}, "
            f"not {percent(one.expected)}",
        )
        for other in firing
        if other is not one and _is_rival(one, other) and other.expected < one.expected
    ]
