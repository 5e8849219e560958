"""One call that probes a device: the requested measurements, as a calibration."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from whystall.hardware.calibration import Calibration, Matmul
from whystall.probe.compute import Skipped, probe_launch, probe_matmul
from whystall.probe.device import machine_name, open_device
from whystall.probe.memory import probe_copy

PROBES = ("compute", "memory")


@dataclass(frozen=True, slots=True)
class Probed:
    """The measurements, and the skipped ones."""

    calibration: Calibration
    skipped: tuple[Skipped, ...]


def probe(
    what: Collection[str] = PROBES,
    *,
    device: str | None = None,
    precisions: Sequence[str] | None = None,
    seconds: float = 0.2,
    today: dt.date | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Probed:
    """Measures ``what`` ("compute": products and launches, "memory": copies) for about ``seconds`` each.

    Raises ``UsageError`` where torch, the device or a requested type is missing.
    """
    opened = open_device(device)
    matmul: list[Matmul] = []
    skipped: list[Skipped] = []
    launch = None
    if "compute" in what:
        matmul, skipped = probe_matmul(opened, precisions=precisions, seconds=seconds, progress=progress)
        progress("launches")
        launch = probe_launch(opened)
    copies = probe_copy(opened, seconds=seconds, progress=progress) if "memory" in what else []
    day = today or dt.datetime.now(dt.UTC).date()
    calibration = Calibration(
        machine=machine_name(),
        device=opened.name,
        kind=opened.kind,
        measured_on=day.isoformat(),
        torch=str(opened.torch.__version__),
        threads=int(opened.torch.get_num_threads()) if opened.kind == "cpu" else None,
        matmul=matmul,
        copy=copies,
        launch=launch,
    )
    return Probed(calibration, tuple(skipped))
