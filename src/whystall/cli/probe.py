"""``whystall probe``: measures this machine, or a loader on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.cli import output, probe_comm, probe_data
from whystall.cli.calibrations import keep
from whystall.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console
    from whystall.probe.run import Probed
    from whystall.report.document import Document

_SECONDS = "0.2"
KINDS = ("compute", "memory", "comm", "data", "all")


class Probe:
    """The verb ``probe``."""

    name = "probe"
    help = "measure this machine: matrix products, memory, launches, collectives, a data loader"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.add_argument("what", choices=KINDS, help="what to measure; all is compute and memory")
        parser.add_argument("--device", help="cpu, cuda or cuda:1 (default: the first GPU, else the CPU)")
        parser.add_argument(
            "--dtype", action="append", metavar="TYPE", help="fp32, tf32, fp16, bf16 or fp8; may be repeated"
        )
        parser.add_argument(
            "--seconds",
            metavar="S",
            help=f"of each measurement (default: {_SECONDS}; comm {probe_comm.SECONDS}, data {probe_data.SECONDS})",
        )
        parser.add_argument("--no-save", action="store_true", help="do not keep the result for later reports")
        parser.add_argument("--json", action="store_true", help="print the result as JSON")
        output.add_output(parser)
        probe_comm.add_arguments(parser)
        probe_data.add_arguments(parser)

    def run(self, options: Namespace, console: Console) -> int:
        """Prints the measurements, keeps them, writes them to ``-o``; 0."""
        if options.what != "data" and options.target is not None:
            raise UsageError(f"probe {options.what} takes no {options.target!r}: that is for probe data")
        if options.what == "comm":
            return probe_comm.run(options, console, _seconds(options.seconds or probe_comm.SECONDS))
        if options.what == "data":
            return probe_data.run(options, console, _seconds(options.seconds or probe_data.SECONDS))
        output.targets(options)
        from whystall.probe.run import PROBES, probe

        found = probe(
            PROBES if options.what == "all" else (options.what,),
            device=options.device,
            precisions=options.dtype,
            seconds=_seconds(options.seconds or _SECONDS),
            progress=console.detail,
        )
        output.print_and_write(options, console, lambda _: _document(found), lambda: _as_json(found))
        if not options.no_save:
            keep(found.calibration, console)
        console.next("whystall analyze PATH, which uses this where the table of accelerators knows nothing")
        return 0


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 600:
        raise UsageError(f"--seconds wants a number between 0 and 600, not {text!r}")
    return value


def _as_json(found: Probed) -> str:
    import msgspec

    skipped = [{"precision": one.precision, "because": one.because} for one in found.skipped]
    body = msgspec.to_builtins(found.calibration) | {"skipped": skipped}
    return msgspec.json.format(msgspec.json.encode(body), indent=1).decode()


def _document(found: Probed) -> Document:
    from whystall.hardware import find
    from whystall.report.probe_text import calibration_document

    skipped = [(one.precision, one.because) for one in found.skipped]
    return calibration_document(found.calibration, find(found.calibration.device), skipped)
