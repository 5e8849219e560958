"""How often whystall is right, and by how much its predicted gains are off.

    python -m benchmarks.accuracy [--quick] [--parts simulated,real] [--only PART] [--without] [--markdown]

``simulated``: GPU jobs from the simulator beside this file; ``jobs``: real training jobs on this machine's CPU, with
TraceML beside where ``.venv-peers`` has it; ``real``: the recorded traces of ../shared/traces; ``transplanted``: those
with faults put into them; ``retimed``: recorded steps, timed anew with a fault;
``independent``: traces of a generator whose author had not seen the rules.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.accuracy import peer_traceml, real_jobs, recorded, show, simulated, transplants
from benchmarks.accuracy.independent import judged as independent
from benchmarks.accuracy.retimed import full
from benchmarks.accuracy.retimed import judged as retimed
from benchmarks.accuracy.score import Ablation, Mark, summary
from benchmarks.accuracy.show import Peer


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    asked = _parser().parse_args(arguments)
    parts: dict[str, list[Mark]] = {}
    removed: list[Ablation] = []
    with ExitStack() as stack:
        if "simulated" in asked.parts:
            out = asked.traces or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            found = simulated.folders(out, simulated.names(only=asked.only, quick=asked.quick), jobs=asked.jobs)
            parts["simulated GPU jobs"] = simulated.judge(found, jobs=asked.jobs)
            unseen = simulated.folders(
                out, [f"drawn-{asked.seed}-{number}" for number in range(asked.drawn)], jobs=asked.jobs
            )
            if unseen:
                parts[f"drawn at random (seed {asked.seed})"] = simulated.judge(unseen, jobs=asked.jobs)
            if asked.without:
                removed = simulated.judge_without(found, jobs=asked.jobs)
        peers: dict[str, Peer] = {}
        if not asked.quick:
            parts |= _of_recordings(asked, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        if "independent" in asked.parts and not asked.quick:
            traces = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            parts |= independent.judge(traces, seed=asked.seed, only=asked.only, jobs=asked.jobs)
        if "jobs" in asked.parts:
            parts["real CPU jobs"] = _real_jobs(asked, peers)
        also: dict[str, bool | None] = {}
        if "real" in asked.parts:
            judged = recorded.judge(asked.only)
            parts["recorded traces"] = [each for each, _ in judged]
            also = {each.name: holds for each, holds in judged}
    print(_text(parts, removed, peers, also, details=asked.verbose or not asked.markdown))
    if asked.output:
        data: dict[str, Any] = {name: [asdict(each) for each in marks] for name, marks in parts.items()}
        data["without"] = [asdict(each) for each in removed]
        data["traceml"] = [{"name": name, **asdict(each)} for name, each in peers.items()]
        asked.output.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    if asked.feedback:
        rows = [each for marks in parts.values() for each in marks]
        text = _text(parts, removed, peers, also, details=False)
        asked.feedback.write_text(f"{text}\n\n{show.feedback(rows, removed)}", "utf-8")


def _of_recordings(asked: argparse.Namespace, out: Path) -> dict[str, list[Mark]]:
    """The marks of what is made of recordings, by part."""
    of, parts = f"(seed {asked.seed})", {}
    if "transplanted" in asked.parts:
        count = asked.drawn or 60
        parts[f"transplanted {of}"] = transplants.judge(out, count=count, seed=asked.seed, jobs=asked.jobs)
        parts[f"recordings that lost events {of}"] = transplants.judge_lost(out, seed=asked.seed, jobs=asked.jobs)
    if "retimed" in asked.parts:
        count = asked.drawn or 60
        parts[f"retimed {of}"] = retimed.judge(out, count=count, seed=asked.seed, jobs=asked.jobs)
        found = full.judge(out, count=asked.drawn or 40, seed=asked.seed, jobs=asked.jobs)
        parts[f"retimed with a full queue, lost events or in one file {of}"] = found
    return parts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the subset that CI runs")
    parser.add_argument(
        "--parts",
        default="simulated,independent,transplanted,retimed,jobs,real",
        type=lambda text: text.split(","),
        help="which jobs",
    )
    parser.add_argument("--only", default="", help="jobs whose name contains this")
    parser.add_argument("--drawn", type=int, default=0, help="so many simulated jobs more, drawn at random")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn")
    parser.add_argument("--without", action="store_true", help="judge again with signals removed")
    parser.add_argument(
        "--traces", type=Path, help="where simulated traces are kept between runs, and the folders of real ones"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--rounds", type=int, default=3, help="runs that are watched of each real job, between pairs of others"
    )
    parser.add_argument("--unpaired", action="store_true", help="judge causes of real jobs without measuring gains")
    parser.add_argument("--no-peer", action="store_true", help="leave TraceML out")
    parser.add_argument("--markdown", action="store_true", help="the tables for the documentation alone")
    parser.add_argument("-v", "--verbose", action="store_true", help="a row per job as well")
    parser.add_argument("-o", "--output", type=Path, help="write the marks as JSON")
    parser.add_argument("--feedback", type=Path, help="write what failed, in Markdown")
    return parser


def _real_jobs(asked: argparse.Namespace, peers: dict[str, Peer]) -> list[Mark]:
    wanted = [case for case in real_jobs.CASES if asked.only in case.name and (case.quick or not asked.quick)]
    marks = []
    if away := [case.name for case in wanted if not case.possible]:
        print(f"left out, no network of one's own (unshare, tc): {', '.join(away)}", file=sys.stderr)
    wanted = [case for case in wanted if case.name not in away]
    for case in wanted:
        peer = None if asked.no_peer else peer_traceml.verdict
        rounds = 1 if asked.quick else asked.rounds
        judged = real_jobs.judge(case, rounds=rounds, peer=peer, keep=asked.traces, paired=not asked.unpaired)
        marks += judged.marks
        if judged.peer:
            peers[case.name] = peer_traceml.judged(case, judged.peer)
        print(*show.marks(judged.marks).splitlines()[2:], judged.peer, sep="\n", file=sys.stderr, flush=True)
    return marks


def _text(
    parts: dict[str, list[Mark]],
    removed: Sequence[Ablation],
    peers: dict[str, Peer],
    also: dict[str, bool | None],
    *,
    details: bool,
) -> str:
    tables = [show.marks(marks) for marks in parts.values()] if details else []
    tables.append(show.summaries([(name, summary(marks)) for name, marks in parts.items()]))
    tables.append(show.reliability([each for marks in parts.values() for each in marks]))
    tables.append(show.invariants([each for marks in parts.values() for each in marks]))
    if removed:
        tables.append(show.ablations(removed))
    if peers:
        tables.append(show.beside_traceml(parts["real CPU jobs"], peers))
    if also:
        tables.append(
            "\n".join(
                f"{name}: the rest of what is known is said: {holds}"
                for name, holds in also.items()
                if holds is not None
            )
        )
    return "\n\n".join(tables)


if __name__ == "__main__":
    main()
