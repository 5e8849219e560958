# ruff: noqa: S311, RUF001, E501 - noise needs no cryptography; a table is wide
"""Writes the traces of all cases, lets whystall judge them and prints what it said beside the truth."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

from . import cases_host, cases_kernels, cases_ranks, cases_serving, cases_shard
from .emit import write
from .engine import simulate
from .loops import CASES, Case

LISTED = (cases_host, cases_kernels, cases_serving, cases_ranks, cases_shard)


def traces(case: Case, seed: int, out: Path) -> tuple[list[Path], float]:
    """Write the case's traces; gives the files and the true gain of removing its cause."""
    lengths = []
    made = []
    for on in (True, False):
        r = random.Random(seed * 7919 + zlib.crc32(case.name.encode()))
        made = simulate(case.build(r, seed * 131 + zlib.crc32(case.name.encode()) % 1000, on))
        last = len(made[0].marks) - 1
        lengths.append(sum(rank.period(case.first, last) for rank in made) / len(made))
        if on:
            files = []
            for rank in made:
                files.append(out / f"{case.name}-rank{rank.prog.rank}.json.gz")
                write(rank, files[-1], random.Random(f"{seed} {case.name} {rank.prog.rank}").uniform(-4000, 4000))
    return files[: case.files or None], lengths[0] / lengths[1]


def judge(case: Case, gain: float, report: dict[str, Any]) -> dict[str, Any]:
    """Whether the first cause is right and the true gain lies in what was told."""
    findings = report["findings"]
    loud = [f for f in findings if f["severity"] != "info"]
    said = report["verdict"]["cause"]
    healthy = not case.accept
    match = next((f for cause in case.accept for f in findings if f["id"] == cause), None)
    told = (match or {}).get("gain") or {}
    inside = bool(told) and told["floor"] <= gain * 1.005 and gain <= told["ceiling"] * 1.005
    right = said in case.accept
    if healthy:
        right = not loud
    elif case.kind == "limit":
        right = not loud and match is not None
    return {
        "case": case.name,
        "kind": case.kind,
        "truth": case.accept,
        "why": case.why,
        "said": said,
        "right": right,
        "gain": round(gain, 3),
        "inside": None if healthy else inside,
        "told": [told.get(k) for k in ("floor", "expected", "ceiling")] if told else None,
        "rank": findings.index(match) + 1 if match else None,
        "summary": report["verdict"]["summary"],
        "findings": [
            (f["id"], f["severity"], *((f.get("gain") or {}).get(k) for k in ("floor", "expected", "ceiling")))
            for f in findings
        ],
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="independent", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--whystall", default=str(Path(sys.executable).with_name("whystall")))
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        out = options.out or Path(scratch)
        out.mkdir(parents=True, exist_ok=True)
        for case in CASES:
            if options.only and options.only not in case.name:
                continue
            files, gain = traces(case, options.seed, out)
            done = subprocess.run(
                [options.whystall, "analyze", "--json", "--no-cache", *map(str, files)],
                capture_output=True,
                text=True,
                check=False,
            )
            (out / f"{case.name}.report.json").write_text(done.stdout)
            if not done.stdout.startswith("{"):
                print(f"{case.name}: no report: {done.stderr[-300:]}", file=sys.stderr)
                continue
            rows.append(judge(case, gain, json.loads(done.stdout)))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print("| case | kind | truth | said first | right | true gain | told | within |\n|---|---|---|---|---|---|---|---|")
    for row in rows:
        told = (
            "–" if not row["told"] else "{:.2f} ({:.2f}–{:.2f})".format(row["told"][1], row["told"][0], row["told"][2])
        )
        print(
            f"| {row['case']} | {row['kind']} | {' '.join(row['truth']) or 'healthy'} | {row['said'] or 'nothing'} | "
            f"{'yes' if row['right'] else 'NO'} | {row['gain']:.2f} | {told} | {row['inside'] if row['inside'] is not None else ''} |"
        )
    for kind in ("planted", "no rule", "limit", "healthy"):
        some = [row for row in rows if row["kind"] == kind]
        inside = [row for row in some if row["inside"]]
        print(
            f"\n{kind}: {sum(row['right'] for row in some)} of {len(some)} right, true gain inside the interval of {len(inside)}"
            f" of {sum(row['told'] is not None for row in some)} that had one"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
