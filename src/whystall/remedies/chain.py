"""The loop of ``whystall fix``: find the cause, try an edit in a copy, keep it where it helps, and begin again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from whystall.analysis.paired import Interval, Paired, paired
from whystall.diagnosis.causes import Statistic
from whystall.diagnosis.finding import Finding, Gain
from whystall.errors import UsageError, WhystallError
from whystall.remedies.edits import Edit, Equality, Proposal, applied, edits, proposals
from whystall.remedies.outputs import compare_outputs
from whystall.remedies.program import Program, patch, shown
from whystall.remedies.results import BUSY_CORES, Attempt, Fixes
from whystall.remedies.runs import LONGEST_S, ChangedError, Runs, Whole
from whystall.verify.tune.losses import compare, spread_of
from whystall.verify.tune.results import Losses, Outcome, Seen, Settings

_PAIRS: Final = (3, 6)
"""The interval is computed after the first number of pairs, and once more after the second."""
_SLOWER: Final = 1.1
"""An edit with which every run so far was this many times as slow is given up: as `tune` does."""
_QUIET: Final = 1.1
"""Where runs of one program differ by more, three pairs are too few."""
_WIDEST: Final = 2.0
"""An interval whose ends are further apart says nothing about the size of a gain."""
_IN_STEPS: Final = 0.5
"""The share of steps in the time from the first step on, below which whole runs are measured."""
_LEAST: Final = 1.01
"""A smaller speed-up is not worth a change of the code."""
_SET_UP_S: Final = 20.0
"""A guess of the time before a run's first step."""
_TOLERANCE: Final = 0.01
"""How far losses may differ, as for `verify` and `tune`."""
_MEMORY, _MEMORY_KIB = 1.1, 64 << 10
"""Memory may grow by either: allocators and imports differ by some MiB from run to run."""
_MOST_SPREAD: Final = 0.05
"""Where losses of one program differ by more from run to run, they cannot show that another computes the same."""
_FEWER_STEPS: Final = 0.98
"""Steps are counted from the first one heard, which may be one later."""
# How losses are compared, in the words of `tune`: by settings that change losses alike.
_SETTINGS: Final[Mapping[Equality, Settings]] = {
    "exact": {},
    "rounding": {},
    "statistical": {"num_workers": 1},
    "tf32": {"matmul_precision": "high"},
    "bf16": {"precision": "bf16"},
}


class _EndError(WhystallError):
    """The loop cannot go on; what was kept so far stays."""


class NotRunningError(WhystallError):
    """The command as given fails, or shows nothing that could be fixed."""

    exit_code = 1


@dataclass(frozen=True)
class _Wanted:
    """A cause that was found, with the gain of its removal."""

    cause: str
    gain: Gain | None
    outside_steps: bool
    by: Statistic | None = None
    """The statistic that decides; ``None``: the cause's."""


@dataclass
class _Tried:
    """The runs of a proposal's program against those of the program before it."""

    before: list[Outcome] = field(default_factory=list)
    after: list[Outcome] = field(default_factory=list)
    before_s: list[float] = field(default_factory=list)
    after_s: list[float] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    changed_output: str | None = None

    @property
    def is_slower(self) -> bool:
        """Whether each pair says so."""
        return all(after > _SLOWER * before for before, after in zip(self.before_s, self.after_s, strict=True))

    @property
    def other_cores(self) -> float | None:
        """The cores that other programs kept busy, on average."""
        known = [one.other_cores for one in (*self.before, *self.after) if one.other_cores is not None]
        return sum(known) / len(known) if known else None

    @property
    def found(self) -> Paired | None:
        return paired(self.before_s, self.after_s) if len(self.before_s) >= 2 else None


