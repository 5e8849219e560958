"""A prediction as a document: memory over time, whether it fits, remedies, and the assumptions."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill

from whystall.hardware import find
from whystall.model.prediction.largest import MOST
from whystall.model.prediction.peaks import KINDS
from whystall.model.prediction.results import Prediction, Recompute, Remedy
from whystall.report import tables
from whystall.report.document import Document, Part, Points, Row, as_text, grid
from whystall.report.format import UNKNOWN, count, duration, plural, rate, share, size
from whystall.report.names import clean
from whystall.report.tables import Cell

_REMEDIES = 6


def render_prediction(found: Prediction, *, width: int = 100) -> str:
    """The prediction as text of at most ``width`` columns, tables apart."""
    return as_text(prediction_document(found, width), width)


def prediction_document(found: Prediction, width: int) -> Document:
    """The prediction for lines of ``width`` columns, tables apart."""
    verdict = fill(_verdict(found), width)
    parts: list[Part] = [
        verdict,
        *_phases(found),
        *_stages(found),
        *_activations(found),
        *_work(found),
        fill(_sent(found), width),
        *_fit(found, width),
        *_batches(found),
        fill(_accumulation(found), width),
        *_remedies(found),
        *_recompute(found, width),
        *_conventions(found),
        Points(tuple(_basis(found))),
    ]
    return Document("model --predict", verdict, tuple(part for part in parts if part))


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


def _phases(found: Prediction) -> Iterator[Part]:
    kinds = [kind for kind in KINDS if any(phase.held.get(kind) for phase in found.phases)]
    rows: list[Row] = [[kind, *(_amount(phase.held.get(kind, 0)) for phase in found.phases)] for kind in kinds]
    rows.append(["all", *(tables.size(phase.n_bytes) for phase in found.phases)])
    trained = (
        ""
        if found.trainable_parameters == found.parameters
        else f", {count(found.trainable_parameters)} of them trained"
    )
    yield f"{count(found.parameters)} parameters{trained}"
    yield grid("Memory held by phase", ("held at the peak of", *(phase.phase for phase in found.phases)), rows)


def _sharing(found: Prediction) -> str:
    request = found.request
    kinds = [("tensor parallel", request.tensor_parallel), ("stages", request.pipeline_parallel)]
    told = [f"{number} {name}" for name, number in kinds if number > 1]
    return " by ".join([*told, *([f"{request.ranks} {request.strategy}"] if request.ranks > 1 else [])])


def _stages(found: Prediction) -> Iterator[Part]:
    if found.stages:
        rows: list[Row] = [[str(number), tables.size(held)] for number, held in enumerate(found.stages)]
        yield grid("Memory of a rank, by stage", ("stage", "held at most"), rows)


def _amount(n_bytes: int) -> Cell:
    return tables.size(n_bytes) if n_bytes else Cell("-", 0)


def _activations(found: Prediction) -> Iterator[Part]:
    whole = sum(one.n_bytes for one in found.activations)
    shown = [one for one in found.activations if one.n_bytes * 100 >= whole]
    if shown:
        rows: list[Row] = [[clean(one.module) or "the model itself", tables.size(one.n_bytes)] for one in shown]
        yield grid("Where activations are made", ("activations made in", "kept"), rows, first="name")


def _work(found: Prediction) -> Iterator[Part]:
    rows: list[Row] = [
        [one.phase, _flops(one.flops), tables.size(one.n_bytes), tables.duration(one.least_ns)] for one in found.work
    ]
    known = [one.least_ns for one in found.work if one.least_ns is not None]
    if known and len(known) == len(found.work):
        moved = sum(one.n_bytes for one in found.work)
        rows.append(["all", _flops(found.flops), tables.size(moved), tables.duration(sum(known))])
    if found.work:
        yield grid("The work of a step", ("work of", "FLOPs", "bytes", "at least"), rows)


def _sent(found: Prediction) -> str:
    """Traffic of tensor parallelism, and its time on a link at its peak."""
    sent = found.tensor_parallel_bytes
    if not sent:
        return ""
    row = find(found.request.device)
    link = None if row is None else row.link_gb_per_s
    over = f", which takes the device's own link {duration(round(sent / link))} or more" if link else ""
    return f"A rank sends {size(sent)} in a step, at least, to those that share its products{over}."


def _flops(value: int) -> Cell:
    return Cell(rate(float(value), "").strip() if value >= 1000 else str(value), value)


def _fit(found: Prediction, width: int) -> Iterator[Part]:
    fit = found.fit
    if fit is None:
        if found.unfit_because:
            yield fill(f"Whether it fits is not said: {found.unfit_because}.", width)
        return
    rows = [
        ["tensors may hold (the limit)" if fit.limited else "usable", size(fit.capacity_bytes)],
        ["this step", size(found.peak_bytes)],
    ]
    rows += [[f"outside of tensors: {one.what}", f"{size(one.n_bytes)}  assumed ({one.source})"] for one in fit.outside]
    rows.append(["to spare" if fit.spare_bytes >= 0 else "missing", size(abs(fit.spare_bytes))])
    yield grid("Whether it fits", (f"on {clean(fit.device)}", "bytes"), rows)


def _batches(found: Prediction) -> Iterator[Part]:
    if not found.batches:
        return
    largest = max((one.batch for one in found.batches if one.fits), default=None)
    head = "Not even one sample fits." if largest is None else f"The largest batch that fits is {count(largest)}."
    if largest == MOST:
        head = f"{count(MOST)} samples fit; larger batches were not predicted."
    timed = any(one.least_ns for one in found.batches)
    rows: list[Row] = []
    for one in found.batches:
        spare = size(one.spare_bytes) if one.fits else f"{size(-one.spare_bytes)} missing"
        fastest = UNKNOWN if not one.least_ns else rate(one.batch / one.least_ns * 1e9, "").strip()
        own: Row = [count(one.batch), tables.size(one.peak_bytes), Cell(spare, one.spare_bytes)]
        rows.append([*own, *([fastest] if timed else [])])
    if found.request.ranks > 1 and largest is not None:
        head += f" All {count(found.request.ranks)} ranks hold the same, so that it is the same for each of them."
    yield head
    yield grid("Batches", ("batch", "held at most", "to spare", *(["samples/s at most"] if timed else [])), rows)


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


def _remedies(found: Prediction) -> Iterator[Part]:
    if found.remedies:
        yield "Remedies that need less memory, each predicted like the step itself:"
        yield Points(tuple(map(_remedy, found.remedies[:_REMEDIES])))


def _remedy(one: Remedy) -> str:
    more = [rate(float(one.more_flops), "FLOP")] if one.more_flops > 0 else []
    more += [f"at least {duration(one.more_ns)}"] if one.more_ns is not None and one.more_ns > 0 else []
    cost = f", {' and '.join(more)} more a step" if more else ""
    fits = ", and fits" if one.fits else ""
    return f"{one.text}: {size(one.saved_bytes)} less ({size(one.peak_bytes)}{fits}{cost}): {one.options}"


def _recompute(found: Prediction, width: int) -> Iterator[Part]:
    """Modules to recompute: a table with running totals, and the memory that the modules in it keep."""
    if found.no_recompute_because is not None:
        yield fill(f"Nothing to compute again is named: {found.no_recompute_because}.", width)
        return
    if not found.recompute:
        return
    head = (
        "Recompute instead of keeping (torch.utils.checkpoint), most bytes per FLOP first, each with those above it "
        "and predicted like the step itself:"
    )
    labels = ("computed again", "saves", "FLOPs more", "of the step's", "saved in all", "held then")
    rows: list[Row] = []
    for one in found.recompute:
        then = Cell(f"{size(one.peak_bytes)}, fits" if one.fits else size(one.peak_bytes), one.peak_bytes)
        more = [_flops(one.more_flops), tables.share(one.flops_share)]
        rows.append([_again(one), tables.size(one.saved_bytes), *more, tables.size(one.total_saved_bytes), then])
    last = found.recompute[-1]
    short = "" if last.fits or found.fit is None or found.fit.fits else " It does not fit with all of them."
    cost = f"All of it: {_flops(last.total_more_flops).text} FLOPs more a step, as {last.options}.{short}"
    yield fill(head, width)
    yield grid("Modules to recompute", labels, rows, first="name")
    yield Points(tuple(dict.fromkeys(map(_keeps, found.recompute))))
    yield fill(cost, width)


def _again(one: Recompute) -> str:
    """The modules of a row: name, class, calls."""
    calls = f", {plural(one.calls, 'call')}" if one.calls > 1 else ""
    return f"{clean(one.module)} ({clean(one.kind)}{calls}){', all but products' if one.keeps_products else ''}"


def _keeps(one: Recompute) -> str:
    made = ", ".join(f"{size(n_bytes)} by {clean(name)}" for name, n_bytes in one.operators.items() if n_bytes)
    return f"{clean(one.module)} keeps {size(one.kept_bytes)} inside, made most by these operators: {made}"


def _conventions(found: Prediction) -> Iterator[Part]:
    if found.conventions:
        labels = ("parameters, gradients, optimizer and activations by convention", "bytes per rank")
        rows: list[Row] = [[name, tables.size(value)] for name, value in found.conventions.items()]
        yield grid("What others count", labels, rows)


def _basis(found: Prediction) -> Iterator[str]:
    basis = found.basis
    if basis.depths:
        depths = ", ".join(map(str, basis.depths))
        yield (
            f"Of the {basis.blocks} blocks in {clean(basis.blocks_path or 'the model')} {depths} were run, the rest "
            f"follows from them; the deepest was foretold from the others to {share(basis.depth_error)}."
        )
    stages = found.request.pipeline_parallel
    if stages > 1:
        batches = found.request.in_a_step
        yield (
            f"A stage waits for others in at least {share(found.bubble_share())} of a step, with {batches} "
            f"micro-batches on {stages} stages; with {4 * batches} it were {share(found.bubble_share(4))}."
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
