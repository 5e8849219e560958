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
from whystall.errors import InputError, UsageError
from whystall.run_folder.layout import REPORT_JSON

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from whystall.analysis.throughput import Workload
    from whystall.cli.console import Console
    from whystall.hardware.throughputs import Reference
    from whystall.report.schema import Report
    from whystall.trace.files import Limits

ENGINES = ("local", "ray")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
HEAD_BYTES = 256  # `schema` is the first key of a report


def add_reading(parser: ArgumentParser) -> None:
    """Declares the options of every verb that reads traces."""
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write the cache of parsed traces")
    parser.add_argument(
        "--no-limits", action="store_true", help="read a packed file of a trusted source whatever it unpacks to"
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


def add_engine(parser: ArgumentParser) -> None:
    """Declares how many ranks are read."""
    group = parser.add_argument_group("many ranks", "more than 16, or more than fit in memory, are read one by one")
    group.add_argument("--engine", choices=ENGINES, help="what reads them: processes of this machine, or Ray")
    group.add_argument("--workers", type=int, metavar="N", help="how many at once (default: one for each core)")
    group.add_argument("--ray-address", metavar="ADDRESS", help="the cluster of Ray to use (default: start one here)")


def add_workload(parser: ArgumentParser) -> None:
    """Declares what the user may say of a step, for a rating by throughput."""
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


def workload(options: Namespace) -> Workload | None:
    """What the user says that a step works through, if anything. Raises ``UsageError`` for what is no amount."""
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
        return whystall.analyze(
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


def limits(options: Namespace) -> Limits | None:
    """None of them if the user says so; `None` for the usual ones."""
    from whystall.trace.files import NO_LIMITS

    return NO_LIMITS if options.no_limits else None


def _import_once() -> None:
    """Imports the library so that no collection of garbage goes through its modules, then or later.

    They make some hundred thousand objects, all of which stay: an eighth of the command's time on a small trace. Nor
    does numpy start threads for linear algebra, of which there is none to speak of: a sixth of the same.
    """
    if "whystall._api" in sys.modules:  # what a program has made since is its own
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
        if threads is None:  # what the command starts has its own
            del os.environ[_BLAS_THREADS]
        if collecting:
            gc.enable()


def report_from(paths: Sequence[str], options: Namespace, console: Console) -> Report:
    """The report stored at the only path, or a new one of the traces at ``paths``."""
    stored = _stored_report(Path(paths[0])) if len(paths) == 1 else None
    if stored is None:
        return analyze(paths, options, console)
    console.detail(f"reading the report stored in {stored}")
    return _read_report(stored)


def _stored_report(path: Path) -> Path | None:
    """``path`` itself if it is a report, or the up-to-date one in the folder ``path``."""
    try:
        if path.is_dir():
            path = path / REPORT_JSON
            if not path.is_file() or not _is_newest(path):
                return None
        with path.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
    except OSError:
        return None  # the analysis says what is wrong with it
    return path if b"whystall.report/" in head else None


def _is_newest(path: Path) -> bool:
    """Whether no trace beside ``path`` was changed after it."""
    modified = path.stat().st_mtime_ns
    traces = (name for pattern in ("*.json", "*.json.gz") for name in path.parent.glob(pattern))
    return all(trace.stat().st_mtime_ns <= modified for trace in traces)


def _read_report(path: Path) -> Report:
    import msgspec

    from whystall.report import schema

    try:
        return schema.decode(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is no report that this whystall can read: {error}") from error


def shell_quote(paths: Sequence[str]) -> str:
    """``paths`` as they would be typed in a shell; a glob stays readable."""
    import shlex

    return " ".join(path if glob.has_magic(path) and " " not in path else shlex.quote(path) for path in paths)