@dataclass
class Chain:
    """One loop over a program. ``known`` are attempts of earlier loops; ``keep`` is called with each new one."""

    runs: Runs
    statistic: Callable[[str], Statistic]
    most: int = 5
    budget_s: float = 1200.0
    numerics: bool = False
    known: Sequence[Attempt] = ()
    keep: Callable[[Attempt], None] = lambda _one: None
    progress: Callable[[str], None] = lambda _text: None
    program: Program | None = None
    """The program as it stands now, with all edits that were kept."""
    _began: float = field(default_factory=time.monotonic)
    _attempts: list[Attempt] = field(default_factory=list)
    _without: dict[str, None] = field(default_factory=dict)
    _late: bool = False

    def follow(self, first: Program) -> Fixes:
        """Tries edits until nothing is left to try, or the budget is used. Raises `NotRunningError`."""
        self.progress("watching the program as it is")
        whole = self._first(first)
        self.program = self._kept_before(_on_its_machine(first, whole))
        tried = 0
        because = "the number of edits is reached (--most)"
        try:
            if self._attempts:
                self.progress("watching it with the edits that were kept before")
                whole = self._first(self.program)
            while tried < self.most:
                left = iter(self._proposals(self.program, whole))
                found = next((one for one in left if self._has_time(whole, *one)), None)
                if found is None:
                    because = "the time is used up" if self._late else "no edit is left to try"
                    break
                attempt, after = self._attempt(self.program, whole, *found)
                self._add(attempt)
                tried += 1
                if after is not None:
                    self.program, whole = _on_its_machine(found[0].program, after), after
        except (_EndError, ChangedError) as error:
            because = str(error)
        return self._result(first, self.program, because)

    def _kept_before(self, program: Program) -> Program:
        """The program with the edits that an earlier loop over it kept, one after the other."""
        by_name = {edit.name: edit for edit in edits()}
        while True:
            digest = program.digest
            known = next((one for one in self.known if one.verdict == "kept" and one.program == digest), None)
            changed = None if known is None or known.edit not in by_name else applied(by_name[known.edit], program)
            if known is None or changed is None:
                return program
            self._attempts.append(known)
            program = changed

    def judge(self, first: Program, changed: Program, name: str) -> Fixes:
        """Proves a change that somebody else made: kept or rejected by the same measure as an edit."""
        self.progress("watching the program as it is")
        whole = self._first(first)
        cause = next((one.cause for one in _wanted(whole)), "none")
        wanted = _Wanted(cause, None, outside_steps=False, by="mean")
        edit = Edit(name=name, says="the change as given", causes=[], equality="rounding", sites=[])
        attempt, after = self._attempt(first, whole, Proposal(edit, cause, changed), wanted)
        self._add(attempt)
        return self._result(first, changed if after is not None else first, "the change was tried")

    def _result(self, first: Program, program: Program, because: str) -> Fixes:
        self.program = program
        return Fixes(
            attempts=self._attempts,
            patch=shown(patch(first, program)),
            command=list(program.command) if program.command != first.command else [],
            speedup=_product([one for one in self._attempts if one.verdict == "kept"]),
            without_edit=list(self._without),
            ended_because=because,
        )

    def _first(self, program: Program) -> Whole:
        whole = self.runs.whole(program, record=True)
        if whole.exit_code != 0:
            end = "\n".join(whole.output.splitlines()[-5:])
            raise NotRunningError(
                f"the command as given ended with exit code {whole.exit_code}: nothing is tried\n{end}"
            )
        if whole.diagnosed is None:
            raise NotRunningError("the command as given shows no steps: nothing is tried")
        return whole

    def _has_time(self, whole: Whole, proposal: Proposal, wanted: _Wanted) -> bool:
        """Whether the pairs of an attempt, and the run that follows, still fit into the budget."""
        used = time.monotonic() - self._began
        in_full = proposal.edit.whole or wanted.outside_steps
        each = whole.seconds if in_full else min(whole.seconds, LONGEST_S + _SET_UP_S)
        fits = used + 2 * _PAIRS[0] * each + whole.seconds < self.budget_s
        self._late = self._late or not fits
        return fits

    def _proposals(self, program: Program, whole: Whole) -> Iterator[tuple[Proposal, _Wanted]]:
        """Edits that were not tried on this program, those of the most valuable causes first."""
        quiet = (one for one in self.known if (one.other_cores or 0.0) < BUSY_CORES)
        rejected = (one for one in quiet if one.verdict == "rejected")
        done = {(one.edit, one.program) for one in (*rejected, *self._attempts)}
        for wanted in _wanted(whole):
            any_edit = False
            for proposal in proposals(program, wanted.cause):
                any_edit = True
                if (proposal.edit.name, program.digest) in done:
                    continue
                if proposal.edit.numerics and not self.numerics:
                    because = "it may change what is computed: --allow numerics tries it"
                    self._add(_attempt(program, proposal, wanted, "proposed", because))
                    done.add((proposal.edit.name, program.digest))
                    continue
                yield proposal, wanted
            if not any_edit:
                self._without[wanted.cause] = None

    def _add(self, attempt: Attempt) -> None:
        self._attempts.append(attempt)
        self.keep(attempt)
        speed = "" if attempt.speedup is None else f", {attempt.speedup.ratio:.2f} times as fast"
        self.progress(f"{attempt.edit}: {attempt.verdict}{speed} ({attempt.because})")

    def _attempt(
        self, program: Program, whole: Whole, proposal: Proposal, wanted: _Wanted
    ) -> tuple[Attempt, Whole | None]:
        """An edit tried; with the run of the changed program where it is kept."""
        self.progress(f"trying {proposal.edit.name}: {proposal.edit.says} ({wanted.cause})")
        tried = _Tried()
        because, losses = self._measured(program, whole, proposal, wanted, tried)
        after = None
        if because is None:
            after = self._whole(proposal.program)
            because = "the whole run is not done in time" if after is None else _why_not(whole, after, proposal.edit)
            after = after if because is None else None
        found = tried.found
        attempt = _attempt(
            program,
            proposal,
            wanted,
            "kept" if because is None else "rejected",
            because or (_LOSSES[losses] if losses != "not compared" else "it changes no result"),
        )
        return msgspec.structs.replace(
            attempt,
            speedup=None if found is None else found.speedup,
            before_s=tried.before_s,
            after_s=tried.after_s,
            measured_by="runs" if wanted.outside_steps else "steps",
            losses=losses,
            memory_kib=_memory(tried),
            other_cores=None if tried.other_cores is None else round(tried.other_cores, 2),
        ), after

    def _whole(self, program: Program) -> Whole | None:
        """A recorded run to its end; ``None`` for one that takes too long."""
        try:
            return self.runs.whole(program, record=True)
        except ChangedError:
            raise
        except UsageError:
            return None

    def _measured(
        self, program: Program, whole: Whole, proposal: Proposal, wanted: _Wanted, tried: _Tried
    ) -> tuple[str | None, Losses]:
        """Why an edit is rejected, or ``None``; and whether the losses agree."""
        for pair in range(_PAIRS[1]):
            because = self._pair(program, proposal, wanted, tried, first_after=pair % 2 == 1)
            if because is not None:
                return because, "not compared"
            found = tried.found
            if found is not None and tried.is_slower:
                return f"a step is {1 / found.speedup.ratio:.2f} times as long", "not compared"
            if pair + 1 == _PAIRS[0] and found is not None and _is_clear(found, wanted.gain):
                break
        found = tried.found
        if found is not None and found.speedup.high > _WIDEST * found.speedup.low:
            return "other work on the machine hides it", "not compared"
        if found is None or not found.improved or found.speedup.ratio < _LEAST:
            floor = 1.0 if found is None else found.noise_floor
            return f"no gain beyond the noise (runs of one program differ by up to {floor:.3f})", "not compared"
        grown = _memory(tried)
        if grown is not None and grown[1] > _MEMORY * grown[0] and grown[1] - grown[0] > _MEMORY_KIB:
            return f"memory grows from {grown[0] >> 10} to {grown[1] >> 10} MiB", "not compared"
        return self._compared(program, whole, proposal, tried)

    def _pair(
        self, program: Program, proposal: Proposal, wanted: _Wanted, tried: _Tried, *, first_after: bool
    ) -> str | None:
        """Runs both programs once; why the changed one failed, if it did."""
        edit = proposal.edit
        statistic = "mean" if edit.whole else wanted.by or self.statistic(wanted.cause)
        times: dict[bool, float] = {}
        for changed in (first_after, not first_after):
            state = proposal.program if changed else program
            if wanted.outside_steps:
                whole = self.runs.whole(state, record=False)
                failed = f"exit code {whole.exit_code}" if whole.exit_code else None
                times[changed] = whole.seconds
                if changed:
                    tried.changed_output = whole.output
                else:
                    tried.outputs.append(whole.output)
            else:
                outcome = self.runs.some_steps(state, statistic, whole=edit.whole)
                failed = outcome.failed_because
                times[changed] = outcome.step_s or 0.0
                if failed is None:
                    (tried.after if changed else tried.before).append(outcome)
            if failed is not None and not changed:
                raise _EndError(f"the program before the edit failed: {failed}")
            if failed is not None:
                return failed
        tried.before_s.append(times[False])
        tried.after_s.append(times[True])
        return None

    def _compared(self, program: Program, whole: Whole, proposal: Proposal, tried: _Tried) -> tuple[str | None, Losses]:
        """Whether the changed program computes the same: by the losses of its steps, else by what it prints."""
        before, equality = tried.before, proposal.edit.equality
        found = compare(before, tried.after, [before], _SETTINGS[equality], tolerance=_TOLERANCE, seen=_seen(tried))
        steps = min((len(one.step_losses) for one in before), default=0)
        wide = steps > 0 and equality != "statistical" and float(spread_of([before], steps).max()) > _MOST_SPREAD
        losses: Losses = "not compared" if wide else found.losses
        if losses == "differ":
            return found.because or "the losses differ", "differ"
        if losses != "not compared" or equality == "exact":
            return None, losses
        outputs = [whole.output, *tried.outputs]
        if len(outputs) < 2:
            outputs.append(self.runs.whole(program, record=False).output)
        output = tried.changed_output
        if output is None:
            output = self.runs.whole(proposal.program, record=False).output
        printed = compare_outputs(outputs[:2], output, _TOLERANCE)
        if printed == "agree":
            return None, "agree"
        if printed == "differ":
            return "it prints other results", "differ"
        return "nothing shows whether it computes the same: it has no losses, and prints nothing to compare", printed


