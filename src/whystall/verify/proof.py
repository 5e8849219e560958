"""The proof of a remedy: measured against predicted, the mechanism, the numerics, in one result."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from whystall.analysis.paired import Paired, paired
from whystall.diagnosis.causes import Statistic
from whystall.diagnosis.finding import Finding
from whystall.errors import InputError, UsageError, WhystallError
from whystall.verify.measure import Block, Variant, call_block, interleaved, run_block, run_recorded

DEFAULT_PAIRS: Final = 8
DEFAULT_TOLERANCE: Final = 0.01
# The same step's work before and after differs by less: a padded batch, another precision.
_OTHER_KIND: Final = 1.5


@dataclass(frozen=True, slots=True)
class Recorded:
    """The content of a recorded run: its findings, and the FLOPs of products in a step (0: not known)."""

    findings: Sequence[Finding]
    flops_per_step: float = 0.0


Diagnose = Callable[[Path], Recorded]
"""Diagnoses a run folder. The caller passes it in: the public API reads records of ours."""


class Numerics(msgspec.Struct, frozen=True, kw_only=True):
    """The last loss of each variant, and whether they agree within the tolerance (a share)."""

    before: float | None
    after: float | None
    tolerance: float
    agree: bool | None


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification.

    ``paired`` and the times use the deciding ``statistic`` of the steps, ``otherwise`` the other one.
    """

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
    statistic: Statistic | None = None
    otherwise: Paired | None = None

    @property
    def summary(self) -> str:
        """The proof in one sentence."""
        found = self.paired.speedup
        by = f" by the {self.statistic} step" if self.statistic is not None else ""
        speedup = f"{found.ratio:.3f} times as fast{by} ({found.low:.3f} to {found.high:.3f})"
        if self.paired.improved:
            text = f"Proven: {speedup}"
        elif self.paired.worsened:
            text = f"Slower: {speedup}"
        else:
            floor = self.paired.noise_floor
            text = f"Not proven: {speedup}, where the same variant differs from itself by up to {floor:.3f}"
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
    statistic: Statistic = "median",
    diagnose: Diagnose | None = None,
    timeout_s: float | None = None,
    progress: Callable[[str], None] = lambda _text: None,
) -> Proof:
    """Runs both variants in turn, ``pairs`` times each, and returns their difference.

    ``statistic`` decides: the mean step for occasional causes, which no median shows. With a ``cause``, each variant is
    recorded once more, and ``diagnose`` analyses the run folder. Raises `BlockFailedError` when a run ends with another
    exit code than 0, and `UsageError` when ``loss`` finds no number in its output.
    """
    blocks: tuple[list[Block], list[Block]] = ([], [])
    for variant, pair in interleaved(pairs):
        block = run_block((before, after)[variant], loss, timeout_s=timeout_s)
        if block.exit_code != 0:
            name = ("before", "after")[variant]
            raise BlockFailedError(f"the variant {name!r} ended with exit code {block.exit_code}: nothing is proven")
        if loss is not None and not isinstance(block.loss, float):
            raise UsageError(_lossless(("before", "after")[variant], loss, block.loss))
        blocks[variant].append(block)
        seconds = block.by[statistic] if block.by is not None else block.run_s
        progress(f"pair {pair + 1} of {pairs}: {('before', 'after')[variant]} {seconds * 1e3:.4g} ms")
    recorded = [_recorded(variant, timeout_s, diagnose) if cause and diagnose else None for variant in (before, after)]
    seen = all(block.by is not None for side in blocks for block in side)
    larger = _larger(recorded) if seen and paired(*_times(blocks, statistic)).worsened else None
    others = _other_kinds(blocks) if seen else None
    by_steps = seen and larger is None and others is None
    other: Statistic = "median" if statistic == "mean" else "mean"
    times = _times(blocks, statistic if by_steps else None)
    otherwise = paired(*_times(blocks, other)) if by_steps else None
    found = [_causes(one) if one is not None else None for one in recorded]
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
        warnings=_warnings(by_steps=by_steps, cause=cause, found=found, larger=larger, others=others),
        statistic=statistic if by_steps else None,
        otherwise=otherwise,
    )


