"""Writes the page of every cause from the entry beside its rule, with an example that whystall found.

python docs/make_causes.py              the pages under docs/causes/, and the count in the README
python docs/make_causes.py --examples   the examples too: simulated jobs whose cause and gain are known
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import whystall
from whystall.diagnosis.catalogue import found_in
from whystall.diagnosis.causes import Cause
from whystall.diagnosis.rule import Rule
from whystall.diagnosis.rules import RULES

DOCS = Path(__file__).parent
PAGES = DOCS / "causes"
README = DOCS.parent / "README.md"
EXAMPLES = PAGES / "examples.json"
MOST_EVIDENCE = 4


def main() -> None:
    """Writes what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", action="store_true")
    PAGES.mkdir(exist_ok=True)
    if parser.parse_args().examples:
        EXAMPLES.write_text(json.dumps(examples(), indent=1, ensure_ascii=False) + "\n", "utf-8")
    for path, text in pages(json.loads(EXAMPLES.read_text("utf-8"))).items():
        path.write_text(text, "utf-8")
    README.write_text(counted(README.read_text("utf-8")), "utf-8")


def counted(readme: str) -> str:
    """The README with the number of causes that have rules."""
    return re.sub(r"\d+ causes have rules", f"{sum(bool(rule.finders) for rule in RULES)} causes have rules", readme)


def examples() -> dict[str, Any]:
    """What whystall says of one simulated job for each cause that has one.

    The truth is the job simulated without it.
    """
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "benchmarks.accuracy.simulator", folder], check=True, cwd=DOCS.parent)  # noqa: S603 - our own command
        for case in sorted(Path(folder).iterdir()):
            truth = json.loads((case / "truth.json").read_text("utf-8"))
            named = truth["causes"]
            if len(named) != 1 or (named[0] in found and "strong" not in case.name):
                continue
            report = whystall.analyze(case, cache=False)
            finding = next((finding for finding in report.findings if finding.id == named[0]), None)
            if finding is None or finding.gain is None:
                continue
            found[named[0]] = {
                "job": case.name,
                "step_ms": round(truth["step_ns"] / 1e6, 3),
                "evidence": [[fact.what, fact.value, fact.unit] for fact in finding.evidence[:MOST_EVIDENCE]],
                "gain": [finding.gain.floor, finding.gain.expected, finding.gain.ceiling],
                "true_gain": truth["removed_speedup"][named[0]],
            }
    return dict(sorted(found.items()))


def pages(shown: dict[str, Any]) -> dict[Path, str]:
    """The text of every page by its path."""
    out = {PAGES / f"{rule.cause.id}.md": page(rule, shown.get(rule.cause.id)) for rule in RULES}
    rows = [
        f"| [`{rule.cause.id}`]({rule.cause.id}.md) | {rule.cause.title} | {found_in(rule) or 'no rule yet'} |"
        for rule in RULES
    ]
    out[PAGES / "index.md"] = "\n".join(
        [
            "# Causes",
            "",
            "Every cause that whystall can name, with where a rule finds it. `whystall explain CAUSE` prints the same.",
            "",
            "| cause | in short | found in |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )
    return out


def page(rule: Rule, example: dict[str, Any] | None) -> str:
    """The page of a cause."""
    cause = rule.cause
    lines = [
        f"# {cause.title}",
        "",
        f"`{cause.id}`",
        "",
        cause.meaning,
        "",
        "## How it is measured",
        "",
        cause.measured,
    ]
    found = found_in(rule)
    lines += ["", f"Found in: {found}." if found else f"No rule looks for it yet: {cause.unseen}."]
    lines += _thresholds(cause)
    if example is not None:
        lines += ["", "## An example", "", *_example(example)]
    lines += ["", "## What to do", "", cause.remedy]
    if cause.patch is not None:
        language = "sh" if "=" in cause.patch.split(" ")[0] and "(" not in cause.patch else "python"
        language = "sh" if cause.patch.startswith("numactl") else language
        lines += ["", f"```{language}", cause.patch, "```"]
    if cause.risk is not None:
        lines += ["", f"Risk: {cause.risk}"]
    shown = " By the mean step: it happens now and then, and no median shows it." if cause.episodic else ""
    lines += ["", "## How to see that it worked", "", f"{cause.proof[0].upper()}{cause.proof[1:]}.{shown}", ""]
    lines += [f"`whystall verify --finding {cause.id} --before 'COMMAND' --after 'COMMAND'` measures the gain.", ""]
    return "\n".join(lines)


def _thresholds(cause: Cause) -> list[str]:
    """The numbers that its rule decides by."""
    if not cause.thresholds:
        return []
    rows = [f"| {one.value:,.12g} | {one.is_} | {one.source} |" for one in cause.thresholds.values()]
    return ["", "| threshold | of | source |", "|---|---|---|", *rows]


def _example(example: dict[str, Any]) -> list[str]:
    floor, expected, ceiling = example["gain"]
    rows = [f"| {what} | {_shown(value, unit)} |" for what, value, unit in example["evidence"]]
    return [
        (
            f"A simulated job (`{example['job']}` of the accuracy benchmark) takes "
            f"{example['step_ms']:.4g} ms a step. whystall says:"
        ),
        "",
        "| evidence | |",
        "|---|---|",
        *rows,
        "",
        f"Without the cause a step would be {expected:.2f} times as fast ({floor:.2f} to {ceiling:.2f}).",
        f"The same job simulated without it is {example['true_gain']:.2f} times as fast.",
    ]


def _shown(value: Any, unit: str) -> str:
    if unit == "ns":
        return f"{value / 1e6:.4g} ms"
    if unit == "share":
        return f"{value:.1%}"
    if unit == "bytes/s":
        return f"{value / 1e9:.3g} GB/s"
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