def _why_not(before: Whole, after: Whole, edit: Edit) -> str | None:
    """Why the whole run of a changed program is not as good as the run before it; ``None`` where it is."""
    if after.exit_code != 0:
        return f"the whole run ended with exit code {after.exit_code}"
    if after.diagnosed is None:
        return "the whole run shows no steps any more"
    if after.steps < _FEWER_STEPS * before.steps:
        return f"the whole run has {after.steps} steps in place of {before.steps}"
    for suffix, count in sorted(before.left.items()):
        left = after.left.get(suffix, 0)
        if left < (1 if edit.fewer else count):
            return f"the whole run leaves {left} files {suffix or 'without an ending'} in place of {count}"
    return None


def _is_clear(found: Paired, gain: Gain | None) -> bool:
    """Whether the first pairs are enough: no gain at all, or one beyond the noise that the cause can have."""
    if found.speedup.ratio < _LEAST:
        return True
    possible = gain is None or found.speedup.ratio <= gain.ceiling
    return found.improved and possible and found.noise_floor <= _QUIET


_LOSSES: Final = {
    "agree": "losses or results agree",
    "agree on average": "losses agree on average",
    "differ": "losses differ",
}


def _wanted(whole: Whole) -> Iterator[_Wanted]:
    """The causes of a run, each once."""
    # A job that works mostly after its last step (it generates, or scores) shows nothing in its first ones.
    later = whole.diagnosed is not None and whole.diagnosed.in_steps < _IN_STEPS
    findings = whole.diagnosed.findings if whole.diagnosed is not None else ()
    for cause, (finding, gain) in removable(findings).items():
        yield _Wanted(cause, gain, outside_steps=later or (finding.saves is not None and finding.gain is None))


