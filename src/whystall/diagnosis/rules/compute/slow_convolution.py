"""Convolutions with very long kernels, or with a column times a row, and those that torch computes by itself.

The algorithm that cuDNN chose is in no trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import log2, prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.converted_convolutions import Converted, converted_convolutions
from whystall.diagnosis.detectors.kernels import (
    BANDWIDTH_REACHED,
    LEAST_REACHED,
    REACHED,
    costliest_call,
    durations,
    shortened,
)
from whystall.diagnosis.detectors.measured_convolutions import measured_until, settles, trials
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rewrites.kernels import SEPARABLE
from whystall.diagnosis.rewrites.price import price_on
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.json_text import parse_json
from whystall.replay.graph import Change
from whystall.trace.columns import judged, matching
from whystall.trace.link import rows_of

CAUSE: Final = cause_beside(__name__)
_LEAST_KERNEL: Final = CAUSE.threshold("least_kernel")
_LEAST_RATIO: Final = CAUSE.threshold("least_ratio")
_LEAST_SHARE: Final = CAUSE.threshold("least_share")
_LARGEST: Final = 1 << 40
_MOST_SIZES: Final = 10
# Time of a transform's FLOP relative to a convolution's: as expected, at most, at least.
_SLOWER: Final = (6.0, 20.0, 2.0)
_BY_TRANSFORM: Final = Remedy(
    text="Convolve by Fourier transforms: with a kernel this long they take a small part of the arithmetic.",
    patch="size = signal.shape[-1] + kernel.shape[-1] - 1\n"
    "found = torch.fft.irfft(torch.fft.rfft(signal, size) * torch.fft.rfft(kernel, size), size)",
    risk="The result differs by rounding; slice it as the convolution's padding did (torch's conv does not flip the "
    "kernel: flip it first).",
)
_BY_STFT: Final = Remedy(
    text="Take the spectrum of the frames by Fourier transforms (torch.stft), where the kernels are sines and cosines "
    "that nothing learns.",
    patch="found = torch.stft(signal, n_fft, hop_length, window=window, center=False, return_complex=True)",
    risk="Real and imaginary parts come as one complex tensor, which differs by rounding.",
)


_FALLBACK: Final = re.compile(r"^aten::(_?slow_conv|thnn_conv\dd_forward)")
_LEAST_FALLBACK: Final = CAUSE.threshold("least_fallback")
_LEFT_OF_FALLBACK: Final = CAUSE.threshold("left_of_fallback")
_LEFT_AT_MOST: Final = CAUSE.threshold("left_at_most")
_LEFT_AT_LEAST: Final = CAUSE.threshold("left_at_least")
_LEFT_OF_UNFOLDING: Final = CAUSE.threshold("left_of_unfolding")
_LEFT_OF_UNFOLDING_AT_MOST: Final = CAUSE.threshold("left_of_unfolding_at_most")
_FOR_TRIALS: Final = re.compile(r"(Malloc|Free|EventRecord|EventCreate\w*|EventDestroy)$")
_LEFT_OF_CONVERSIONS: Final = CAUSE.threshold("left_of_conversions")
_BY_CUDNN: Final = Remedy(
    text="Let cuDNN or MIOpen compute the convolutions: they did not take this dtype, size or dilation. Try another "
    "version of the library or of torch, float16 or float32, channels_last_3d, or no dilation. A convolution whose "
    "kernel is as large as its stride is a linear layer on patches.",
    patch=None,
    risk="Results differ by rounding; float16 has a smaller range.",
)
_BY_A_LIBRARY: Final = Remedy(
    text="Let a library compute the convolutions: use a build of PyTorch that has oneDNN (or Arm Compute Library), do "
    "not switch it off, and give it dtypes and shapes that it takes (float32 or bfloat16, no dilated transposed "
    "convolution). python -c 'import torch; print(torch.backends.mkldnn.is_available())' says whether it is there.",
    patch="torch.backends.mkldnn.enabled = True",
    risk="Results differ by rounding.",
)
_BY_SHAPES: Final = Remedy(
    text="oneDNN computes other convolutions of this job and did not take these: give it dtypes and shapes that it "
    "takes (float32 or bfloat16, batches of more than one sample, no dilated transposed convolution).",
    patch=None,
    risk="Results differ by rounding.",
)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of convolutions with long kernels: of a whole signal, or of frames with the functions of a spectrum."""

    what: str
    remedy: Remedy


