"""From the paths on the command line to a report: traces are analysed, a stored report.json is read back."""

from __future__ import annotations

import gc
import glob
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from whystall.cli.progress import ReadingProgress
from whystall.disk.reading import content, opened
from whystall.errors import InputError, UsageError
from whystall.run_folder.layout import REPORT_JSON

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from whystall.analysis.price import Rate
    from whystall.analysis.throughput import Workload
    from whystall.cli.console import Console
    from whystall.hardware.throughputs import Reference
    from whystall.report.schema import Report
    from whystall.trace.files import Limits

ENGINES = ("local", "ray")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
_WORKLOAD = (
    "tokens_per_step",
    "samples_per_step",
    "flops_per_step",
    "throughput_reference",
    "job_devices",
    "precision",
)
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
HEAD_BYTES = 256  # `schema` is the first key of a report


def add_reading(parser: ArgumentParser) -> None:
    """Declares the options of every verb that reads traces."""
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write the cache of parsed traces")
    parser.add_argument(
        "--no-limits", action="store_true", help="read a packed file of a trusted source at any unpacked size"
    )
    parser.add_argument(
        "--kernel-classes",
        metavar="FILE",
        help="TOML of further rules for kernel names, tried before those of whystall",
    )
    parser.add_argument(
        "--no-calibration", action="store_true", help="leave out what `whystall probe` measured on this machine"
    )
    add_engine(parser)
    add_workload(parser)
    add_price(parser)


def add_engine(parser: ArgumentParser) -> None:
    """Declares how many ranks are read."""
    group = parser.add_argument_group("many ranks", "more than 16, or more than fit in memory, are read one by one")
    group.add_argument("--engine", choices=ENGINES, help="what reads them: processes of this machine, or Ray")
    group.add_argument("--workers", type=int, metavar="N", help="how many at once (default: one for each core)")
    group.add_argument("--ray-address", metavar="ADDRESS", help="the cluster of Ray to use (default: start one here)")


def add_workload(parser: ArgumentParser) -> None:
    """Declares the user's numbers of a step, for a rating by throughput."""
    group = parser.add_argument_group(
        "throughput", "what one step of the whole job works through, all devices together"
    )
    group.add_argument("--tokens-per-step", metavar="N", help="tokens in a step")
    group.add_argument("--samples-per-step", metavar="N", help="samples in a step")
    group.add_argument("--flops-per-step", metavar="N", help="model FLOPs of a step, forward and backward")
    group.add_argument("--job-devices", metavar="N", help="devices of the job (default: as the recording says)")
    group.add_argument("--precision", choices=PRECISIONS, help="what products run in (default: as recorded)")
    group.add_argument(
        "--throughput-reference",
        metavar="N|NAME",
        help="tokens (or samples) a second and device to be held against, or the name of a published one",
    )


def add_price(parser: ArgumentParser) -> None:
    """Declares the price of a device, for the bill of a watched job."""
    parser.add_argument(
        "--gpu-hour",
        metavar="RATE",
        default=os.environ.get("WHYSTALL_GPU_HOUR"),
        help="the price of one device for an hour (2.80, or 2.80EUR): the whole job's parts are priced by it",
    )


def rate(options: Namespace) -> Rate | None:
    """The price of a device, if one was given. Raises ``UsageError`` for an invalid one."""
    from whystall.analysis.price import parse_rate

    text = getattr(options, "gpu_hour", None)
    return parse_rate(str(text)) if text is not None else None


def priced(report: Report, per_hour: Rate | None) -> Report:
    """The report with the bill of its job, where that ran on GPUs."""
    if report.job is None or all(device.kind == "cpu" for device in report.devices):
        return report
    import msgspec

    from whystall.analysis.price import price_of

    devices = report.source.world_size or len(report.source.ranks)
    return msgspec.structs.replace(report, price=price_of(report.job, devices, per_hour))


def workload(options: Namespace) -> Workload | None:
    """The user's numbers of a step's work, if any. Raises ``UsageError`` for an invalid amount."""
    names = ("tokens_per_step", "samples_per_step", "flops_per_step", "throughput_reference")
    if all(getattr(options, name, None) is None for name in names):
        return None
    from whystall.analysis.throughput import Workload

    tokens, samples, flops = (_amount(getattr(options, name), name) for name in names[:3])
    if tokens is samples is flops is None:
        raise UsageError("--throughput-reference needs --tokens-per-step or --samples-per-step")
    devices = _amount(options.job_devices, "job_devices")
    return Workload(
        tokens_per_step=tokens,
        samples_per_step=samples,
        flops_per_step=flops,
        devices=None if devices is None else max(int(devices), 1),
        precision=options.precision,
        reference=_reference(options.throughput_reference, tokens is not None),
    )


def _amount(text: str | None, name: str) -> float | None:
    if text is None:
        return None
    try:
        value = float(text.replace("_", "").replace(",", ""))
    except ValueError:
        value = -1.0
    if not 0 < value < 1e30:
        raise UsageError(f"--{name.replace('_', '-')} wants a number above 0, not {text!r}")
    return value


