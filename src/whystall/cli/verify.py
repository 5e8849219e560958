"""``whystall verify``: does a change help? Interleaved pairs of two commands, or of one with a setting toggled."""

from __future__ import annotations

import re
import shlex
import time
from typing import TYPE_CHECKING

from whystall.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from pathlib import Path

    from whystall.cli.console import Console
    from whystall.diagnosis.causes import Statistic
    from whystall.verify.measure import Variant
    from whystall.verify.proof import Proof, Recorded

LOSSES_DIFFER = 1


class Verify:
    """The verb ``verify``."""

    name = "verify"
    help = "prove that a change helps: interleaved runs of before and after"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.usage = (
            "whystall verify --before COMMAND --after COMMAND\n"
            "       whystall verify --toggle NAME=OLD,NEW -- COMMAND..."
        )
        parser.add_argument("--before", metavar="COMMAND", help="the command as it was, in quotes")
        parser.add_argument("--after", metavar="COMMAND", help="the command with the change, in quotes")
        parser.add_argument(
            "--toggle", metavar="NAME=OLD,NEW", help="an environment variable that makes the difference"
        )
        parser.add_argument("--pairs", type=int, default=8, metavar="N", help="runs of each (8)")
        parser.add_argument(
            "--finding", metavar="CAUSE", help="the cause that the change should remove: look for it in both"
        )
        parser.add_argument(
            "--by",
            choices=("mean", "median"),
            help="which step decides (default: the mean for a cause that happens now and then, else the median)",
        )
        parser.add_argument("--loss", metavar="REGEX", help="where the loss is in the output; its group is the number")
        parser.add_argument(
            "--tolerance", type=float, default=0.01, metavar="SHARE", help="how far losses may differ (0.01)"
        )
        parser.add_argument("--timeout", type=float, metavar="S", help="give up on a run after this many seconds")
        parser.add_argument("--json", action="store_true", help="print as JSON (schema whystall.proof/1)")
        parser.add_argument(
            "--no-record", action="store_true", help="do not remember the outcome for later predictions"
        )
        parser.add_argument("command", nargs="*", metavar="-- COMMAND", help="what to run, with --toggle")

    def run(self, options: Namespace, console: Console) -> int:
        """Prints the proof; 1 when the losses differ by more than the tolerance, else 0."""
        from whystall._inputs import known_rules
        from whystall.verify.proof import prove

        if options.pairs < 2:
            raise UsageError(f"--pairs must be at least 2, not {options.pairs}")
        if not options.tolerance >= 0:  # a comparison that also refuses nan
            raise UsageError(f"--tolerance must be at least 0, not {options.tolerance:g}")
        if options.timeout is not None and not options.timeout > 0:
            raise UsageError(f"--timeout must be above 0, not {options.timeout:g}")
        if options.finding is not None and options.finding not in known_rules():
            raise UsageError(f"no cause is called {options.finding!r}: `whystall explain` lists all")
        before, after = _variants(options)
        proof = prove(
            before,
            after,
            pairs=options.pairs,
            loss=loss_pattern(options.loss),
            tolerance=options.tolerance,
            cause=options.finding,
            statistic=options.by or _statistic(options.finding),
            diagnose=_diagnose,
            timeout_s=options.timeout,
            progress=console.note,
        )
        console.result(_json(proof) if options.json else _text(proof))
        if not options.no_record:
            _record(proof, console)
        console.next(f"whystall explain {options.finding}" if options.finding else "whystall explain")
        return LOSSES_DIFFER if proof.numerics is not None and proof.numerics.agree is False else 0


def _statistic(cause: str | None) -> Statistic:
    """The statistic that decides for a cause."""
    from whystall._inputs import known_rules

    return "median" if cause is None else known_rules()[cause].cause.statistic


def _diagnose(folder: Path) -> Recorded:
    """The findings in a run folder, and its FLOPs per step."""
    import whystall
    from whystall.verify.proof import Recorded

    report = whystall.analyze(folder, cache=False)
    rank = report.source.ranks[0] if report.source.ranks else 0
    steps = max((len(device.steps) for device in report.devices if device.rank == rank), default=0)
    flops = sum(row.flops or 0 for row in report.operators if row.rank == rank)
    return Recorded(report.findings, flops / steps if steps else 0.0)


def _variants(options: Namespace) -> tuple[Variant, Variant]:
    from whystall.verify.measure import Variant, toggled

    command = [word for word in options.command if word != "--"]
    if options.toggle is not None:
        if not command or options.before or options.after:
            raise UsageError("--toggle takes one command after --, and neither --before nor --after")
        return toggled(options.toggle, command)
    if not options.before or not options.after or command:
        raise UsageError("give --before and --after, or --toggle NAME=OLD,NEW and a command after --")
    try:
        words = [tuple(shlex.split(text)) for text in (options.before, options.after)]
    except ValueError as error:
        raise UsageError(f"a command cannot be read: {error}") from None
    if not all(words):
        raise UsageError("a command is empty")
    return Variant(words[0]), Variant(words[1])


def loss_pattern(text: str | None) -> re.Pattern[str] | None:
    """The pattern that ``--loss`` names. Raises ``UsageError`` for one without a group, or none at all."""
    if text is None:
        return None
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise UsageError(f"--loss {text!r} is no regular expression: {error}") from None
    if pattern.groups != 1:
        raise UsageError(f"--loss {text!r} must have one group, around the number")
    return pattern


def _json(proof: Proof) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(proof), indent=1).decode()


def _text(proof: Proof) -> str:
    from statistics import median

    lines = [proof.summary, ""]
    lines += [f"! {warning}" for warning in proof.warnings]
    what = {"steps": f"{proof.statistic} step", "runs": "run", "calls": "call"}[proof.measured_by]
    lines += [
        f"{proof.paired.pairs} interleaved pairs",
        f"{what}, before: {median(proof.before_s) * 1e3:.4g} ms; after: {median(proof.after_s) * 1e3:.4g} ms",
        f"noise floor: the same variant differs from itself by up to {proof.paired.noise_floor:.3f}",
    ]
    if proof.otherwise is not None:
        other, found = "median" if proof.statistic == "mean" else "mean", proof.otherwise.speedup
        lines.append(f"by the {other} step: {found.ratio:.3f} times as fast ({found.low:.3f} to {found.high:.3f})")
    if proof.predicted is not None:
        lines.append(f"predicted: {proof.predicted:.3f} ({proof.predicted_low:.3f} to {proof.predicted_high:.3f})")
    if proof.numerics is not None:
        lines.append(f"loss before: {proof.numerics.before}, after: {proof.numerics.after}")
    return "\n".join(lines)


def _record(proof: Proof, console: Console) -> None:
    from whystall.verify import remedies

    if proof.cause is None:
        return
    found = proof.paired.speedup
    tried = remedies.Tried(
        cause=proof.cause,
        predicted=proof.predicted,
        measured=found.ratio,
        low=found.low,
        high=found.high,
        statistic=proof.statistic,
        unix_s=int(time.time()),
    )
    try:
        remedies.append(remedies.record_file(), tried)
    except OSError as error:
        console.note(f"the outcome could not be recorded ({error.strerror}): later predictions do not know of it")
