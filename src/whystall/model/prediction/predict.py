"""``whystall.predict``: the needs of a training step, without running it and without its device."""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal

from msgspec.structs import replace

from whystall.errors import UsageError, WhystallError
from whystall.hardware import Accelerator
from whystall.memory.allocator_settings import parse_settings
from whystall.model.prediction import pipeline, remedies
from whystall.model.prediction.checks import check
from whystall.model.prediction.conventions import all_of, megatron_activations
from whystall.model.prediction.events import Record
from whystall.model.prediction.fitting import device_named, fit
from whystall.model.prediction.largest import MOST, largest_batch
from whystall.model.prediction.outcome import Simulated
from whystall.model.prediction.peaks import KINDS, SectionPeak
from whystall.model.prediction.recompute import recompute_rows
from whystall.model.prediction.request import Request
from whystall.model.prediction.reserving import holds, reserved_bytes
from whystall.model.prediction.results import (
    Basis,
    BatchPeak,
    ModuleBytes,
    OptionRow,
    PhasePeak,
    PhaseWork,
    Prediction,
    Remedy,
)
from whystall.model.prediction.simulator import Simulator
from whystall.model.prediction.table import DEVICES, options_table

_MOST_MODULES: Final = 12
_ON_CPU: Final = (
    0.12,
    "the most at a first look at models of other kinds; typically below 0.1 %, recurrent networks apart",
)
_ELSEWHERE: Final = (None, "reasoned from the kernels' formulas; no step on such a device was measured")


def predict(
    model: str | Callable[..., Any],
    *,
    batch: int | Literal["max"] | None = None,
    remedies: bool | None = None,
    conventions: bool = False,
    reserved: bool = False,
    allocator: str | None = None,
    simulator: Simulator | None = None,
    **options: Any,
) -> Prediction:
    """The peak memory of a training step of the model that a factory makes, by phase and kind.

    ``model`` is ``package.module:function`` or ``file.py:function``, or such a function itself, as ``whystall model``
    takes it. ``options`` are the fields of ``Request``: ``dtype``, ``optimizer``, ``device`` and so on; a ``batch`` of
    ``"max"`` is the largest that fits the device, or ``limit_bytes``; with ``effective_batch`` it is the largest that
    divides it. ``remedies`` are computed where the step does not fit its device, or on request; ``conventions`` are the
    figures of papers and other tools for parameters and optimizer; ``reserved`` is the memory of an accelerator's
    caching allocator, for which every block is run, and whether that fits; ``allocator`` are settings of it as
    PYTORCH_ALLOC_CONF has them. Raises ``UsageError`` for inconsistent options and ``InputError`` where the model
    fails.
    """
    name = model if isinstance(model, str) else _named(model)
    try:
        request = Request(target=name, batch=None if batch == "max" else batch, **options)
    except TypeError as error:
        raise UsageError(f"predict: {error}") from None
    check(request)
    settings = parse_settings(allocator or "")
    if allocator is not None and not reserved:
        raise UsageError("settings of the allocator change what is reserved: add --reserved")
    if reserved and (request.on_cpu or request.devices > 1):
        raise UsageError("--reserved works for a single accelerator rank: pass --device and drop --ranks")
    if conventions and request.pipeline_parallel > 1:
        raise UsageError(
            "conventions are those of a model on each rank: leave --conventions or --pipeline-parallel out"
        )
    row = device_named(request.device)
    if row is not None and row.capability is not None:
        request = replace(request, capability=row.capability)
    with contextlib.nullcontext(simulator) if simulator is not None else Simulator() as own:
        tried: tuple[BatchPeak, ...] = ()
        if batch == "max":
            tried, largest = _batches(request, row, own)
            request = replace(request, batch=largest or 1)
        found = replace(_predicted(request, row, own, remedies, conventions), batches=tried)
        if not reserved:
            return found
        record = own.run(replace(request, events=True)).record
        where = fit(request, row, found.peak_bytes, holds=lambda room: holds(record, settings, room))
        return replace(found, reserved_bytes=reserved_bytes(record, settings), allocator=allocator, fit=where)


def option_rows(
    model: str | Callable[..., Any], devices: Sequence[str] = (), *, simulator: Simulator, **options: Any
) -> tuple[OptionRow, ...]:
    """Which options fit which devices (without names a row of common ones); options as those of `predict`."""
    request = Request(target=model if isinstance(model, str) else _named(model), **options)
    check(request)
    return options_table(request, devices or DEVICES, simulator)


def allocations(model: str | Callable[..., Any], *, simulator: Simulator, **options: Any) -> Record:
    """Every allocation of two steps in order, to simulate an allocator; options as those of `predict`."""
    request = Request(target=model if isinstance(model, str) else _named(model), events=True, **options)
    check(request)
    return simulator.run(request).record