def removable(findings: Iterable[Finding]) -> dict[str, tuple[Finding, Gain | None]]:
    """The causes whose edits are tried, in their order, with those that another repair of the same loss removes.

    Each has its finding and the gain of its removal.
    """
    found: dict[str, tuple[Finding, Gain | None]] = {}
    for finding in findings:
        if finding.because is None and finding.severity != "info" and (finding.gain or finding.saves is not None):
            found.setdefault(finding.id, (finding, finding.gain))
            for one in finding.instead:
                found.setdefault(one.id, (finding, one.gain))
    return found


def _attempt(program: Program, proposal: Proposal, wanted: _Wanted, verdict: str, because: str) -> Attempt:
    gain = wanted.gain
    command = proposal.program.command
    return msgspec.convert(
        {
            "edit": proposal.edit.name,
            "cause": wanted.cause,
            "says": proposal.edit.says,
            "program": program.digest,
            "verdict": verdict,
            "because": because,
            "patch": shown(patch(program, proposal.program)),
            "command": list(command) if command != program.command else [],
            "predicted": None if gain is None else (gain.floor, gain.expected, gain.ceiling),
            "risk": proposal.edit.risk,
        },
        Attempt,
    )


def _on_its_machine(program: Program, whole: Whole) -> Program:
    if whole.diagnosed is None:
        return program
    return replace(program, cores=whole.diagnosed.cores, on_device=whole.diagnosed.on_device)


def _seen(tried: _Tried) -> Seen | None:
    return next((one.seen for one in tried.before if one.seen is not None), None)


def _memory(tried: _Tried) -> tuple[int, int] | None:
    """The least peak of memory of both programs' runs, in KiB."""
    sides = [[one.memory_kib for one in runs if one.memory_kib] for runs in (tried.before, tried.after)]
    return (min(sides[0]), min(sides[1])) if all(sides) else None


def _product(kept: Sequence[Attempt]) -> Interval | None:
    """The gain of the edits together, each measured on top of those before it: of steps, else of whole runs."""
    by_steps = [one.speedup for one in kept if one.speedup is not None and one.measured_by == "steps"]
    found = by_steps or [one.speedup for one in kept if one.speedup is not None]
    if not found:
        return None
    ratio = low = high = 1.0
    for one in found:
        ratio, low, high = ratio * one.ratio, low * one.low, high * one.high
    return Interval(ratio=round(ratio, 4), low=round(low, 4), high=round(high, 4))
