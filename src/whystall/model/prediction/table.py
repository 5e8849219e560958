"""Options by device, and the cost of each: every option is predicted, and compared with all devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from whystall.errors import UsageError, WhystallError
from whystall.hardware import Accelerator
from whystall.model.prediction import pipeline, remedies, sharding
from whystall.model.prediction.fitting import device_named, fit
from whystall.model.prediction.outcome import Simulated
from whystall.model.prediction.request import Request, Strategy
from whystall.model.prediction.results import Cell, OptionRow
from whystall.model.prediction.simulator import Simulator

DEVICES: Final = (  # by the names of their drivers; one of each size that is commonly rented or bought
    *("Tesla T4", "NVIDIA GeForce RTX 4090", "NVIDIA L40S", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"),
    *("NVIDIA H200", "NVIDIA B200", "AMD Instinct MI300X"),
)
RANKS: Final = 8  # of one machine, where no number was given
_TENSOR_PARALLEL: Final = (2, RANKS)
_FLASH: Final = (8, 0)  # below this capability attention runs another kernel, which keeps more
_SHARED: Final[Mapping[str, tuple[Strategy, ...]]] = {
    "": ("ddp", "zero1", "zero2", "zero3"),
    "--kernels fused --checkpoint full": ("zero3",),
}
_NAMES: Final = {"ddp": "data parallelism", "zero3": "ZeRO stage 3, FSDP2"}
_OTHER_OPTIMIZER: Final = "sgd-momentum"

Steps = list[tuple[tuple[str, ...], Simulated]]


def options_table(request: Request, names: Sequence[str], simulator: Simulator) -> tuple[OptionRow, ...]:
    """The requested step and those with one option changed at a time, on each of the devices ``names``."""
    rows = {name: row for name in names if (row := device_named(name)) is not None}
    whole = _steps(request, rows, simulator)
    found = [*_rows("as asked", "", request, whole, rows)]
    for text, options, asked in _others(request, has_blocks=whole[0][1].blocks is not None):
        try:
            steps = _steps(asked, rows, simulator)
        except WhystallError:
            continue  # the model fails with this option
        if asked.tensor_parallel > request.tensor_parallel and not steps[0][1].tensor_parallel_bytes:
            continue  # no tensor is divisible by this number
        found += _rows(text, options, asked, steps, rows)
    return tuple(found)


def _others(request: Request, *, has_blocks: bool) -> Iterator[tuple[str, str, Request]]:
    yield from remedies.alternatives(request, has_blocks=has_blocks)
    if request.backward and request.optimizer not in {None, _OTHER_OPTIMIZER}:
        other = replace(request, optimizer=_OTHER_OPTIMIZER)
        yield "SGD with momentum (another training)", f"--optimizer {_OTHER_OPTIMIZER}", other
    if request.backward and has_blocks and request.devices == 1 and request.strategy == "none":
        for ranks in _TENSOR_PARALLEL:
            yield (
                f"{ranks} ranks: tensor and sequence parallelism",
                f"--tensor-parallel {ranks} --sequence-parallel",
                replace(request, tensor_parallel=ranks, sequence_parallel=True),
            )


def _steps(request: Request, rows: Mapping[str, Accelerator], simulator: Simulator) -> Steps:
    """The step on devices with flash attention and on those without, each with the names of its devices."""
    found = []
    for flash in (True, False):
        names = tuple(name for name, row in rows.items() if ((row.capability or _FLASH) >= _FLASH) is flash)
        if names:
            asked = replace(request, device=names[0], capability=rows[names[0]].capability, timed_on=names)
            try:
                found.append((names, simulator.run(asked)))
            except UsageError as error:
                raise UsageError(f"{', '.join(names)}: {error}, or name other devices by --devices") from None
    return found


def _rows(
    text: str, options: str, request: Request, steps: Steps, rows: Mapping[str, Accelerator]
) -> Iterator[OptionRow]:
    """The step on one device, and where few options are changed also on several ranks."""
    yield OptionRow(text=text, options=options, cells=_cells(request, steps, rows))
    if request.ranks > 1 or not request.backward or options not in _SHARED:
        return
    for strategy in _SHARED[options]:
        shared = replace(request, ranks=RANKS, strategy=strategy)
        what = _NAMES.get(strategy, f"ZeRO stage {strategy[-1]}")
        yield OptionRow(
            text=f"{text}, {RANKS} ranks: {what}" if options else f"{RANKS} ranks: {what}",
            options=f"{options} --ranks {RANKS} --strategy {strategy}".strip(),
            cells=_cells(shared, steps, rows, buckets=strategy == "ddp"),
        )


def _cells(
    request: Request, steps: Steps, rows: Mapping[str, Accelerator], *, buckets: bool = False
) -> tuple[Cell, ...]:
    """The step on each device; ``buckets`` adds those of gradients, to a step of one rank."""
    cells = {}
    for names, whole in steps:
        own = pipeline.fullest(whole, request)
        peak = own.peak_bytes + (own.gradient_bytes if buckets else 0)
        for place, name in enumerate(names):
            where = fit(replace(request, device=name), rows[name], peak)
            cells[name] = Cell(
                device=name,
                peak_bytes=peak,
                fits=None if where is None else where.fits,
                least_ns=_least_ns(whole, place, request, rows[name]),
            )
    return tuple(cells[name] for name in rows)


def _least_ns(step: Simulated, place: int, request: Request, row: Accelerator) -> int | None:
    """The least time of a step: its work, or its ranks' traffic over the device's own link if that takes longer."""
    times = {phase: one.times_ns[place] for phase, one in step.work.items()}
    if not all(times.values()):
        return None
    if request.strategy in sharding.DIVIDED and "optimizer" in times:
        times["optimizer"] //= request.ranks
    least = sum(times.values())
    sent = sharding.sent_bytes(step, request.strategy, request.ranks) + step.tensor_parallel_bytes
    if not sent:
        return least
    if row.link_gb_per_s is None:
        return None
    return max(least, round(sent / row.link_gb_per_s))
