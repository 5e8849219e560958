"""The loop of ``whystall fix`` in words: what was tried, predicted, measured, kept or rejected, and how to apply it."""

from __future__ import annotations

from collections.abc import Sequence

from whystall.remedies.results import BUSY_CORES, Attempt, Fixes
from whystall.report.document import Code, Document, Grid, Part, Points, Row, grid
from whystall.report.format import UNKNOWN, plural
from whystall.report.names import clean
from whystall.report.tables import Cell


def fix_document(found: Fixes, apply: Sequence[str], command: str | None) -> Document:
    """The loop; ``apply`` are the commands that put the patch into the user's tree.

    ``command`` is the command to run from then on, ``None`` where it stays or must not be written.
    """
    verdict = _verdict(found)
    parts: list[Part] = [verdict]
    if found.attempts:
        parts.append(_table(found.attempts))
    kept = [one for one in found.attempts if one.verdict == "kept"]
    risks = tuple(f"{one.edit}: {one.risk}" for one in kept if one.risk)
    if risks:
        parts.append(Points(risks))
    if found.without_edit:
        parts.append(f"no edit is known for: {', '.join(found.without_edit)} (whystall explain CAUSE has the remedy)")
    busy = max((one.other_cores or 0.0 for one in found.attempts), default=0.0)
    if busy >= BUSY_CORES:
        parts.append(f"other programs kept {busy:.1f} cores busy: what was rejected is tried again the next time")
    parts.append(f"{plural(len(found.attempts), 'edit')}; ended since {found.ended_because}")
    if found.patch:
        parts += [Code("the change:", tuple(clean(line, 400) for line in found.patch.splitlines()))]
        parts += [Code("to apply it:", tuple(apply))]
    if command is not None:
        parts.append(Code("to run from now on:", (command,)))
    return Document("fix", verdict, tuple(parts))


def _verdict(found: Fixes) -> str:
    kept = [one.edit for one in found.attempts if one.verdict == "kept"]
    if all(one.verdict == "proposed" for one in found.attempts):
        return f"Nothing was tried: {found.ended_because}."
    if not kept or found.speedup is None:
        return "Nothing was changed: no edit made the program faster beyond the noise."
    bounds = f"{found.speedup.low:.2f} to {found.speedup.high:.2f}"
    return f"{found.speedup.ratio:.2f} times as fast ({bounds}) with {', '.join(kept)}."


def _table(attempts: Sequence[Attempt]) -> Grid:
    labels = ("edit", ("", "cause"), "predicted", "measured", "pairs", ("", "verdict"))
    rows: list[Row] = [(one.edit, one.cause, *_cells(one), one.verdict) for one in attempts]
    notes = [f"{one.edit}: {one.says}; {one.verdict}, {one.because}" for one in attempts]
    return grid("Edits, each against the program before it", labels, rows, notes=notes, first="name")


def _cells(one: Attempt) -> tuple[Cell, ...]:
    predicted, measured = Cell(UNKNOWN), Cell(UNKNOWN)
    if one.predicted is not None:
        low, expected, high = one.predicted
        predicted = Cell(f"{expected:.2f} ({low:.2f} to {high:.2f})", expected)
    if one.speedup is not None:
        bounds = f"{one.speedup.low:.2f} to {one.speedup.high:.2f}"
        measured = Cell(f"{one.speedup.ratio:.2f} ({bounds})", one.speedup.ratio)
    return predicted, measured, Cell(str(len(one.after_s)), len(one.after_s))


def pull_request(found: Fixes) -> str:
    """The text of a pull request, as Markdown: the changes that were kept, with what they bring and risk."""
    kept = [one for one in found.attempts if one.verdict == "kept"]
    lines = [
        f"# {_verdict(found)}",
        "",
        "| change | because | times as fast | pairs | results |",
        "|---|---|---|--:|---|",
    ]
    for one in kept:
        measured = (
            "" if one.speedup is None else f"{one.speedup.ratio:.2f} ({one.speedup.low:.2f} to {one.speedup.high:.2f})"
        )
        cells = (one.says, f"`{one.cause}`", measured, str(len(one.after_s)), one.because)
        lines.append(f"| {' | '.join(clean(cell, 200).replace('|', '/') for cell in cells)} |")
    lines += ["", "Each change ran in interleaved pairs against the program before it, on a copy."]
    lines += ["", *(f"- {one.risk}" for one in kept if one.risk)]
    rejected = [one for one in found.attempts if one.verdict == "rejected"]
    if rejected:
        lines += [
            "",
            "Tried and rejected: " + "; ".join(f"{one.says} ({clean(one.because, 200)})" for one in rejected) + ".",
        ]
    return "\n".join(lines).rstrip() + "\n"