def _named(factory: Callable[..., Any]) -> str:
    """A function by file and name, for the process that calls it."""
    try:
        path = inspect.getsourcefile(factory)
    except TypeError:
        path = None
    name = getattr(factory, "__qualname__", "")
    if path is None or not path.endswith(".py") or not name or "<" in name:
        raise UsageError("predict wants a function that another process can import: one at the top of a file")
    return f"{path}:{name}"


def _predicted(
    request: Request, row: Accelerator | None, simulator: Simulator, wanted: bool | None, others: bool
) -> Prediction:
    whole = simulator.run(request)
    own = pipeline.fullest(whole, request)
    found = _prediction(request, own, row)
    if request.pipeline_parallel > 1:
        found = replace(found, stages=tuple(one.peak_bytes for one in pipeline.ranks_of(whole, request)))
    if others:
        largest = whole.largest_unit_bytes * whole.parameters // max(whole.parameter_bytes, 1)
        told = dict(all_of(whole.parameters, request.ranks, largest))
        if whole.sizes is not None and request.backward:
            told["activations (Megatron, 16 bits)"] = megatron_activations(
                whole.sizes,
                tensor_parallel=request.tensor_parallel,
                sequence_parallel=request.sequence_parallel,
            )
        found = replace(found, conventions=told)
    misfit = found.fit is not None and not found.fit.fits
    if wanted or (wanted is None and misfit):
        again, why_not = recompute_rows(request, own, *_fitting(request, row, simulator))
        tried = tuple(_remedies(request, row, whole, found, simulator))
        return replace(found, remedies=tried, recompute=again, no_recompute_because=why_not)
    return found


def _fitting(
    request: Request, row: Accelerator | None, simulator: Simulator
) -> tuple[Callable[[Request], Simulated | None], Callable[[int], bool]]:
    """How another request of the same step is simulated, ``None`` where the model cannot, and whether a peak fits."""

    def run(other: Request) -> Simulated | None:
        try:
            return pipeline.fullest(simulator.run(other), other)
        except WhystallError:
            return None

    def fits(peak_bytes: int) -> bool:
        where = fit(request, row, peak_bytes)
        return where is not None and where.fits

    return run, fits


