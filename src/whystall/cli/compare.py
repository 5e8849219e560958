"""``whystall compare``: the changes between two runs, with noise bands, and the causes that went away."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from whystall.cli import baselines, inputs, output
from whystall.errors import InputError, UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from whystall.analysis.run_noise import RunNoise
    from whystall.cli.console import Console
    from whystall.cli.thresholds import Threshold
    from whystall.diagnosis.comparison import Comparison

CROSSED = 1
_MANY_ROWS = 40


class Compare:
    """The verb ``compare``."""

    name = "compare"
    help = "what changed between two runs, and which cause went away"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.usage = (
            "whystall compare [options] BASE CANDIDATE\n"
            "       whystall compare [options] --save NAME RUN...\n"
            "       whystall compare [options] --against NAME RUN..."
        )
        parser.add_argument("runs", nargs="+", metavar="RUN", help="trace, folder, glob, run folder or report.json")
        stdout = parser.add_mutually_exclusive_group()
        stdout.add_argument("--json", action="store_true", help="print as JSON (schema whystall.comparison/1)")
        stdout.add_argument("--markdown", action="store_true", help="print as Markdown")
        parser.add_argument(
            "-o", "--output", action="append", default=[], metavar="FILE", help="also write .html, .json, .md or .txt"
        )
        parser.add_argument(
            "--fail-on",
            action="append",
            default=[],
            metavar="CONDITION",
            help="exit with 1 when it holds beyond the noise: "
            "step>+3%%, idle_input>+2ms, operator:NAME>+10%%, new-cause; or of a count: launches>+0",
        )
        parser.add_argument(
            "--again",
            nargs=2,
            action="append",
            default=[],
            metavar=("BASE", "CANDIDATE"),
            help="a further run of each: two runs of the same code differ, and only further pairs show by how much",
        )
        baselines.add_arguments(parser)
        inputs.add_reading(parser)
        output.add_force(parser)

    def run(self, options: Namespace, console: Console) -> int:
        """Prints the comparison; 1 when a condition of ``--fail-on`` holds, else 0."""
        from whystall.cli import thresholds

        conditions = [thresholds.parse(text) for text in options.fail_on]
        if options.save is not None:
            return _save(conditions, options, console)
        targets = [(Path(name), output.format_of(Path(name))) for name in options.output]
        for path, _ in targets:
            output.check_free(path, force=options.force)
        if options.against is not None:
            comparison = _with_baseline(conditions, options, console)
        else:
            comparison = _of_two(conditions, options, console)
        _print_and_write(comparison, targets, options, console)
        crossed = [condition.text for condition in conditions if condition.crossed(comparison)]
        for text in crossed:
            console.note(f"crossed: {text}")
        for condition in conditions:
            if (why := condition.is_open(comparison)) is not None:
                console.note(f"not judged: {condition.text}: {why}")
            elif comparison.noise is not None:
                _warn(condition, comparison.base.step_ns, comparison.noise, comparison.candidate.runs, console)
        console.next(f"whystall report {inputs.shell_quote([options.runs[-1]])} -o report.html")
        return CROSSED if crossed else 0


def _of_two(conditions: Sequence[Threshold], options: Namespace, console: Console) -> Comparison:
    """The comparison of two runs, and of further pairs of them."""
    from whystall.diagnosis.comparison import compare_reports

    if len(options.runs) != 2:
        raise UsageError(
            f"compare takes two runs, BASE and CANDIDATE, not {len(options.runs)}: further pairs go after --again, "
            "and --against NAME compares with a baseline"
        )
    base, candidate = (inputs.report_from([path], options, console) for path in options.runs)
    for condition in conditions:
        condition.check(base, candidate)
    again = [tuple(inputs.report_from([path], options, console) for path in pair) for pair in options.again]
    names = options.runs[0], options.runs[1]
    return compare_reports(base, candidate, names, [(one, other) for one, other in again])


def _with_baseline(conditions: Sequence[Threshold], options: Namespace, console: Console) -> Comparison:
    """The comparison of a run, or several of the same code, with a baseline."""
    from whystall.diagnosis.comparison import compare_with_baseline

    _no_pairs(options)
    baseline = baselines.read(options.against, options.baselines)
    if len(options.runs) > 1 and baseline.noise is None:
        raise UsageError(
            f"the baseline {options.against} is of one run: several are compared with one of several runs, "
            "or in pairs (--again)"
        )
    candidates = [inputs.report_from([path], options, console) for path in options.runs]
    for condition in conditions:
        condition.check(baseline.report, candidates[0])
    names = options.against, options.runs[0]
    return compare_with_baseline(baseline.report, baseline.runs, candidates, names)


def _save(conditions: Sequence[Threshold], options: Namespace, console: Console) -> int:
    """Keeps runs as a baseline and prints the noise between them."""
    from whystall.diagnosis.comparability import comparability
    from whystall.report.baseline import MOST_RUNS, baseline_of
    from whystall.report.baseline_text import saved_json, saved_text

    _no_pairs(options)
    if options.output:
        raise UsageError("--save writes the baseline alone: -o is for comparisons")
    if len(options.runs) > MOST_RUNS:
        raise UsageError(f"a baseline has at most {MOST_RUNS} runs, not {len(options.runs)}")
    path = baselines.path_of(options.save, options.baselines)
    baselines.check_free(path, force=options.force)
    reports = [inputs.report_from([run], options, console) for run in options.runs]
    for run, report in zip(options.runs[1:], reports[1:], strict=True):
        if reasons := comparability(reports[0], report).reasons:
            raise UsageError(f"{options.runs[0]} and {run} are no two runs of the same: {reasons[0]}")
    try:
        baseline = baseline_of(reports)
    except ValueError as error:
        raise InputError(f"no baseline can be made: {error}") from None
    baselines.write(path, baseline, force=options.force)
    console.result(saved_json(baseline) if options.json else saved_text(baseline))
    console.note(f"wrote {path}")
    for condition in conditions:
        condition.check(baseline.report)
        if baseline.noise is not None:
            _warn(condition, baseline.runs[0].median_ns, baseline.noise, 1, console)
    gates = "".join(f" --fail-on {inputs.shell_quote([text])}" for text in options.fail_on)
    console.next(f"whystall compare --against {options.save}{gates} RUN")
    return 0


def _no_pairs(options: Namespace) -> None:
    if options.again:
        raise UsageError("--again is for pairs of two runs: give further runs of a baseline, or against it, as RUN")


def _warn(condition: Threshold, step_ns: int | None, noise: RunNoise, runs: int, console: Console) -> None:
    """Says of a gate on the step that it is finer than the noise."""
    from whystall.report.baseline_text import too_fine

    change = condition.change_of_step(step_ns)
    said = None if change is None else too_fine(condition.text, change, noise, runs)
    if said is not None:
        console.note(f"warning: {said}")


def _print_and_write(
    comparison: Comparison, targets: Sequence[tuple[Path, str]], options: Namespace, console: Console
) -> None:
    from whystall.report.comparison import render_comparison
    from whystall.report.comparison_page import comparison_document

    format_ = "json" if options.json else "markdown" if options.markdown else "terminal"
    console.result(render_comparison(comparison, format_, rows=_MANY_ROWS if console.verbose else 10))
    for path, wanted in targets:
        if wanted == "html":
            output.write_page(path, lambda _: comparison_document(comparison), force=options.force)
        else:
            output.write_text(path, render_comparison(comparison, wanted), force=options.force)
        console.note(f"wrote {path}")