def _times(blocks: tuple[list[Block], list[Block]], statistic: Statistic | None) -> list[list[float]]:
    """The times of both variants' runs: their steps by a statistic, or the whole runs."""
    return [
        [block.by[statistic] if statistic is not None and block.by is not None else block.run_s for block in side]
        for side in blocks
    ]


def _lossless(variant: str, loss: re.Pattern[str], found: object) -> str:
    """Why there is no loss to compare."""
    if found is None:
        what = "matches nothing in the output"
    else:
        what = f"found {str(found)[:60]!r}, which is no number, in the output"
    return f"--loss {loss.pattern!r} {what} of the variant {variant!r}: losses were not compared, and nothing is proven"


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


def _recorded(variant: Variant, timeout_s: float | None, diagnose: Diagnose) -> Recorded | None:
    """The content of a recorded run of a variant; ``None`` without a report."""
    folder = Path(tempfile.mkdtemp(prefix="whystall-verify-"))
    try:
        run_recorded(variant, folder, timeout_s)
        return diagnose(folder)
    except InputError:
        return None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _causes(recorded: Recorded) -> dict[str, tuple[float, float, float]]:
    """The causes of the findings, with the gain of each."""
    return {
        finding.id: (finding.gain.floor, finding.gain.expected, finding.gain.ceiling)
        for finding in recorded.findings
        if finding.severity != "info" and finding.gain is not None
    }


def _larger(recorded: Sequence[Recorded | None]) -> float | None:
    """The ratio of a step's work after the change to that before, where it is larger; else ``None``.

    Steps of a job without an optimizer are found by their rhythm: one may be a single pass of a request before, and the
    whole request after; a batch of requests is more than one of them. Such steps take longer, and nothing is slower.
    """
    before, after = (one.flops_per_step if one is not None else 0.0 for one in recorded)
    return after / before if before > 0 and after > _OTHER_KIND * before else None


def _other_kinds(blocks: tuple[list[Block], list[Block]]) -> tuple[str, str] | None:
    """The kind of step in most runs before, and in most after, where they differ.

    Once a model is no longer called as a whole, its remaining calls may be a token's, where they were a request's.
    """
    before, after = (Counter(block.kind for block in side).most_common(1)[0][0] for side in blocks)
    return (before, after) if before is not None and after is not None and before != after else None


def _numerics(blocks: tuple[list[Block], list[Block]], tolerance: float) -> Numerics:
    last = [next((block.loss for block in reversed(side) if isinstance(block.loss, float)), None) for side in blocks]
    before, after = last
    agree = None
    if before is not None and after is not None:
        agree = abs(after - before) <= tolerance * max(abs(before), 1e-12)
    return Numerics(before=before, after=after, tolerance=tolerance, agree=agree)


def _warnings(
    *,
    by_steps: bool,
    cause: str | None,
    found: Sequence[dict[str, tuple[float, float, float]] | None],
    larger: float | None,
    others: tuple[str, str] | None,
) -> list[str]:
    out = []
    if others is not None:
        out.append(
            f"steps were known by {others[0]} before the change and by {others[1]} after it: they are other steps, and "
            "whole runs were compared, which says nothing where a run goes on for a set time and not for a set amount "
            "of work"
        )
    elif larger is not None:
        out.append(
            f"a step computes {larger:.3g} times the work after the change: it is another kind of step, so whole runs "
            f"were compared, which says nothing where a run lasts for a set time instead of a set amount of work"
        )
    elif not by_steps:
        out.append("no training steps were seen: whole runs were compared, start-up included")
    if cause is not None and found[0] is not None and cause not in found[0]:
        out.append(f"{cause} was not found before the change: it may not be what the change removes")
    if cause is not None and any(side is None for side in found):
        out.append("a variant could not be recorded: whether the cause is gone is not known")
    return out
