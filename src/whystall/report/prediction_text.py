"""A prediction as text: what is held when, whether it fits, what would help, and what all that rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import fill

from whystall.model.prediction.largest import MOST
from whystall.model.prediction.peaks import KINDS
from whystall.model.prediction.results import Prediction, Recompute, Remedy
from whystall.report.format import UNKNOWN, count, duration, plural, rate, share, size
from whystall.report.names import clean

_REMEDIES = 6


def render_prediction(found: Prediction, *, width: int = 100) -> str:
    """The prediction as text of at most ``width`` columns, tables apart."""
    parts = [
        fill(_verdict(found), width),
        _phases(found),
        _stages(found),
        _activations(found),
        _work(found),
        _fit(found, width),
        _batches(found),
        fill(_accumulation(found), width),
        _remedies(found),
        _recompute(found, width),
        _conventions(found),
        "\n".join(fill(f"- {line}", width, subsequent_indent="  ") for line in _basis(found)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _verdict(found: Prediction) -> str:
    request = found.request
    peak = found.phase(found.peak_phase)
    largest = max(peak.held, key=lambda kind: peak.held[kind])
    where = "on a CPU" if request.on_cpu else f"on {clean(request.device)}"
    each = f" on each of {plural(request.ranks, 'rank')} ({request.strategy})" if request.ranks > 1 else ""
    if request.devices > request.ranks:
        each = f" on one of {plural(request.devices, 'device')} ({_sharing(found)})"
    step = "a training step" if request.backward else "a forward pass"
    text = (
        f"{clean(request.target)}: {step} {where} holds {size(found.peak_bytes)} at most{each}, in the "
        f"{found.peak_phase} phase; most of it is {largest} ({size(peak.held[largest])})."
    )
    temporaries = peak.held.get("temporaries", 0)
    if found.peak_phase == "optimizer" and temporaries > found.peak_bytes // 20:
        text += (
            f" {size(temporaries)} are temporaries of the optimizer"
            + (", which works on all parameters at once (foreach)" if request.kernels in {"default", "foreach"} else "")
            + "."
        )
    if found.fit is not None:
        text += (
            f" It fits, with {size(found.fit.spare_bytes)} to spare."
            if found.fit.fits
            else " It does not fit: tensors would, and the allocator's segments do not."
            if found.fit.fragmented
            else f" It does not fit: {size(-found.fit.spare_bytes)} are missing."
        )
    return text


def _phases(found: Prediction) -> str:
    kinds = [kind for kind in KINDS if any(phase.held.get(kind) for phase in found.phases)]
    rows = [["held at the peak of", *(phase.phase for phase in found.phases)]]
    rows += [[kind, *(_amount(phase.held.get(kind, 0)) for phase in found.phases)] for kind in kinds]
    rows.append(["all", *(size(phase.n_bytes) for phase in found.phases)])
    trained = (
        ""
        if found.trainable_parameters == found.parameters
        else f", {count(found.trainable_parameters)} of them trained"
    )
    return f"{count(found.parameters)} parameters{trained}\n\n{columns(rows)}"


def _sharing(found: Prediction) -> str:
    request = found.request
    kinds = [("tensor parallel", request.tensor_parallel), ("stages", request.pipeline_parallel)]
    told = [f"{number} {name}" for name, number in kinds if number > 1]
    return " by ".join([*told, *([f"{request.ranks} {request.strategy}"] if request.ranks > 1 else [])])


def _stages(found: Prediction) -> str:
    rows = [["stage", "held at most"], *([str(number), size(held)] for number, held in enumerate(found.stages))]
    return columns(rows) if found.stages else ""


def _amount(n_bytes: int) -> str:
    return size(n_bytes) if n_bytes else "-"


def _activations(found: Prediction) -> str:
    whole = sum(one.n_bytes for one in found.activations)
    shown = [one for one in found.activations if one.n_bytes * 100 >= whole]
    rows = [["activations made in", "kept"]]
    rows += [[clean(one.module) or "the model itself", size(one.n_bytes)] for one in shown]
    return columns(rows) if shown else ""


def _work(found: Prediction) -> str:
    rows = [["work of", "FLOPs", "bytes", "at least"]]
    rows += [[one.phase, _flops(one.flops), size(one.n_bytes), _least(one.least_ns)] for one in found.work]
    known = [one.least_ns for one in found.work if one.least_ns is not None]
    if known and len(known) == len(found.work):
        moved = sum(one.n_bytes for one in found.work)
        rows.append(["all", _flops(found.flops), size(moved), _least(sum(known))])
    return columns(rows) if found.work else ""


def _flops(value: int) -> str:
    return rate(float(value), "").strip() if value >= 1000 else str(value)


def _least(value: int | None) -> str:
    return UNKNOWN if value is None else duration(value)


def _fit(found: Prediction, width: int) -> str:
    fit = found.fit
    if fit is None:
        return fill(f"Whether it fits is not said: {found.unfit_because}.", width) if found.unfit_because else ""
    rows = [
        [f"on {clean(fit.device)}", ""],
        ["tensors may hold (the limit)" if fit.limited else "usable", size(fit.capacity_bytes)],
        ["this step", size(found.peak_bytes)],
    ]
    rows += [[f"outside of tensors: {one.what}", f"{size(one.n_bytes)}  assumed ({one.source})"] for one in fit.outside]
    rows.append(["to spare" if fit.spare_bytes >= 0 else "missing", size(abs(fit.spare_bytes))])
    widest = max(len(row[0]) for row in rows)
    return "\n".join(f"{name.ljust(widest)}  {value}".rstrip() for name, value in rows)


def _batches(found: Prediction) -> str:
    if not found.batches:
        return ""
    largest = max((one.batch for one in found.batches if one.fits), default=None)
    head = "Not even one sample fits." if largest is None else f"The largest batch that fits is {count(largest)}."
    if largest == MOST:
        head = f"{count(MOST)} samples fit; larger batches were not predicted."
    timed = any(one.least_ns for one in found.batches)
    rows = [["batch", "held at most", "to spare", *(["samples/s at most"] if timed else [])]]
    for one in found.batches:
        spare = size(one.spare_bytes) if one.fits else f"{size(-one.spare_bytes)} missing"
        fastest = UNKNOWN if not one.least_ns else rate(one.batch / one.least_ns * 1e9, "").strip()
        rows.append([count(one.batch), size(one.peak_bytes), spare, *([fastest] if timed else [])])
    if found.request.ranks > 1 and largest is not None:
        head += f" All {count(found.request.ranks)} ranks hold the same, so that it is the same for each of them."
    return f"{head}\n\n{columns(rows)}"


def _accumulation(found: Prediction) -> str:
    request = found.request
    if request.effective_batch is None or request.batch is None:
        return ""
    if request.accumulated == 1:
        return f"One batch of {count(request.batch)} makes the effective batch: nothing is accumulated."
    ranks = f" on each of {plural(request.ranks, 'rank')}" if request.ranks > 1 else ""
    return accumulation_text(request.accumulated, request.batch, ranks, request.effective_batch)


def accumulation_text(batches: int, batch: int, ranks: str, effective: int) -> str:
    """How ``batches`` of ``batch`` samples make the step of an ``effective`` one, and where they do not quite."""
    unsynchronised = " Under DDP all but the last backward pass go inside no_sync()." if ranks else ""
    return (
        f"{count(batches)} batches of {count(batch)}{ranks} make an effective batch of {count(effective)}: divide each "
        f"loss by {count(batches)}, call backward() on each, and step() and zero_grad() once after the last."
        f"{unsynchronised} The gradient is the same where the loss is a mean over samples; batch normalisation sees "
        f"{count(batch)} at a time, and a loss that ignores some labels is to be divided by how many all batches have."
    )


def _remedies(found: Prediction) -> str:
    if not found.remedies:
        return ""
    lines = ["What needs less, each predicted like the step itself:"]
    lines += [_remedy(number, one) for number, one in enumerate(found.remedies[:_REMEDIES], 1)]
    return "\n".join(lines)


def _remedy(number: int, one: Remedy) -> str:
    more = [rate(float(one.more_flops), "FLOP")] if one.more_flops > 0 else []
    more += [f"at least {duration(one.more_ns)}"] if one.more_ns is not None and one.more_ns > 0 else []
    cost = f", {' and '.join(more)} more a step" if more else ""
    fits = ", and fits" if one.fits else ""
    return f"{number}. {one.text}: {size(one.saved_bytes)} less ({size(one.peak_bytes)}{fits}{cost})\n   {one.options}"


def _recompute(found: Prediction, width: int) -> str:
    """What to compute again: a table with running totals, and what the modules in it keep."""
    if found.no_recompute_because is not None:
        return fill(f"Nothing to compute again is named: {found.no_recompute_because}.", width)
    if not found.recompute:
        return ""
    head = (
        "What to compute again instead of keeping (torch.utils.checkpoint), most bytes per FLOP first, each with those "
        "above it and predicted like the step itself:"
    )
    rows = [["computed again", "saves", "FLOPs more", "of the step's", "saved in all", "held then"]]
    for one in found.recompute:
        then = f"{size(one.peak_bytes)}, fits" if one.fits else size(one.peak_bytes)
        more = [_flops(one.more_flops), share(one.flops_share)]
        rows.append([_again(one), size(one.saved_bytes), *more, size(one.total_saved_bytes), then])
    kept = [f"- {_keeps(one)}" for one in found.recompute]
    lines = [fill(line, width, subsequent_indent="  ") for line in dict.fromkeys(kept)]
    last = found.recompute[-1]
    short = "" if last.fits or found.fit is None or found.fit.fits else " It does not fit with all of them."
    cost = f"All of it: {_flops(last.total_more_flops)} FLOPs more a step, as {last.options}.{short}"
    return "\n".join([fill(head, width), "", columns(rows), "", *lines, fill(cost, width)])


def _again(one: Recompute) -> str:
    """The modules of a row: name, class, calls."""
    calls = f", {plural(one.calls, 'call')}" if one.calls > 1 else ""
    return f"{clean(one.module)} ({clean(one.kind)}{calls}){', all but products' if one.keeps_products else ''}"


def _keeps(one: Recompute) -> str:
    made = ", ".join(f"{size(n_bytes)} by {clean(name)}" for name, n_bytes in one.operators.items() if n_bytes)
    return f"{clean(one.module)} keeps {size(one.kept_bytes)} inside, made most by these operators: {made}"


def _conventions(found: Prediction) -> str:
    if not found.conventions:
        return ""
    rows = [["parameters, gradients and optimizer by convention", "bytes per rank"]]
    return columns([*rows, *([name, size(value)] for name, value in found.conventions.items())])


def _basis(found: Prediction) -> Iterator[str]:
    basis = found.basis
    if basis.depths:
        depths = ", ".join(map(str, basis.depths))
        yield (
            f"Of the {basis.blocks} blocks in {clean(basis.blocks_path or 'the model')} {depths} were run, the rest "
            f"follows from them; the deepest was foretold from the others to {share(basis.depth_error)}."
        )
    error = "unknown" if basis.error_share is None else f"up to {share(basis.error_share)}"
    yield f"Error of the peak: {error} ({basis.error_source})."
    if found.reserved_bytes is not None:
        with_settings = "" if found.allocator is None else f" with {clean(found.allocator)}"
        yield (
            f"torch's caching allocator would reserve {size(found.reserved_bytes)} for it, "
            f"{size(max(found.reserved_bytes - found.peak_bytes, 0))} of them beyond what is held at the peak: free "
            f"blocks that nothing fits (by torch's rules{with_settings}, on one stream; on no device compared)."
        )
    for line in found.assumed:
        yield f"Assumed: {line}."
    if found.uncovered:
        yield f"Without a formula for their work: {', '.join(map(clean, found.uncovered))}."


def columns(rows: Sequence[Sequence[str]]) -> str:
    """A table: the first column to the left, the others to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = [
        [row[0].ljust(widths[0]), *(cell.rjust(size_) for cell, size_ in zip(row[1:], widths[1:], strict=True))]
        for row in rows
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)
