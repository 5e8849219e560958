"""The text of `whystall attach`: invisible facts and how to see them; then the verdict and its evidence."""

from __future__ import annotations

from collections.abc import Sequence

from whystall.live.kinds import KINDS
from whystall.live.observation import Observation
from whystall.live.verdict import Place, Verdict
from whystall.report.format import duration

UNSEEN = (
    (
        "Invisible from outside: the GPU's activity, shapes of tensors, automatic garbage collection, and native code "
        "beyond the line that called it."
    ),
    "To see that, and what mending it is worth: start the job as `whystall run SCRIPT`.",
)
NO_STACKS = (
    "Without py-spy there are no stacks, so that neither lines nor causes are named: pip install 'whystall[attach]'"
)


def beforehand(pid: int, seconds: float, *, stacks: bool) -> list[str]:
    """The lines printed before the observation: its duration, and its limits."""
    return [f"Watching process {pid} for {seconds:g} s.", *([] if stacks else [NO_STACKS]), *UNSEEN]


def told(seen: Observation, verdict: Verdict | None, step_s: float | None, devices: Sequence[str] = ()) -> list[str]:
    """The lines, the verdict first."""
    out = [verdict.sentence if verdict else _without_stacks(seen)]
    if verdict is not None:
        out += [f"  {_line(place)}" for place in verdict.places]
        if verdict.kind is not None:
            out.append(f"do: {verdict.kind.advice}")
            if verdict.kind.cause is not None:
                out.append(f"why, and how it is proved: whystall explain {verdict.kind.cause}")
        out += ["", _shares(verdict.shares), *verdict.facts]
        if step_s is not None:
            out.append(f"A step takes about {duration(round(step_s * 1e9))}, by what its stacks repeat.")
    out += devices
    out.append(
        f"Watched for {seen.seconds:g} s: {len(seen.ticks):,} stacks, {len(seen.looks):,} looks at who held the GIL, "
        f"{len(seen.processes)} process{'es' if len(seen.processes) > 1 else ''}."
    )
    return out


def _line(place: Place) -> str:
    text = f"  {place.text}" if place.text else f"  {place.frame.symbol}"
    return f"{place.share:4.0%}  {place.frame.file}:{place.frame.line}{text}"


def _shares(shares: dict[str, float]) -> str:
    parts = [f"{KINDS[kind].words} {share:.0%}" for kind, share in shares.items() if share >= 0.01]
    return f"The training thread {', '.join(parts)}."


def _without_stacks(seen: Observation) -> str:
    """The sentence on threads alone."""
    thread = seen.job.thread(seen.training)
    below = sum(one.cores for pid, one in seen.processes.items() if pid != seen.pid)
    if thread is None:
        return "Nothing is known of its main thread."
    doing = "computes" if thread.on_core >= 0.5 else "waits for storage" if thread.on_disk >= 0.25 else "waits"
    return (
        f"Its main thread {doing}: it is on a core {thread.on_core:.0%} of the time and sleeps on storage "
        f"{thread.on_disk:.0%}; the process keeps {seen.job.cores:.1f} cores busy, those below it {below:.1f}."
    )


def as_data(
    seen: Observation, verdict: Verdict | None, step_s: float | None, devices: Sequence[str] = ()
) -> dict[str, object]:
    """The same as data."""
    return {
        "schema": "whystall.attach/1",
        "pid": seen.pid,
        "seconds": seen.seconds,
        "class": None if verdict is None else verdict.kind.id if verdict.kind else "computes",
        "cause": verdict.kind.cause if verdict and verdict.kind else None,
        "summary": verdict.sentence if verdict else _without_stacks(seen),
        "share": verdict.share if verdict else None,
        "shares": verdict.shares if verdict else {},
        "step_ns": None if step_s is None else round(step_s * 1e9),
        "code": _code(verdict.places if verdict else ()),
        "facts": [*(verdict.facts if verdict else ()), *devices],
        "unseen": list(UNSEEN),
    }


def _code(places: Sequence[Place]) -> list[dict[str, object]]:
    return [
        {
            "file": place.frame.file,
            "line": place.frame.line,
            "symbol": place.text or place.frame.symbol,
            "share": place.share,
        }
        for place in places
    ]
