"""The loop, with made-up runs: their truth is known, so that every verdict can be checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.findings import bare_finding

from whystall.diagnosis.causes import Statistic
from whystall.diagnosis.finding import Finding, Gain
from whystall.remedies.chain import Chain, NotRunningError
from whystall.remedies.copies import Workplace
from whystall.remedies.program import Program
from whystall.remedies.results import Attempt, Fixes
from whystall.remedies.runs import Diagnosed, Runs, Whole
from whystall.verify.tune.results import Outcome

TEXT = b"import gc, torch\no = AdamW(p)\nfor x in DataLoader(d):\n    gc.collect()\n"


def finding(cause: str, **more: Any) -> Finding:
    return bare_finding(cause, gain=Gain(floor=1.0, expected=2.0, ceiling=4.0, method="made up"), **more)


def diagnosed(_: Path) -> Diagnosed:
    raise AssertionError("the made-up runs diagnose themselves")


@dataclass
class Truth(Runs):
    """A program whose steps take 100 ms, of which each cause takes a part as long as its line is there.

    ``worse`` maps a text to what happens to a program that holds it.
    """

    parts: dict[bytes, tuple[str, float]] = field(default_factory=dict)
    worse: dict[bytes, str] = field(default_factory=dict)
    scatter: float = 0.001
    count: int = 0
    losses: bool = True
    in_steps: float = 1.0

    def whole(self, program: Program, *, record: bool) -> Whole:
        text = program.files["t.py"]
        code = 1 if "breaks at its end" in self._worse(text) else 0
        found = [finding(cause) for line, (cause, _) in self.parts.items() if line in text] if record else []
        printed = "accuracy 0.5" if "prints otherwise" in self._worse(text) else "accuracy 0.9"
        steps = 20 if "ends early" in self._worse(text) else 100
        left = {".pt": 0 if "saves nothing" in self._worse(text) else 2}
        saved = sum(part for line, (_, part) in self.parts.items() if line not in text)
        self.count += 1 if self.in_steps < 1 else 0
        seconds = 0.01 if self.in_steps == 1 else (0.1 - saved) * (1 + self.scatter * (self.count % 3))
        told = Diagnosed(found, 4, on_device=False, in_steps=self.in_steps) if record else None
        return Whole(code, seconds, printed, told, steps, left)

    def some_steps(self, program: Program, statistic: Statistic, *, whole: bool = False) -> Outcome:
        text = program.files["t.py"]
        self.count += 1
        worse = self._worse(text)
        if "raises the second time" in worse and self.count > 6:
            return Outcome(step_s=None, failed_because="exit code 1: ValueError: later")
        if "raises" in worse:
            return Outcome(step_s=None, failed_because="exit code 1: ValueError: no")
        saved = sum(part for line, (_, part) in self.parts.items() if line not in text)
        step = (0.1 - saved + (0.1 if "slower" in worse else 0)) * (1 + self.scatter * (self.count % 3))
        loss = [0.5 if "diverges" in worse else 1.0 / (number + 1) for number in range(12)]
        loss = [one * (1.3 + 0.3 * (self.count % 3)) for one in loss] if "scatters" in worse else loss
        memory = 1_000_000 if "takes memory" in worse else 100_000
        return Outcome(step_s=step, step_losses=loss if self.losses else [], memory_kib=memory)  # type: ignore[arg-type]

    def _worse(self, text: bytes) -> set[str]:
        return {what for line, what in self.worse.items() if line in text}


COLLECTS = {b"gc.collect()": ("host.gc", 0.05)}


def follow(text: bytes = TEXT, known: list[Attempt] | None = None, **options: Any) -> Fixes:
    chain_options = {name: options.pop(name) for name in ("most", "budget_s", "numerics") if name in options}
    runs = Truth(Workplace(Path(), Path()), diagnosed, **options)
    chain = Chain(runs, lambda _: "median", known=known or [], **chain_options)
    return chain.follow(Program({"t.py": text}, ("python", "t.py")))


def test_an_edit_that_helps_is_kept() -> None:
    found = follow(parts=COLLECTS)
    [kept] = found.attempts
    assert (kept.edit, kept.verdict, kept.losses, len(kept.after_s)) == ("no-collections", "kept", "agree", 3)
    assert kept.speedup is not None
    assert kept.speedup.ratio == pytest.approx(2.0, rel=0.01)
    assert "-    gc.collect()\n+    pass\n" in found.patch
    assert found.speedup == kept.speedup


@pytest.mark.parametrize(("in_steps", "measured_by"), [(0.2, "runs"), (0.8, "steps")])
def test_a_job_that_works_after_its_last_step_is_measured_whole(in_steps: float, measured_by: str) -> None:
    """As one that generates, or scores, after a short training: its first steps show nothing of that."""
    found = follow(parts=COLLECTS, in_steps=in_steps)
    [kept] = found.attempts
    assert (kept.verdict, kept.measured_by) == ("kept", measured_by)
    assert kept.speedup is not None
    assert kept.speedup.ratio == pytest.approx(2.0, rel=0.02)


def test_the_next_cause_is_looked_for_in_the_changed_program() -> None:
    parts = COLLECTS | {b"AdamW(p)": ("compute.unfused-optimizer", 0.02)}
    found = follow(parts=parts)
    assert [one.edit for one in found.attempts if one.verdict == "kept"] == ["no-collections", "fused-optimizer"]
    assert found.speedup is not None
    assert found.speedup.ratio == pytest.approx(0.1 / 0.03, rel=0.02)


@pytest.mark.parametrize(
    ("worse", "because"),
    [
        ("raises", "ValueError"),
        ("slower", "times as long"),
        ("diverges", "the loss of step"),
        ("takes memory", "memory grows"),
        ("breaks at its end", "the whole run ended with exit code 1"),
        ("ends early", "the whole run has 20 steps in place of 100"),
        ("saves nothing", "the whole run leaves 0 files .pt in place of 2"),
        ("scatters", "the loss of step"),
    ],
)
def test_an_edit_that_makes_something_worse_is_rejected(worse: str, because: str) -> None:
    found = follow(parts=COLLECTS, worse={b"    pass": worse})
    assert [one.verdict for one in found.attempts] == ["rejected"]
    assert because in found.attempts[0].because
    assert found.patch == ""
    assert found.speedup is None


def test_a_gain_inside_the_noise_is_rejected() -> None:
    found = follow(parts={b"gc.collect()": ("host.gc", 0.003)}, scatter=0.1)
    assert [one.verdict for one in found.attempts] == ["rejected"]
    assert len(found.attempts[0].after_s) == 6


def test_what_was_rejected_is_not_tried_again_unless_the_program_changes() -> None:
    before = follow(parts=COLLECTS, worse={b"    pass": "raises"}).attempts
    assert follow(parts=COLLECTS, known=before).attempts == []
    assert len(follow(text=TEXT + b"# changed\n", parts=COLLECTS, known=before).attempts) == 1


def test_what_was_kept_is_made_again_without_a_trial_and_the_loop_goes_on() -> None:
    parts = COLLECTS | {b"AdamW(p)": ("compute.unfused-optimizer", 0.02)}
    first = follow(parts=parts, most=1).attempts
    found = follow(parts=parts, known=first)
    assert [(one.edit, one.verdict) for one in found.attempts] == [
        ("no-collections", "kept"),
        ("fused-optimizer", "kept"),
    ]
    assert "+    pass" in found.patch
    assert follow(parts=parts, known=found.attempts).patch == found.patch


def test_a_program_that_fails_in_a_trial_ends_the_loop_and_what_was_kept_stays() -> None:
    parts = COLLECTS | {b"AdamW(p)": ("compute.unfused-optimizer", 0.02)}
    found = follow(parts=parts, worse={b"    pass": "raises the second time"})
    assert [one.edit for one in found.attempts] == ["no-collections"]
    assert found.ended_because.startswith("the program before the edit failed")
    assert "+    pass" in found.patch


def test_without_losses_what_is_printed_decides() -> None:
    parts = {b"AdamW(p)": ("compute.unfused-optimizer", 0.05)}
    assert follow(parts=parts, losses=False).attempts[0].verdict == "kept"
    other = follow(parts=parts, losses=False, worse={b"fused=True": "prints otherwise", b"foreach=True": "raises"})
    assert [one.verdict for one in other.attempts] == ["rejected", "rejected"]
    assert other.attempts[0].because == "it prints other results"


def test_a_healthy_program_is_left_alone() -> None:
    found = follow(parts={})
    assert (found.attempts, found.patch, found.ended_because) == ([], "", "no edit is left to try")


def test_a_finding_that_is_only_told_is_no_cause_to_remove(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Truth(Workplace(Path(), Path()), diagnosed)
    told = Diagnosed([finding("capture.recording-overhead", severity="info")], 4, on_device=False)
    monkeypatch.setattr(runs, "whole", lambda _, *, record: Whole(0, 0.01, "", told if record else None))
    found = Chain(runs, lambda _: "median").follow(Program({"t.py": TEXT}, ("python", "t.py")))
    assert (found.attempts, found.without_edit) == ([], [])


def test_a_cause_without_an_edit_is_named() -> None:
    assert follow(parts={b"import": ("memory.growth", 0.0)}).without_edit == ["memory.growth"]


def test_a_program_that_fails_is_not_touched() -> None:
    with pytest.raises(NotRunningError, match="exit code 1"):
        follow(parts=COLLECTS, worse={b"import gc": "breaks at its end"})


def test_the_budget_and_the_number_of_edits_end_it() -> None:
    parts = COLLECTS | {b"AdamW(p)": ("compute.unfused-optimizer", 0.02)}
    assert follow(parts=parts, budget_s=0.0).ended_because == "the time is used up"
    found = follow(parts=parts, most=1)
    assert ([one.edit for one in found.attempts], found.ended_because) == (
        ["no-collections"],
        "the number of edits is reached (--most)",
    )


def test_what_may_change_results_is_proposed_and_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {b"'highest'": ("compute.fp32-matmul", 0.05)}
    text = b"torch.set_float32_matmul_precision('highest')\n"
    runs = Truth(Workplace(Path(), Path()), diagnosed, parts=parts)
    program = Program({"t.py": text}, ("python", "t.py"))
    machine = Diagnosed([finding("compute.fp32-matmul")], 4, on_device=True)
    monkeypatch.setattr(runs, "whole", lambda _, *, record: Whole(0, 0.01, "", machine if record else None))
    assert [one.verdict for one in Chain(runs, lambda _: "median").follow(program).attempts] == ["proposed"]
    proposed = Chain(runs, lambda _: "median").follow(program).attempts
    allowed = Chain(runs, lambda _: "median", numerics=True, known=proposed).follow(program)
    assert [one.verdict for one in allowed.attempts] == ["kept"]


@pytest.mark.parametrize(("worse", "verdict"), [({}, "kept"), ({b"    pass": "diverges"}, "rejected")])
def test_a_change_of_somebody_else_is_judged_likewise(worse: dict[bytes, str], verdict: str) -> None:
    runs = Truth(Workplace(Path(), Path()), diagnosed, parts=COLLECTS, worse=worse)
    first = Program({"t.py": TEXT}, ("python", "t.py"))
    after = first.with_file("t.py", TEXT.replace(b"gc.collect()", b"pass"))
    found = Chain(runs, lambda _: "median").judge(first, after, "mine.patch")
    assert [(one.edit, one.verdict) for one in found.attempts] == [("mine.patch", verdict)]
    assert bool(found.patch) == (verdict == "kept")
