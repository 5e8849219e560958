"""The recorded traces of ../shared/traces whose cause is known."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.accuracy.expectation import Expectation
from benchmarks.accuracy.score import Mark, mark
from benchmarks.accuracy.verdicts import WHYSTALL, Said, analyze

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"


def _communication_is_left(said: Said) -> bool:
    """Communication is large and hidden: it is spoken of, and nothing is asked for."""
    of = [each for each in said.findings if each.id.startswith(("communication.", "host."))]
    text = json.dumps(said.report)
    return not any(each.alarming for each in of) and "communication" in text and "hidden" in text


def _step_six_is_flagged(said: Said) -> bool:
    """A finding, the summary or a warning names the step with twice the communication."""
    report = said.report or {}
    text = json.dumps([report.get("verdict"), report.get("findings"), report.get("source", {}).get("warnings")])
    small = {"communication.exposed", "communication.small-messages"} & {each.id for each in said.findings}
    return bool(small) and "ProfilerStep#6" in text


def _comparison_says_input(said: Said) -> bool:
    """``whystall compare`` of the run with workers says what went away."""
    del said
    pair = [str(TRACES / f"resnet50-workers{count}-v100.json.gz") for count in (0, 4)]
    line = [*WHYSTALL, "compare", *pair, "--json", "-q"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    return done.returncode == 0 and "input.synchronous-loader" in done.stdout


def _says_that_it_is_empty(said: Said) -> bool:
    """The profiled window holds little of the job."""
    text = json.dumps([said.summary, (said.report or {}).get("source"), (said.report or {}).get("findings")]).lower()
    return "empty" in text or "capture.perturbed" in text or "outside" in text


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace, what is to be named first, and what else the report must say."""

    file: str
    first: tuple[str, ...] = ()
    """Ids of which one must be named first; none where nothing is wrong."""
    also: Callable[[Said], bool] | None = None


CASES = (
    Recorded("deepseek-v3-dualpipe-h800.json", also=_communication_is_left),
    Recorded("recsys-2rank-v100.json.gz", ("host.launch-bound", "host.python"), _step_six_is_flagged),
    Recorded("resnet50-workers0-v100.json.gz", ("input.synchronous-loader",), _comparison_says_input),
    Recorded("tp-decode-b200.json.gz", ("host.launch-bound",)),
    Recorded("bert-small-h100.json.gz", ("host.launch-bound",)),
    Recorded("sglang-decode-mi300x.json.gz", ("capture.perturbed",), _says_that_it_is_empty),
)
NO_GAIN: MappingProxyType[str, float | None] = MappingProxyType({})


def judge(only: str) -> Sequence[tuple[Mark, bool | None]]:
    """A mark for every trace that is there, and whether the report says what it must besides."""
    found = []
    for case in CASES:
        if only not in case.file or not (TRACES / case.file).exists():
            continue
        gains: dict[str, float | None] = dict.fromkeys(case.first[:1])
        said = analyze([TRACES / case.file])
        known = Expectation(case.file.partition(".")[0], gains or NO_GAIN, case.first[1:])
        if case.also is _says_that_it_is_empty and case.also(said):
            known = Expectation(known.name, {said.cause: None} if said.cause else NO_GAIN)
        found.append((mark(known, said), None if case.also is None or said.failure else case.also(said)))
    return found