_FILTER: Final = _Kind("convolutions with long kernels", _BY_TRANSFORM)
_SPECTRUM: Final = _Kind("convolutions with one long kernel per bin of a spectrum", _BY_STFT)


@dataclass(frozen=True, slots=True)
class _Long:
    """Convolutions with long kernels: their rows, and the FLOPs of a transform over theirs."""

    rows: NDArray[np.intp]
    ratio: NDArray[np.float64]
    kernel: int


def on_a_cpu(case: Case) -> Iterator[Replayed]:
    """Convolutions whose kernels are so long that transforms take a small part of their arithmetic."""
    for rank, kind, found in [(one, *each) for one in case.ranks for each in _long(one).items()]:
        expected, most, least = (_with_transforms(rank, found, slower) for slower in _SLOWER)
        nodes = case.host_within_operators(rank, found.rows)
        per_step = case.time_of(nodes)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time(kind.what, per_step, case.events_of(nodes), per=case.per),
                evidence.count("elements of their longest kernel", found.kernel),
                evidence.share("of their arithmetic is what transforms need", float(np.median(found.ratio))),
            ),
            removal=case.without(nodes, expected),
            floor=case.without(nodes, most),
            ceiling=case.without(nodes, least),
            method="replay: the same convolutions by Fourier transforms",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.3,
            confidence=0.85,
            remedy=kind.remedy,
            rivals=("host.small-operators", "host.python"),
        )


def of_a_column_and_a_row(case: Case) -> Iterator[Replayed]:
    """Convolutions whose kernel is a column times a row."""
    for rank in case.ranks:
        found = SEPARABLE.wasted(rank, price_on(rank))
        told = None if found is None else found.candidate(case, rank, CAUSE)
        if told is not None and told.attributed_ns >= _LEAST_SHARE * case.step_ns:
            yield told


def by_the_fallback(case: Case) -> Iterator[Replayed]:
    """Convolutions that torch computes with its own loops on a CPU, since no library took them."""
    for rank in case.ranks:
        slow = matching(rank.trace.operators["name"], lambda name: bool(_FALLBACK.match(name)))
        if not slow.any():
            continue
        nodes = case.work_of(rank, slow | rank.workings.tree.below(slow))
        per_step = case.time_of(nodes)
        if per_step < _LEAST_FALLBACK * case.step_ns:
            continue
        names = sorted(set(rank.trace.operators["name"].filter(slow).cast(str)))
        by_onednn = matching(rank.trace.operators["name"], lambda name: "mkldnn_convolution" in name).any()
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time("in torch's own loops for convolutions", per_step, case.events_of(nodes), per=case.per),
                evidence.count("such calls", int(np.count_nonzero(slow)), per="recording"),
                evidence.text("operators", ", ".join(names)),
            ),
            removal=case.without(nodes, _LEFT_OF_FALLBACK),
            floor=case.without(nodes, _LEFT_AT_MOST),
            ceiling=case.without(nodes, _LEFT_AT_LEAST),
            method="replay: the same convolutions by a library, as measured for usual sizes",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.3,
            confidence=0.85,
            detail=f"{names[0].removeprefix('aten::')} is the fallback where no library takes a convolution",
            remedy=_BY_SHAPES if by_onednn else _BY_A_LIBRARY,
            rivals=("compute.training-mode",),
        )


def by_the_fallback_on_a_device(case: Case) -> Iterator[Replayed]:
    """Convolutions that torch unfolds into columns and multiplies on a device, since no library took them."""
    for rank in case.ranks:
        slow = matching(rank.trace.operators["name"], lambda name: bool(_FALLBACK.match(name)))
        if not rank.on_device or not slow.any():
            continue
        nodes = case.work_of(rank, slow | rank.workings.tree.below(slow))
        unfolds = nodes & ~case.nodes(rank, device=rank.workings.could_use_tensor_cores)
        spent = case.time_of(unfolds)
        if spent < _LEAST_FALLBACK * case.step_ns:
            continue
        names = sorted(set(rank.trace.operators["name"].filter(slow).cast(str)))
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=case.time_of(nodes),
            evidence=(
                evidence.time("torch's own convolutions", case.time_of(nodes), case.events_of(nodes), per=case.per),
                evidence.time("of it besides matrix products", spent, case.events_of(unfolds), per=case.per),
                evidence.text("operators", ", ".join(names)),
            ),
            removal=case.without(unfolds, _LEFT_OF_UNFOLDING),
            floor=case.without(unfolds, _LEFT_OF_UNFOLDING_AT_MOST),
            ceiling=case.without(unfolds),
            method="replay: the matrix products, and a part of what unfolds pictures into columns",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            confidence=0.8,
            detail=f"{names[0].removeprefix('aten::')} is the fallback where no library takes a convolution",
            remedy=_BY_CUDNN,
            rivals=("compute.fusible", "compute.layout-conversion"),
        )


