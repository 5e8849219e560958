"""Keeps a probe's measurements of a device, for later reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whystall.cli.console import Console
    from whystall.hardware.calibration import Calibration


def keep(found: Calibration, console: Console) -> None:
    """Writes it into whystall's cache folder; prints where, or why it could not."""
    from whystall.hardware.calibration import calibration_folder, write_calibration
    from whystall.trace.cache import default_folder

    try:
        path = write_calibration(found, calibration_folder(default_folder()))
    except OSError as error:
        console.note(f"the result could not be kept: {error.strerror or error}")
    else:
        console.note(f"kept as {path}")
