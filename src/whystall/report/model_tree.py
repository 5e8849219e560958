"""A model's profile as a tree for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whystall.model.results import Amount, ModelProfile, ModuleProfile
from whystall.report.format import UNKNOWN, count, duration, plural, rate, share, size

COLUMNS = ("parameters", "forward", "backward", "recompute", "bytes", "time", "share")
CONVENTIONS = (
    "1 multiply-accumulate is 2 FLOPs. model FLOPs: products, convolutions, recurrences and attention, each once, "
    "scores dense (causal: half of them). executed FLOPs: with recomputation, also that of fused attention. all: with "
    "elementwise operations. bytes: read and written by each operator, caches left out."
)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """FLOP/s that products reach on the timed device, with its source."""

    flops_per_s: float
    source: str


def render_tree(
    profile: ModelProfile,
    *,
    depth: int | None = None,
    conventions: Mapping[str, int] | None = None,
    ceiling: Ceiling | None = None,
    width: int = 100,
) -> str:
    """The profile as text: totals, the tree down to ``depth``, the part that is not covered, the conventions.

    ``conventions`` are FLOPs per token as others count them; ``ceiling`` is the limit of the achieved rates.
    """
    parts = [_totals(profile), _rating(profile, ceiling), _tree(profile, depth), _uncovered(profile), _timing(profile)]
    if conventions:
        parts.append(_others(conventions))
    parts.append(_wrapped(CONVENTIONS, width))
    return "\n\n".join(part for part in parts if part) + "\n"


def flops(value: int) -> str:
    """FLOPs in SI units.

    >>> flops(491_490_115_584), flops(64)
    ('491 G', '64')
    """
    return rate(float(value), "").strip() if value >= 1000 else str(value)


def _totals(profile: ModelProfile) -> str:
    rows = [["phase", "model FLOPs", "causal", "executed", "all", "bytes", "time", "achieved"]]
    for name in ("forward", "backward", "recompute", "optimizer"):
        amount: Amount = getattr(profile, name)
        if amount != Amount():
            rows.append([name, *_amounts(amount)])
    trainable = (
        ""
        if profile.trainable_parameters == profile.parameters
        else f", {count(profile.trainable_parameters)} trainable"
    )
    return f"{count(profile.parameters)} parameters{trainable}\n\n{_columns(rows)}{_gradients(profile)}"


def _gradients(profile: ModelProfile) -> str:
    """The backward pass divided into gradients of inputs and of weights, as far as known."""
    known = profile.input_gradient_flops + profile.weight_gradient_flops
    if not known:
        return ""
    rest = profile.backward.model_flops - known
    told = f"{flops(profile.input_gradient_flops)} for inputs, {flops(profile.weight_gradient_flops)} for weights"
    return f"\nbackward: {told}" + (f", {flops(rest)} not told apart" if rest > 0 else "")


def _rating(profile: ModelProfile, ceiling: Ceiling | None) -> str:
    """Share of the ceiling that each phase reached."""
    reached = [
        f"{name} {share(amount.executed_flops / (amount.time_ns / 1e9) / ceiling.flops_per_s)}"
        for name in ("forward", "backward")
        if ceiling is not None and (amount := getattr(profile, name)).time_ns and amount.executed_flops
    ]
    if not reached or ceiling is None:
        return ""
    return f"Of {rate(ceiling.flops_per_s, 'FLOP/s')} ({ceiling.source}): {', '.join(reached)}."


def _amounts(amount: Amount) -> list[str]:
    achieved = UNKNOWN
    if amount.time_ns and amount.executed_flops:
        achieved = rate(amount.executed_flops / amount.time_ns * 1e9, "FLOP/s")
    return [
        flops(amount.model_flops),
        flops(amount.model_flops_causal),
        flops(amount.executed_flops),
        flops(amount.all_flops),
        size(amount.bytes),
        duration(amount.time_ns),
        achieved,
    ]


def _tree(profile: ModelProfile, depth: int | None) -> str:
    whole = (
        sum(_time(module) for module in profile.modules if module.depth == profile.modules[0].depth)
        if profile.modules
        else 0
    )
    recomputes = profile.recompute != Amount()
    columns = [name for name in COLUMNS if recomputes or name != "recompute"]
    rows = [["module", *columns]]
    lowest = profile.modules[0].depth if profile.modules else 0
    for module in profile.modules:
        if depth is None or module.depth - lowest <= depth:
            cells = _module_cells(module, whole)
            rows.append(["  " * (module.depth - lowest) + _label(module), *[cells[name] for name in columns]])
    compiled = any(module.compiled for module in profile.modules)
    return _columns(rows) + ("\ncompiled: counted with the module around it" if compiled else "")


def _label(module: ModuleProfile) -> str:
    name = module.path.rpartition(".")[2]
    calls = f" x {module.calls}" if module.calls > 1 else " (compiled)" if module.compiled else ""
    return f"{name} {module.class_name}{calls}".strip() if name != module.class_name else f"{name}{calls}"


def _module_cells(module: ModuleProfile, whole: int) -> dict[str, str]:
    if module.compiled:
        return dict.fromkeys(COLUMNS, UNKNOWN) | {"parameters": count(module.parameters)}
    time = _time(module)
    return {
        "parameters": count(module.parameters),
        "forward": flops(module.forward.model_flops),
        "backward": flops(module.backward.model_flops),
        "recompute": flops(module.recompute.model_flops),
        "bytes": size(module.forward.bytes + module.backward.bytes + module.recompute.bytes),
        "time": duration(time) if time else UNKNOWN,
        "share": share(time / whole) if whole else UNKNOWN,
    }


def _time(module: ModuleProfile) -> int:
    return sum(amount.time_ns or 0 for amount in (module.forward, module.backward, module.recompute))


def _uncovered(profile: ModelProfile) -> str:
    if not profile.uncovered:
        return "Every operator on floating-point data is covered."
    lines = ["No formula for these operators, whose work is in no number above (`whystall.cost.register` adds one):"]
    for one in profile.uncovered:
        where = f", in {', '.join(path or 'the model' for path in one.modules)}" if one.modules else ""
        lines.append(f"  {one.name}: {plural(one.calls, 'call')}{where}" + (f": {one.reason}" if one.reason else ""))
    return "\n".join(lines)


def _timing(profile: ModelProfile) -> str:
    if profile.untimed_because is not None:
        return f"No times: {profile.untimed_because}."
    spread = max((getattr(profile, name).time_spread_ns or 0) for name in ("forward", "backward"))
    several = f"medians of {plural(profile.time_repeats, 'run')}, up to {duration(spread)} apart"
    told = f"Times are {several if profile.time_repeats > 1 else 'those of one run'}."
    on_thread = [
        f"{name} {duration(amount.thread_time_ns)}"
        for name in ("forward", "backward", "recompute", "optimizer")
        if (amount := getattr(profile, name)).thread_time_ns is not None
    ]
    return f"{told} The thread's own, without what others took: {', '.join(on_thread)}." if on_thread else told


def _others(conventions: Mapping[str, int]) -> str:
    rows = [["forward and backward by convention", "FLOPs per token"]]
    rows += [[name, flops(value)] for name, value in conventions.items()]
    return _columns(rows)


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *[cell.rjust(widths[place]) for place, cell in enumerate(row[1:], 1)]]
        ).rstrip()
        for row in rows
    )


def _wrapped(text: str, width: int) -> str:
    from textwrap import fill  # noqa: PLC0415 - needed here alone

    return fill(text, width)