def _batches(
    request: Request, row: Accelerator | None, simulator: Simulator
) -> tuple[tuple[BatchPeak, ...], int | None]:
    if fit(request, row, 0) is None:
        raise UsageError(
            "the largest batch is that which fits a device: name it by --device 'NVIDIA H100 80GB HBM3', or say how "
            "much there is by --limit 8GiB"
        )

    def predicted(batch: int) -> BatchPeak:
        asked = replace(request, batch=batch)
        own = pipeline.fullest(simulator.run(asked), asked)
        where = fit(asked, row, own.peak_bytes)
        spare = 0 if where is None else where.spare_bytes
        times = [one.time_ns for one in own.work.values()]
        return BatchPeak(
            batch=batch,
            peak_bytes=own.peak_bytes,
            spare_bytes=spare,
            least_ns=sum(times) if times and all(times) else None,
        )

    if request.effective_batch is None:
        return largest_batch(predicted)
    share = min(request.effective_batch // request.ranks, MOST)
    whole = predicted(share)
    if whole.fits or share == 1:  # gradients need not wait for others
        return (whole,), share if whole.fits else None
    tried, largest = largest_batch(predicted, share - 1)
    even = next((batch for batch in range(largest or 0, 0, -1) if share % batch == 0), None)
    return (*tried, whole), even


def _prediction(request: Request, own: Simulated, row: Accelerator | None) -> Prediction:
    peaks = own.phase_peaks()
    if not peaks:
        raise UsageError(f"{request.target} allocates nothing")
    phase = max(peaks, key=lambda name: peaks[name].n_bytes)
    share, source = _ON_CPU if request.on_cpu else _ELSEWHERE
    path, count = own.blocks or (None, 0)
    where = fit(request, row, own.peak_bytes)
    return Prediction(
        request=request,
        parameters=own.parameters,
        trainable_parameters=own.trainable,
        peak_bytes=own.peak_bytes,
        peak_phase=phase,
        phases=tuple(PhasePeak(phase=name, n_bytes=one.n_bytes, held=_held(one)) for name, one in peaks.items()),
        activations=_modules(peaks),
        work=tuple(
            PhaseWork(phase=name, flops=one.flops, n_bytes=one.n_bytes, least_ns=one.time_ns or None)
            for name, one in own.work.items()
        ),
        basis=Basis(
            blocks_path=path,
            blocks=count,
            depths=own.depths,
            depth_error=own.depth_error,
            error_share=share,
            error_source=source,
        ),
        tensor_parallel_bytes=own.tensor_parallel_bytes,
        assumed=_assumed(request, own),
        uncovered=tuple(own.uncovered),
        fit=where,
        unfit_because=_why_no_fit(request, row) if where is None else None,
    )


def _why_no_fit(request: Request, row: Accelerator | None) -> str:
    return (
        "a CPU's memory is the machine's: add --device 'NVIDIA H100 80GB HBM3' to see whether it fits, or --limit 8GiB"
        if row is None
        else f"the table of accelerators does not know how much memory {request.device} has"
    )


def _held(peak: SectionPeak) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for (kind, _), n_bytes in peak.holdings.items():
        sums[kind] += n_bytes
    return {kind: sums[kind] for kind in KINDS if sums[kind]}


def _modules(peaks: dict[str, SectionPeak]) -> tuple[ModuleBytes, ...]:
    """Where the activations of the fullest moment with any were made, largest first."""
    fullest = max((peaks[name] for name in ("forward", "backward") if name in peaks), key=lambda one: one.n_bytes)
    held = [
        ModuleBytes(module=module, n_bytes=n_bytes)
        for (kind, module), n_bytes in fullest.holdings.items()
        if kind == "activations" and n_bytes
    ]
    return tuple(sorted(held, key=lambda one: (-one.n_bytes, one.module))[:_MOST_MODULES])


def _assumed(request: Request, own: Simulated) -> tuple[str, ...]:
    told = list(own.assumed)
    if request.backward:
        told.insert(
            0,
            f"gradients are {'kept' if request.keeps_gradients else 'dropped'} before the forward pass; the last "
            "step's outputs live until the next ones",
        )
    if not request.on_cpu:
        told.append("sizes are rounded to 512 B; torch's attention and RMS normalisation are CUDA's fused kernels")
        told.append("what the allocator keeps cached beyond this, and workspaces of convolutions, are not in it")
    if request.strategy in {"zero1", "zero2", "zero3"}:
        told.append(
            f"{request.strategy}: the step of one device, with what that stage divides divided by {request.ranks}"
        )
    return (*told, *_parallel(request))


def _parallel(request: Request) -> Iterator[str]:
    if request.tensor_parallel > 1:
        yield (
            f"tensor parallelism of {request.tensor_parallel}: in each block products of what all ranks have are split "
            "by columns, what takes their results by rows; words and the head by vocabulary"
            + (", all else along the sequence" if request.sequence_parallel else "")
            + "; buffers of its communication are not in it"
        )
    if request.pipeline_parallel > 1:
        batches = "at least one micro-batch per stage" if request.micro_batches is None else "micro-batches"
        yield (
            f"{request.pipeline_parallel} stages of equally many blocks, one forward and one backward in turn (1F1B), "
            f"{batches}; work and time are of one micro-batch on a stage with both ends"
        )
    if request.expert_parallel > 1:
        yield (
            f"experts spread over {request.expert_parallel} ranks, every expert gets its share of tokens; buffers of "
            "the all-to-all are not in it"
        )


def _remedies(
    request: Request, row: Accelerator | None, whole: Simulated, found: Prediction, simulator: Simulator
) -> list[Remedy]:
    """Remedies that save something, largest saving first; for more ranks the fewest that fit, else the most."""
    tried = []
    for text, options, other in remedies.alternatives(request, has_blocks=whole.blocks is not None):
        try:
            step = simulator.run(other)
        except WhystallError:
            continue  # the model fails with this remedy
        tried.append(_remedy(text, options, other, pipeline.fullest(step, other), row, found))
    shared = [
        _remedy(text, options, other, pipeline.fullest(whole, other), row, found)
        for text, options, other in remedies.sharded(request)
    ]
    fitting = [one for one in shared if one.fits]
    tried += fitting[:1] or shared[-1:]
    return sorted((one for one in tried if one.saved_bytes > 0), key=lambda one: (not one.fits, -one.saved_bytes))


def _remedy(
    text: str, options: str, request: Request, step: Simulated, row: Accelerator | None, found: Prediction
) -> Remedy:
    where = fit(request, row, step.peak_bytes)
    before = [one.least_ns for one in found.work]
    return Remedy(
        text=text,
        options=options,
        peak_bytes=step.peak_bytes,
        saved_bytes=found.peak_bytes - step.peak_bytes,
        more_flops=sum(one.flops for one in step.work.values()) - found.flops,
        more_ns=None if None in before else sum(one.time_ns for one in step.work.values()) - sum(filter(None, before)),
        fits=where is not None and where.fits,
    )
