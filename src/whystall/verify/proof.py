"""The proof of a remedy: measured against predicted, the mechanism, the numerics, in one result."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from whystall.capture.config import CaptureConfig, Schedule
from whystall.diagnosis.finding import Finding
from whystall.errors import InputError, WhystallError
from whystall.verify.measure import Block, Variant, call_block, interleaved, run_block, run_command
from whystall.verify.statistics import Paired, paired

DEFAULT_PAIRS: Final = 8
DEFAULT_TOLERANCE: Final = 0.01


Diagnose = Callable[[Path], Sequence[Finding]]
"""What diagnoses a run folder. It is given from above: the public API reads records of ours."""


class Numerics(msgspec.Struct, frozen=True, kw_only=True):
    """The last loss of each variant, and whether they agree within the tolerance (a share)."""

    before: float | None
    after: float | None
    tolerance: float
    agree: bool | None


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What a verification found."""

    schema: Literal["whystall.proof/1"] = "whystall.proof/1"
    paired: Paired
    measured_by: Literal["steps", "runs", "calls"]
    before_s: list[float]
    after_s: list[float]
    cause: str | None
    predicted: float | None
    predicted_low: float | None
    predicted_high: float | None
    before_has_cause: bool | None
    after_has_cause: bool | None
    numerics: Numerics | None
    warnings: list[str]

    @property
    def summary(self) -> str:
        """The proof in one sentence."""
        found = self.paired.speedup
        if self.paired.improved:
            text = f"Proven: {found.ratio:.3f} times as fast ({found.low:.3f} to {found.high:.3f})"
        elif self.paired.worsened:
            text = f"Slower: {found.ratio:.3f} times as fast ({found.low:.3f} to {found.high:.3f})"
        else:
            text = (
                f"Not proven: {found.ratio:.3f} times as fast ({found.low:.3f} to {found.high:.3f}), "
                "where the same variant "
                f"differs from itself by up to {self.paired.noise_floor:.3f}"
            )
        if self.predicted is not None:
            text += f"; predicted were {self.predicted:.3f}"
        if self.cause is not None and self.after_has_cause is not None:
            text += f"; {self.cause} is {'still found' if self.after_has_cause else 'gone'}"
        if self.numerics is not None and self.numerics.agree is not None:
            text += "; the losses agree" if self.numerics.agree else "; THE LOSSES DIFFER"
        return f"{text}."


class BlockFailedError(WhystallError):
    """A run of one of the variants failed, so that nothing is proven."""

    exit_code = 1


def prove(
    before: Variant,
    after: Variant,
    *,
    pairs: int = DEFAULT_PAIRS,
    loss: re.Pattern[str] | None = None,
    tolerance: float = DEFAULT_TOLERANCE,
    cause: str | None = None,
    diagnose: Diagnose | None = None,
    timeout_s: float | None = None,
    progress: Callable[[str], None] = lambda _text: None,
) -> Proof:
    """Runs both variants in turn, ``pairs`` times each, and says what the difference is.

    With a ``cause``, each variant is recorded once more, and ``diagnose`` says what is found in the run folder.
    Raises `BlockFailedError` when a run ends with another exit code than 0.
    """
    blocks: tuple[list[Block], list[Block]] = ([], [])
    for variant, pair in interleaved(pairs):
        block = run_block((before, after)[variant], loss, timeout_s=timeout_s)
        if block.exit_code != 0:
            name = ("before", "after")[variant]
            raise BlockFailedError(f"the variant {name!r} ended with exit code {block.exit_code}: nothing is proven")
        blocks[variant].append(block)
        progress(f"pair {pair + 1} of {pairs}: {('before', 'after')[variant]} {block.seconds * 1e3:.4g} ms")
    times = [[block.seconds for block in side] for side in blocks]
    by_steps = all(block.steps for side in blocks for block in side)
    found = [_causes(variant, timeout_s, diagnose) if cause and diagnose else None for variant in (before, after)]
    predicted = (found[0] or {}).get(cause) if cause is not None else None
    return Proof(
        paired=paired(*times),
        measured_by="steps" if by_steps else "runs",
        before_s=times[0],
        after_s=times[1],
        cause=cause,
        predicted=predicted[1] if predicted else None,
        predicted_low=predicted[0] if predicted else None,
        predicted_high=predicted[2] if predicted else None,
        before_has_cause=None if found[0] is None else cause in found[0],
        after_has_cause=None if found[1] is None else cause in found[1],
        numerics=_numerics(blocks, tolerance) if loss is not None else None,
        warnings=_warnings(by_steps=by_steps, cause=cause, found=found),
    )


def prove_calls(
    before: Callable[[], object], after: Callable[[], object], *, pairs: int = DEFAULT_PAIRS, repeats: int = 5
) -> Proof:
    """The same for two functions of one process, called in turn; the first call of each is not measured."""
    before(), after()
    times: tuple[list[float], list[float]] = ([], [])
    for variant, _ in interleaved(pairs):
        times[variant].append(call_block((before, after)[variant], repeats))
    return Proof(
        paired=paired(*times),
        measured_by="calls",
        before_s=times[0],
        after_s=times[1],
        cause=None,
        predicted=None,
        predicted_low=None,
        predicted_high=None,
        before_has_cause=None,
        after_has_cause=None,
        numerics=None,
        warnings=[],
    )


def _causes(
    variant: Variant, timeout_s: float | None, diagnose: Diagnose
) -> dict[str, tuple[float, float, float]] | None:
    """The causes that a recorded run of a variant shows, with what removing each is worth.

    ``None`` without a report.
    """
    folder = Path(tempfile.mkdtemp(prefix="whystall-verify-"))
    try:
        run_command(variant, CaptureConfig(folder=str(folder), schedule=Schedule()), timeout_s)
        findings = diagnose(folder)
    except InputError:
        return None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        finding.id: (finding.gain.floor, finding.gain.expected, finding.gain.ceiling)
        for finding in findings
        if finding.severity != "info" and finding.gain is not None
    }


def _numerics(blocks: tuple[list[Block], list[Block]], tolerance: float) -> Numerics:
    last = [next((block.loss for block in reversed(side) if block.loss is not None), None) for side in blocks]
    before, after = last
    agree = None
    if before is not None and after is not None:
        agree = abs(after - before) <= tolerance * max(abs(before), 1e-12)
    return Numerics(before=before, after=after, tolerance=tolerance, agree=agree)


def _warnings(
    *, by_steps: bool, cause: str | None, found: Sequence[dict[str, tuple[float, float, float]] | None]
) -> list[str]:
    out = []
    if not by_steps:
        out.append("no training steps were seen: whole runs were compared, start-up included")
    if cause is not None and found[0] is not None and cause not in found[0]:
        out.append(f"{cause} was not found before the change: it may not be what the change removes")
    if cause is not None and any(side is None for side in found):
        out.append("a variant could not be recorded: whether the cause is gone is not known")
    return out
