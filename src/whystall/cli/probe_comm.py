"""``whystall probe comm``: collectives between processes of this machine, or of a torchrun job that it is a rank of."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from whystall.cli import output
from whystall.cli.calibrations import keep
from whystall.errors import UsageError, WhystallError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from whystall.cli.console import Console
    from whystall.probe.comm.against import Held
    from whystall.probe.comm.plan import Plan
    from whystall.probe.comm.results import CommProbe
    from whystall.report.document import Document

SECONDS = "0.05"


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the options of ``probe comm`` alone."""
    group = parser.add_argument_group("of comm")
    group.add_argument(
        "--ranks", type=int, metavar="N", help="processes (default: one for each of several GPUs, else 2)"
    )
    group.add_argument(
        "--backend", choices=("gloo", "nccl"), help="default: nccl where there are several GPUs, else gloo"
    )
    group.add_argument("--collective", action="append", metavar="KIND", help="measure this alone; may be repeated")
    group.add_argument(
        "--split",
        default="",
        metavar="WORDS",
        help="part the ranks into groups as nccl-tests does: AND, OR, MOD or DIV and a number, such as 'DIV 4'",
    )
    group.add_argument("--min-bytes", metavar="SIZE", help="smallest size (default: 1K, on GPUs 8K)")
    group.add_argument("--max-bytes", metavar="SIZE", help="largest size (default: 16M, on GPUs 1G)")
    group.add_argument("--timeout", default="120", metavar="S", help="give up after so long (default: %(default)s)")
    group.add_argument("--against", metavar="FILE", help="compare with what --json printed earlier")
    group.add_argument("--nccl-tests", action="store_true", help="print as nccl-tests' -J writes it")


def run(options: Namespace, console: Console, seconds: float) -> int:
    """Prints the sweep; 0. In a torchrun job rank 0 prints."""
    from whystall.probe.comm.against import against, check_comparable
    from whystall.probe.comm.results import calibration_of, read_comm_probe

    earlier = None if options.against is None else read_comm_probe(Path(options.against))
    # A cluster's own variables (a pod of a running job) are ignored: that job's store is not ours.
    joins = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"))
    if not joins or os.environ["RANK"] == "0":
        output.targets(options)
    plan = _plan(options, seconds, joins=joins)
    if earlier is not None:
        check_comparable(earlier, plan.ranks, plan.backend)
    found = _joined(plan) if joins else _launched(plan, console)
    if joins and os.environ["RANK"] != "0":
        return 0
    held = None if earlier is None else against(earlier, found)
    options.json = options.json or options.nccl_tests
    output.print_and_write(options, console, lambda _: _document(found, held), lambda: _json(options, found, held))
    calibration = calibration_of(found)
    if calibration is not None and not options.no_save:
        keep(calibration, console)
    console.next("whystall probe comm --json > before.json, and later --against before.json")
    return 0


def _plan(options: Namespace, seconds: float, *, joins: bool) -> Plan:
    from whystall.probe.comm import plan as plans
    from whystall.probe.comm.results import COLLECTIVES, Backend
    from whystall.probe.device import gpus_here

    gpus = gpus_here()
    backend: Backend = options.backend or ("nccl" if gpus >= max(options.ranks or 2, 2) else "gloo")
    if joins:
        ranks = _number(os.environ["WORLD_SIZE"], "WORLD_SIZE", 1 << 20)
    else:
        usual = gpus if backend == "nccl" else 2
        ranks = plans.checked_ranks(usual if options.ranks is None else options.ranks, backend, gpus)
    smallest, largest = plans.GPU_SIZES if backend == "nccl" else plans.CPU_SIZES
    smallest = smallest if options.min_bytes is None else plans.size_of(options.min_bytes)
    largest = max(largest, smallest) if options.max_bytes is None else plans.size_of(options.max_bytes)
    return plans.Plan(
        backend=backend,
        ranks=ranks,
        sizes=plans.swept(smallest, largest),
        collectives=list(dict.fromkeys(options.collective or COLLECTIVES)),
        seconds=seconds,
        split=" ".join(options.split.upper().replace("0X", "0x").split()),
        timeout_s=_number(options.timeout, "--timeout", 86_400),
    )


def _number(text: str, name: str, most: int) -> int:
    if re.fullmatch(r"[0-9]{1,12}", text) is None or not 1 <= int(text) <= most:
        raise UsageError(f"{name} wants a whole number from 1 to {most}, not {text[:40]!r}")
    return int(text)


def _launched(plan: Plan, console: Console) -> CommProbe:
    from whystall.probe.comm.launch import run_sweep

    def watch(where: str, _pids: Sequence[int]) -> None:
        console.detail(f"measuring {where}")

    return run_sweep(plan, watch)


def _joined(plan: Plan) -> CommProbe:
    from whystall.probe.comm.worker import GAVE_UP, take_part_in_job

    rank = os.environ["RANK"]

    def give_up(where: str) -> NoReturn:
        late = f"the sweep did not end within {plan.timeout_s:g} s; rank {rank} is in {where}"
        os.write(2, f"whystall: {late}\n".encode())
        os._exit(GAVE_UP)

    try:
        return take_part_in_job(plan, give_up)
    except (RuntimeError, ValueError) as error:
        raise WhystallError(f"rank {rank}: {(str(error).splitlines() or ['no reason'])[0][:300]}") from None


def _json(options: Namespace, found: CommProbe, held: Held | None) -> str:
    import msgspec

    if options.nccl_tests:
        from whystall.probe.comm.nccl_tests import nccl_tests_json

        return nccl_tests_json(found)
    body = msgspec.to_builtins(found) | ({} if held is None else {"against": msgspec.to_builtins(held)})
    return msgspec.json.format(msgspec.json.encode(body), indent=1).decode()


def _document(found: CommProbe, held: Held | None) -> Document:
    from whystall.hardware import find
    from whystall.report.comm_text import sweep_document

    return sweep_document(found, find(found.device), held)