def n_bytes(text: str, option: str) -> int:
    """A size with its unit, binary or decimal. Raises ``UsageError`` in the name of ``option``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)(i?)B", text.strip())
    size = 0 if found is None else int(float(found[1]) * (1024 if found[3] else 1000) ** " KMGT".index(found[2] or " "))
    if size < 1:
        raise UsageError(f"{option} wants a size such as 8GiB or 512MiB, not {text!r}")
    return size


def _reference(text: str | None, in_tokens: bool) -> Reference | None:
    from whystall.hardware.throughputs import Reference, references

    if text is None:
        return None
    if text in references():
        return references()[text]
    try:
        value = _amount(text, "throughput_reference")
    except UsageError:
        known = ", ".join(references())
        raise UsageError(f"--throughput-reference wants a number or one of {known}, not {text!r}") from None
    return None if value is None else Reference(value, "tokens" if in_tokens else "samples", "given")


def analyze(paths: Sequence[str], options: Namespace, console: Console) -> Report:
    """The report on all of ``paths``. Raises ``InputError`` where none can be read."""
    _import_once()
    import whystall

    with ReadingProgress(console) as progress:
        report = whystall.analyze(
            list(paths),
            cache=not options.no_cache,
            limits=limits(options),
            kernel_classes=options.kernel_classes,
            calibrate=not options.no_calibration,
            workload=workload(options),
            progress=progress,
            engine=options.engine,
            workers=options.workers,
            ray_address=options.ray_address,
        )
    return priced(report, rate(options))


def limits(options: Namespace) -> Limits | None:
    """No limits on the user's request; `None` for the usual ones."""
    from whystall.trace.files import NO_LIMITS

    return NO_LIMITS if options.no_limits else None


def _import_once() -> None:
    """Imports the library so that no garbage collection goes through its modules, then or later.

    They make some hundred thousand objects, all of which stay: an eighth of the command's time on a small trace. Nor
    does numpy start threads for linear algebra, which the command hardly does: a sixth of the same.
    """
    if "whystall._api" in sys.modules:  # a program's later objects are its own
        return
    collecting = gc.isenabled()
    gc.disable()
    threads = os.environ.get(_BLAS_THREADS)
    os.environ[_BLAS_THREADS] = threads or "1"
    try:
        import whystall._api
        import whystall.report.registry  # noqa: F401

        gc.freeze()
    finally:
        if threads is None:  # the command's child processes have their own
            del os.environ[_BLAS_THREADS]
        if collecting:
            gc.enable()


def report_from(paths: Sequence[str], options: Namespace, console: Console) -> Report:
    """The report stored at the only path, or a new one of the traces at ``paths``.

    A folder's stored report is used if it covers all files that lie there now, and no other option was given.
    """
    if len(paths) == 1:
        path = Path(paths[0])
        if _is_folder(path):
            report = _stored_in(path, options, console)
            if report is not None:
                return priced(report, rate(options))
        elif _is_report(path):
            console.detail(f"reading the report stored in {path}")
            return priced(_read_report(path), rate(options))
    return analyze(paths, options, console)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _is_report(path: Path) -> bool:
    try:
        with opened(path) as stream:
            return b"whystall.report/" in stream.read(HEAD_BYTES)
    except (OSError, ValueError):
        return False  # the analysis reports the error


def _stored_in(folder: Path, options: Namespace, console: Console) -> Report | None:
    """The report in a folder, if it covers the folder's content."""
    path = folder / REPORT_JSON
    if not _is_report(path):
        return None
    if (asked := _asks_otherwise(options)) is not None:
        console.note(f"whystall: {path} was made without {asked}: the folder is analysed again")
        return None
    from whystall.trace.fingerprint import fingerprint

    try:
        report, held = _read_report(path), fingerprint(folder)
    except InputError as error:
        console.note(f"whystall: {error}: the folder is analysed again")
        return None
    if held is None or held == report.source.inputs:  # without recordings it is all there is
        console.detail(f"reading the report stored in {path}")
        return report
    console.note(f"whystall: {path} is not of what {folder} holds now: the folder is analysed again")
    return None


def made_of(report: Report, held: str | None) -> Report:
    """The stored report of a folder, whose digest was ``held`` before it was analysed."""
    import msgspec

    return msgspec.structs.replace(report, source=msgspec.structs.replace(report.source, inputs=held))


def _asks_otherwise(options: Namespace) -> str | None:
    """The first option that makes another report of the same recordings."""
    names = ("kernel_classes", "no_calibration", *_WORKLOAD)
    asked = next((name for name in names if getattr(options, name, None)), None)
    return None if asked is None else f"--{asked.replace('_', '-')}"


def _read_report(path: Path) -> Report:
    from whystall.json_text import NotJsonError
    from whystall.report import schema

    try:
        return schema.decode(content(path))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except NotJsonError as error:
        raise InputError(f"{path} is no report that this whystall can read: {error}") from error


def shell_quote(paths: Sequence[str]) -> str:
    """``paths`` as they would be typed in a shell; a glob stays readable."""
    import shlex

    return " ".join(path if glob.has_magic(path) and " " not in path else shlex.quote(path) for path in paths)