def between_conversions(case: Case) -> Iterator[Replayed]:
    """16-bit convolutions for which a library converts tensors, computes without tensor cores, and converts back."""
    for rank in case.ranks:
        peak = rank.workings.peak
        best = peak and peak.half_tflops
        if not rank.on_device or not best:
            continue
        found = converted_convolutions(rank)
        nodes = case.nodes(rank, device=found.events)
        per_step = case.time_of(nodes)
        if per_step < _LEAST_SHARE * case.step_ns:
            continue

        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time("16-bit convolutions off tensor cores", per_step, case.events_of(nodes), per=case.per),
                evidence.time(
                    "of it in kernels that convert their tensors",
                    case.time_of(case.nodes(rank, device=found.converts)),
                    per=case.per,
                ),
                evidence.text("the costliest call", costliest_call(rank, found.events)),
            ),
            removal=_without_conversions(case, rank, found, best * REACHED, 0.0),
            floor=_without_conversions(case, rank, found, best * LEAST_REACHED, _LEFT_OF_CONVERSIONS),
            ceiling=_without_conversions(case, rank, found, best, 0.0),
            method=f"replay: the same convolutions at {REACHED:.0%} of the tensor cores' peak, without the conversions",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.2,
            confidence=0.85,
            detail="a library converts their tensors, computes without tensor cores, and converts back",
            remedy=CAUSE.remedies["between_conversions"],
            rivals=("compute.fusible",),
        )


def measured_again(case: Case) -> Iterator[Replayed]:
    """Convolutions within which a library times algorithms again and again: all but the last kernels are trials."""
    for rank in case.ranks:
        until = measured_until(rank)
        if not rank.on_device or until is None:
            continue
        calls = rank.trace.runtime_calls
        operator = rows_of(calls["operator"])
        measuring = np.flatnonzero(until[:-1] >= 0)
        begin = rank.trace.operators["ts_ns"].to_numpy()[measuring]
        tried = trials(rank)
        kernels = case.nodes(rank, device=tried)
        host = rank.host_named(lambda name: bool(_FOR_TRIALS.search(name)), ("runtime_calls",))
        first, last = rank.offsets["runtime_calls"]
        host[first:last] &= until[operator] >= 0
        nodes = kernels | case.host_within(rank, begin, until[measuring] + 1) | case.nodes(rank, host=host)
        steps = rank.trace.steps["ts_ns"].to_numpy()
        inside = np.unique(np.searchsorted(steps, begin, side="right"))
        inside = inside[inside > 0]
        per_step = case.time_of(kernels)
        again = 2 * len(inside) > len(steps) or (_comes_back(inside) and not settles(rank, until))
        if per_step < _LEAST_SHARE * case.step_ns or not again:
            continue
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time("kernels that are tried, and their results thrown away", per_step, per=case.per),
                evidence.count(
                    "calls of convolutions that try some, forward and backward",
                    len(measuring) / max(len(steps), 1),
                    per=case.per,
                ),
                evidence.text("the costliest call", costliest_call(rank, tried)),
            ),
            removal=case.without(nodes),
            method="replay: each operator with its last kernels alone",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.2,
            confidence=0.85,
            detail=f"a library measures algorithms again in {len(inside)} of {len(steps)} steps, as it does for sizes "
            "that it has not seen",
            remedy=CAUSE.remedies["measured_again"],
            rivals=("host.launch-bound", "memory.allocator-retry", "host.allocator", "host.sync"),
        )


def _comes_back(measuring: NDArray[np.intp]) -> bool:
    """Whether a library measures again after steps in which it did not. In the first steps it has to."""
    return len(measuring) > 1 and bool((np.diff(measuring) > 1).any())


