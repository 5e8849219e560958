"""The tables of the benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.accuracy.score import Ablation, Mark, Summary


def percent(value: float | None) -> str:
    """A share as text."""
    return "-" if value is None else f"{100 * value:.1f} %"


def summaries(rows: Sequence[tuple[str, Summary]]) -> str:
    """One row per group of jobs, in Markdown."""
    lines = [
        "| jobs | faulty | cause named first | among the first three | healthy | with a false alarm | rank named | gain off by (median) | truth in the interval |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {each.faulty} | {percent(each.top1)} | {percent(each.recall3)} | {each.healthy}"
        f" | {each.healthy_with_alarm} | {percent(each.ranks_named)} | {percent(each.median_gain_error)} ({each.gains})"
        f" | {percent(each.coverage)} |"
        for name, each in rows
    ]
    return "\n".join(lines)


_EDGES = (0.0, 0.7, 0.8, 0.88, 0.93, 1.01)


def reliability(rows: Sequence[Mark]) -> str:
    """Of the causes that were named with some confidence, how many were right."""
    lines = ["| confidence stated | causes named | stated, in the mean | right |", "|---|---|---|---|"]
    for low, high in pairwise(_EDGES):
        of = [each for each in rows if each.stated is not None and low <= each.stated < high]
        if of:
            stated = sum(each.stated or 0.0 for each in of) / len(of)
            right = sum(each.top1 and not each.false_alarms for each in of) / len(of)
            lines.append(
                f"| {100 * low:.0f} to {100 * min(high, 1):.0f} % | {len(of)} | {percent(stated)} | {percent(right)} |"
            )
    return "\n".join(lines)


def invariants(rows: Sequence[Mark]) -> str:
    """In how many reports something does not hold that holds of every report, and what."""
    broken = [f"{each.name}: {what}" for each in rows for what in each.broken]
    count = sum(bool(each.broken) for each in rows)
    return "\n".join([f"Invariants are broken in {count} of {len(rows)} reports.", *broken])


def marks(rows: Sequence[Mark]) -> str:
    """One row per job."""
    lines = ["| job | truth | said | gain: true | predicted | right |", "|---|---|---|---|---|---|"]
    for each in rows:
        gains = {gain.cause: gain for gain in each.gains}
        true = ", ".join("?" if gain is None else f"{gain:.3f}" for gain in each.true_gains)
        said = ", ".join(f"{gain.expected:.3f} ({gain.floor:.3f} to {gain.ceiling:.3f})" for gain in gains.values())
        verdict = each.said or (each.failure and f"failed: {each.failure}") or "nothing"
        alarms = f"; false alarms: {', '.join(each.false_alarms)}" if each.false_alarms else ""
        right = "yes" if each.top1 and not each.false_alarms else "NO"
        expected = ", ".join(each.expected) or "healthy"
        lines.append(f"| {each.name} | {expected} | {verdict}{alarms} | {true} | {said} | {right} |")
    return "\n".join(lines)


def ablations(rows: Sequence[Ablation]) -> str:
    """One row per removed signal."""
    lines = ["| without | jobs | still true | same verdict | silent | left open |", "|---|---|---|---|---|---|"]
    for removed in dict.fromkeys(each.removed for each in rows):
        of = [each for each in rows if each.removed == removed]
        same = sum(each.after == each.before for each in of)
        silent = sum(each.after is None for each in of)
        left = sum(each.left_open for each in of)
        lines.append(f"| {removed} | {len(of)} | {sum(each.truthful for each in of)} | {same} | {silent} | {left} |")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Peer:
    """What a peer called a job, whether that holds the cause, and whether a healthy job would be called otherwise."""

    said: str
    right: bool
    told: bool


def beside_traceml(rows: Sequence[Mark], peers: Mapping[str, Peer]) -> str:
    """Both tools on the same jobs; TraceML names classes, which are right where they hold the cause.

    Of a job that was watched several times the prediction is that of the run in the middle.
    """
    lines = [
        "| job | truth | whystall | right | gain: measured | predicted | TraceML | class right | told from a healthy job |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(each.name for each in rows):
        of = [each for each in rows if each.name == name]
        said = ", ".join(dict.fromkeys((each.said or "nothing") + _alarms(each) for each in of))
        gains = sorted((each.gains[0] for each in of if each.gains), key=lambda gain: gain.expected)
        middle = gains[len(gains) // 2] if gains else None
        gain = (
            f"{middle.true:.2f} | {middle.expected:.2f} ({middle.floor:.2f} to {middle.ceiling:.2f})"
            if middle
            else " | "
        )
        peer = peers.get(name)
        shown = f"{peer.said} | {_yes(peer.right)} | {_yes(peer.told)}" if peer is not None else " | | "
        lines.append(f"| {name} | {_truth(of[0])} | {said} | {sum(map(_good, of))} of {len(of)} | {gain} | {shown} |")
    counts = (
        f"{sum(map(_good, rows))} of {len(rows)}",
        *(sum(getattr(peer, of) for peer in peers.values()) for of in ("right", "told")),
    )
    lines.append(f"| all {len({each.name for each in rows})} | | | {counts[0]} | | | | {counts[1]} | {counts[2]} |")
    return "\n".join(lines)


def _alarms(row: Mark) -> str:
    return f" (false: {', '.join(row.false_alarms)})" if row.false_alarms else ""


def _good(row: Mark) -> bool:
    return row.top1 and not row.false_alarms


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _truth(row: Mark) -> str:
    return ", ".join(row.expected) or "healthy"


def _wanted(row: Mark) -> str:
    known = zip(row.expected, row.true_gains, strict=True)
    return ", ".join(f"{cause} ({gain and round(gain, 4)})" for cause, gain in known) or "healthy"


def feedback(rows: Sequence[Mark], removed: Sequence[Ablation] = ()) -> str:
    """What failed, for those who can mend it."""
    lines = []
    for each in rows:
        bad = [gain for gain in each.gains if gain.error > 0.02 or not gain.covered]
        if each.top1 and not each.false_alarms and not bad and each.rank_named is not False and not each.broken:
            continue
        lines.append(
            f"- {each.name}: expected {_wanted(each)}, got {each.said}; findings {', '.join(each.said_ids) or 'none'}"
        )
        if each.failure:
            lines.append(f"  - failed: {each.failure}")
        if each.false_alarms:
            lines.append(f"  - false alarms: {', '.join(each.false_alarms)}")
        lines += [f"  - broken: {what}" for what in each.broken]
        if each.rank_named is False:
            lines.append("  - the rank is not named")
        lines += [
            f"  - gain of {gain.cause}: true {gain.true:.4f}, expected {gain.expected:.4f} (floor {gain.floor:.4f}, ceiling {gain.ceiling:.4f}), off by {100 * gain.error:.1f} %{'' if gain.covered else ', not covered'}"
            for gain in bad
        ]
    lines += [
        f"- {each.name} without {each.removed}: was {each.before}, became {each.after}, expected {', '.join(each.expected) or 'healthy'}"
        for each in removed
        if not each.truthful
    ]
    return "\n".join(lines) + "\n"
