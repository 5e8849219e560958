"""Matrix products by type and shape: the real arithmetic rates of this device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from whystall.cost import TensorSpec, cost_of
from whystall.errors import UsageError
from whystall.hardware.calibration import Launch, Matmul
from whystall.probe.clock import HostClock, measure
from whystall.probe.device import ProbedDevice

Shape = tuple[int, int, int]

CPU_SHAPES: Final[tuple[Shape, ...]] = ((256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (64, 1024, 1024))
GPU_SHAPES: Final[tuple[Shape, ...]] = (
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16, 8192, 8192),  # the shape of decoding: bound by reading the weight
    (4096, 14336, 4096),
)
PRECISIONS: Final = ("fp32", "tf32", "fp16", "bf16", "fp8")
_DTYPES: Final = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}
_ONLY_GPUS: Final = ("tf32", "fp8")
_TOO_LONG: Final = 3  # times the limit of a measurement: seven products would take twenty times it
_LAUNCHES: Final = 2000


@dataclass(frozen=True, slots=True)
class Skipped:
    """A type that was not measured, and why."""

    precision: str
    because: str


def probe_matmul(
    device: ProbedDevice,
    *,
    precisions: Sequence[str] | None = None,
    shapes: Sequence[Shape] | None = None,
    seconds: float = 0.2,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[list[Matmul], list[Skipped]]:
    """Products of every shape in every type. Raises ``UsageError`` for a requested type that the device lacks.

    Without ``precisions`` unsupported ones are skipped with a reason.
    """
    found: list[Matmul] = []
    skipped: list[Skipped] = []
    for precision in precisions or PRECISIONS:
        if precision not in PRECISIONS:
            raise UsageError(f"{precision!r} is no type that can be probed; {', '.join(PRECISIONS)} are")
        progress(f"matrix products in {precision}")
        why = None
        try:
            if device.kind == "cpu" and precision in _ONLY_GPUS:
                why = "only a GPU multiplies in it"
            else:
                found += _matmuls(device, precision, shapes or _shapes(device), seconds, skipped)
        except (RuntimeError, NotImplementedError, ValueError) as error:  # the last of scales that do not suit
            why = (str(error).splitlines() or ["no reason was given"])[0][:300]
        if why is not None and precisions:
            raise UsageError(f"{precision} cannot be measured on {device.name}: {why}")
        if why is not None:
            skipped.append(Skipped(precision, why))
    return found, skipped


def _shapes(device: ProbedDevice) -> Sequence[Shape]:
    return CPU_SHAPES if device.kind == "cpu" else GPU_SHAPES


def _matmuls(
    device: ProbedDevice, precision: str, shapes: Sequence[Shape], seconds: float, skipped: list[Skipped]
) -> Iterator[Matmul]:
    torch = device.torch
    kept = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        with torch.inference_mode():
            rate = float("inf")
            for m, n, k in shapes:
                if matmul_flops(m, n, k) / rate > _TOO_LONG * seconds:
                    skipped.append(Skipped(f"{precision} of {m} x {n} x {k}", "one product would take too long"))
                    continue
                timing = measure(_product(device, precision, (m, n, k)), device.clock, seconds=seconds)
                rate = min(rate, matmul_flops(m, n, k) / (timing.best_ns / 1e9))
                yield Matmul(
                    precision=precision,
                    m=m,
                    n=n,
                    k=k,
                    repeats=timing.repeats,
                    best_ns=timing.best_ns,
                    median_ns=timing.median_ns,
                    flops_per_s=matmul_flops(m, n, k) / (timing.best_ns / 1e9),
                )
    finally:
        torch.set_float32_matmul_precision(kept)


def matmul_flops(m: int, n: int, k: int) -> int:
    """The FLOPs of one product, by the registry that counts everything else.

    >>> matmul_flops(8, 4, 16)
    1024
    """
    cost = cost_of("aten::mm", [TensorSpec((m, k)), TensorSpec((k, n))])
    if cost is None:
        raise ValueError(f"no product: {m} x {n} x {k}")
    return cost.model_flops


def _product(device: ProbedDevice, precision: str, shape: Shape) -> Callable[[], object]:
    torch, (m, n, k) = device.torch, shape
    dtype = getattr(torch, _DTYPES[precision])
    make = torch.Generator(device="cpu").manual_seed(0)

    def filled(rows: int, columns: int) -> Any:
        # Small random numbers: power, and with it the clock of a GPU, depends on the data.
        return torch.randn(rows, columns, generator=make).to(device.device).to(dtype)

    if precision == "fp8":
        first, second = filled(m, k), filled(n, k).t()  # the second must lie column by column
        one = torch.ones((), device=device.device)
        return lambda: torch._scaled_mm(first, second, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)  # noqa: SLF001 - the only fp8 product there is
    first, second = filled(m, k), filled(k, n)
    out = torch.empty(m, n, dtype=dtype, device=device.device)
    return lambda: torch.mm(first, second, out=out)


def probe_launch(device: ProbedDevice, *, calls: int = _LAUNCHES) -> Launch:
    """The cost of the smallest operator: the host's time for each of ``calls`` in a row, and the device's on a GPU."""
    torch = device.torch
    value = torch.zeros(1, device=device.device)

    def many() -> None:
        for _ in range(calls):
            value.add_(1)

    with torch.inference_mode():
        many()
        device.synchronize()
        host = HostClock().time_ns(many)
        device.synchronize()
        on_device = device.clock.time_ns(many) if device.kind == "gpu" else None
    return Launch(
        calls=calls, host_ns=round(host / calls), device_ns=None if on_device is None else round(on_device / calls)
    )