def _without_conversions(case: Case, rank: RankCase, found: Converted, tflops: float, left: float) -> Change:
    """The events at a rate of arithmetic, or at the device's bandwidth, where a share of the conversions is left."""
    took, ideal = durations(rank), rank.workings.flops() / (tflops * 1e12) * 1e9
    computed = np.maximum(np.where(ideal > 0, ideal, took), rank.workings.transfer_ns() / BANDWIDTH_REACHED)
    return shortened(case, rank, found.events, np.where(found.converts, took * left, computed))


def _with_transforms(rank: RankCase, found: _Long, slower: float) -> float:
    """The remaining share of the time of all of them."""
    lasts = rank.trace.operators["duration_ns"].to_numpy()[found.rows].astype(np.float64)
    return float((lasts * np.minimum(found.ratio * slower, 1.0)).sum() / max(lasts.sum(), 1.0))


def _long(rank: RankCase) -> dict[_Kind, _Long]:
    """Convolutions with long kernels that are slower than transforms, by their recorded sizes and their kind."""
    table = rank.trace.operators
    rows = np.flatnonzero(matching(table["name"], lambda name: name == "aten::convolution"))
    told = judged(table.select("input_dims", "concrete_inputs")[rows], _ratio)
    out = {}
    for kind in (_FILTER, _SPECTRUM):
        found = [(row, *each) for row, each in zip(rows.tolist(), told, strict=True) if each and each[-1] is kind]
        if found:
            out[kind] = _Long(
                np.array([row for row, *_ in found], np.intp),
                np.array([ratio for _, ratio, *_ in found]),
                max(size for _, _, size, _ in found),
            )
    return out


def _ratio(sizes: str | None, values: str | None) -> tuple[float, int, _Kind] | None:
    """The FLOPs of a transform over those of the convolution, the kernel's elements, and the convolution's kind.

    ``None`` where these are few.
    """
    try:
        dims, concrete = parse_json(sizes or ""), parse_json(values or "")
        (batch, inputs, *signal), (outputs, of_group, *kernel) = dims[0], dims[1]
        stride, transposed = parse_json(concrete[3]), concrete[6]
    except (ValueError, TypeError, IndexError, KeyError):
        return None
    if not _plain(batch, inputs, outputs, of_group, *signal, *kernel) or len(signal) != len(kernel):
        return None
    if prod(kernel) < _LEAST_KERNEL or transposed != "False":
        return None
    if set(stride) != {1}:
        return _of_a_spectrum(inputs, outputs, kernel)
    pairs = batch * outputs * of_group
    direct = 2.0 * pairs * prod(kernel) * prod(max(a - b + 1, 1) for a, b in zip(signal, kernel, strict=True))
    points = prod(a + b - 1 for a, b in zip(signal, kernel, strict=True))
    signals = batch * inputs + outputs * of_group + batch * outputs
    transforms = 2.5 * points * log2(points) * signals + 4.0 * points * pairs
    ratio = transforms / direct
    return (ratio, prod(kernel), _FILTER) if ratio * _LEAST_RATIO <= 1 else None


def _of_a_spectrum(inputs: int, outputs: int, kernel: list[int]) -> tuple[float, int, _Kind] | None:
    """The same for the frames of one signal, and one kernel for each part of their spectrum, real and imaginary.

    Or for one of both: each in a convolution of its own.
    """
    if inputs != 1 or len(kernel) != 1 or outputs not in (kernel[0] + 2, kernel[0] // 2 + 1):
        return None
    ratio = 2.5 * log2(kernel[0]) / (2.0 * outputs)
    return (ratio, kernel[0], _SPECTRUM) if ratio * _LEAST_RATIO <= 1 else None


def _plain(*sizes: Any) -> bool:
    return all(isinstance(size, int) and 0 < size < _LARGEST for size in sizes) and len(sizes) <= _MOST_SIZES


_NEEDS: Final = ("trace", "no_device", "operators", "shapes")
RULE = Rule(
    CAUSE,
    (
        *(Finder(find, _NEEDS) for find in (on_a_cpu, of_a_column_and_a_row)),
        Finder(by_the_fallback, ("trace", "no_device", "operators")),
        Finder(by_the_fallback_on_a_device, ("trace", "device_events", "operators")),
        Finder(measured_again, ("trace", "device_events", "launch_calls", "operators", "steps")),
        Finder(between_conversions, ("trace", "device_events", "operators", "shapes", "peak")),
    ),
)
