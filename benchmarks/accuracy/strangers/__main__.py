"""Runs the strangers' jobs: the true gain by plain runs, what whystall says, and what its remedy is worth.

    python -m benchmarks.accuracy.strangers [--second | --third | ... | --twentyeighth] [--only NAME ...]
        [--out DIR] [--pairs N] [--seconds S] [--table | --recorded]

For each job: plain runs of the original and of the author's repaired version in alternation, one `whystall run` of the
original, and, where `remedied/NAME.diff` exists, plain runs of the original and of that variant. Results gather in
DIR/strangers.json, the run folders in DIR/NAME; `--table` prints the table of what is there and runs nothing;
`--recorded` analyses the recordings that are there again, after a change of the rules, in some seconds for all.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

import whystall

HERE = Path(__file__).parent
NEIGHBOURS = ("host.cpu-contention",)  # what other users of the machine cause, not the job
COUNTED = ("minor", "major", "critical")
WARM_UP = 0.2
Job = dict[str, Any]


def launcher(truth: Job) -> list[str]:
    """Python, or torchrun where the job has ranks."""
    ranks = truth.get("ranks", 2 if truth.get("launch") == "torchrun" else 1)
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", str(ranks)]
    return torchrun if ranks > 1 else [sys.executable]


def settle(limit: float = 5.0) -> float:
    """Waits until the one-minute load leaves a core free, at most ``limit`` seconds; returns the load."""
    end = time.monotonic() + limit
    while os.getloadavg()[0] > (os.cpu_count() or 1) - 1 and time.monotonic() < end:
        time.sleep(3)
    return os.getloadavg()[0]


def steady_mean(command: list[str], times: Path) -> float:
    """The mean time of a step, in seconds, without the first fifth of the steps."""
    times.unlink(missing_ok=True)
    done = subprocess.run([*command, "--times", str(times)], check=False, capture_output=True, text=True, timeout=300)
    if done.returncode != 0 or not times.exists():
        raise RuntimeError(f"{command}: {done.stderr[-2000:]}")
    steps = [float(t) for t in re.findall(r"[\d.e-]+", times.read_text())]  # as a list or as lines
    return statistics.fmean(steps[int(len(steps) * WARM_UP) :])


def paired(before: list[str], after: list[str], pairs: int) -> Job:
    """Steps of both commands in alternation, and the median of the pairs' ratios."""
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        found = [(steady_mean(before, times), steady_mean(after, times)) for _ in range(pairs)]
    ratios = [a / b for a, b in found]
    return {
        "gain": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
        "before_ms": statistics.median(a for a, _ in found) * 1e3,
        "after_ms": statistics.median(b for _, b in found) * 1e3,
    }


def listen(command: list[str], folder: Path, seconds: float | None) -> Job:
    """What whystall says of the job: its verdict, and each finding in order."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    whystall = str(Path(sys.executable).parent / "whystall")
    began = time.monotonic()
    done = subprocess.run(
        [whystall, "run", "-f", "-o", str(folder), "--", *command, *(["--seconds", str(seconds)] if seconds else [])],
        check=False,
        capture_output=True,
        text=True,
        timeout=400,
    )
    (folder / "stdout.txt").write_text(done.stdout)
    (folder / "stderr.txt").write_text(done.stderr)
    report = json.loads((folder / "report.json").read_text())
    return {"rc": done.returncode, "wall_s": time.monotonic() - began, **said(report)}


def said(report: Job) -> Job:
    """The verdict of a report and its findings in order."""
    return {
        "verdict": report.get("verdict"),
        "findings": [
            {key: finding.get(key) for key in ("id", "severity", "title", "gain", "remedy")}
            for finding in report.get("findings", [])
        ],
    }


def first(told: Job, aside: tuple[str, ...] = ()) -> Job | None:
    """The first finding that counts and is not of ``aside``."""
    return next((f for f in told["findings"] if f["severity"] in COUNTED and f["id"] not in aside), None)


def judge(job: Job, truth: Job, aside: tuple[str, ...] = ()) -> str:
    """Whether the first finding that counts is a right one, those of ``aside`` left out."""
    finding = first(job["told"], aside)
    if not truth["causes"]:
        if finding is None:
            return "right"
        return "false critical" if finding["severity"] == "critical" else "false alarm"
    if finding is None:
        said = next((f["id"] for f in job["told"]["findings"] if f["id"] not in aside), None)
        return "perhaps" if said in truth["causes"] else "missed"  # said as possible, not as a finding that counts
    if finding["id"] in truth["causes"]:
        return "right"
    return "false critical" if finding["severity"] == "critical" else "wrong"


def gain_of(finding: Job | None) -> tuple[float, float, float] | None:
    """Floor, expectation and ceiling of a finding's gain."""
    gain = (finding or {}).get("gain")
    if not gain or gain.get("expected") is None:
        return None
    return float(gain["floor"]), float(gain["expected"]), float(gain["ceiling"])


def told_gain(finding: Job | None) -> str:
    """The gain as told, for the table."""
    gain = gain_of(finding)
    return "-" if gain is None else f"{gain[1]:.2f} ({gain[0]:.2f} to {gain[2]:.2f})"


def inside(measured: float, finding: Job | None) -> str:
    """Where the measured gain lies against what was told; 2 % either side are measurement."""
    gain = gain_of(finding)
    if gain is None:
        return "-"
    if measured < gain[0] * 0.98:
        return "below"
    return "above" if measured > gain[2] * 1.02 else "yes"


def run_job(name: str, truth: Job, args: argparse.Namespace, old: Job) -> Job:
    """Does for one job what is not done yet, or what ``--again`` asks for."""
    script = args.folder / "jobs" / f"{name}.py"
    started = [*launcher(truth), str(script)]
    plain = [*started, "--seconds", str(truth.get("seconds", args.seconds))]
    job = dict(old)
    if name.startswith("h_"):
        job["true"] = {"gain": 1.0, "low": 1.0, "high": 1.0}  # nothing to repair: --better changes nothing
    elif "true" not in job and "gain" in truth and "true" not in args.again:
        job["true"] = {"gain": truth["gain"], "low": truth["gain"], "high": truth["gain"]}  # as the author measured it
    elif "true" not in job or "true" in args.again:
        job["load_true"] = settle()
        job["true"] = paired(plain, [*plain, "--better"], args.pairs)
    if "told" not in job or "told" in args.again:
        job["load_told"] = settle()
        job["told"] = listen(started, args.out / name, None if truth.get("plain") else args.watch)
    change = args.folder / "remedied" / f"{name}.diff"
    if change.exists() and ("remedied" not in job or "remedied" in args.again):
        job["load_remedied"] = settle()
        with tempfile.TemporaryDirectory() as folder:  # outside of the checkout, whose files git would look for
            changed = shutil.copy(script, folder)
            subprocess.run(["git", "apply", "--unidiff-zero", "-p0", str(change)], cwd=folder, check=True)
            job["remedied"] = paired(plain, [*started[:-1], changed, *plain[len(started) :]], args.pairs)
    job["judged"] = judge(job, truth)
    return job


def remedied_finding(job: Job, truth: Job) -> Job | None:
    """The finding whose remedy was applied: the one that truth.toml names, else the first."""
    wanted = truth.get("remedied")
    return next((f for f in job["told"]["findings"] if f["id"] == wanted), None) if wanted else first(job["told"])


def table(jobs: Job, truths: Job) -> str:
    """The results as Markdown: the jobs, the totals, the remedies."""
    lines = [
        "| job | truth | told first | right? | neighbours aside | true gain | told gain | inside? |",
        "|---|---|---|---|---|---|---|---|",
    ]
    judged: list[str] = []
    right_aside = 0
    for name, job in jobs.items():
        told, true = first(job["told"]), job["true"]
        judged.append(job["judged"])
        aside = judge(job, truths[name], NEIGHBOURS)
        right_aside += aside == "right"
        what = f"{told['id']} ({told['severity']})" if told else "nothing"
        gain = f"{true['gain']:.2f} ({true['low']:.2f}..{true['high']:.2f})"
        inner = inside(true["gain"], told) if job["judged"] == "right" and told else "-"
        causes = " / ".join(truths[name]["causes"]) or "healthy"
        lines.append(
            f"| {name} | {causes} | {what} | {job['judged']} | {aside} | {gain} | {told_gain(told)} | {inner} |"
        )
    faulty = [j for n, j in jobs.items() if truths[n]["causes"]]
    right = sum(j["judged"] == "right" for j in faulty)
    lines += ["", f"Faulty jobs with a right first finding: {right} of {len(faulty)}."]
    healthy = [j for n, j in jobs.items() if not truths[n]["causes"]]
    clean = sum(j["judged"] == "right" for j in healthy)
    lines += [f"Healthy jobs without a finding: {clean} of {len(healthy)}."]
    lines += [f"Right with contention by other processes set aside: {right_aside} of {len(jobs)}."]
    lines += [f"{kind}: {judged.count(kind)}" for kind in sorted(set(judged))]
    lines += ["", "| job | remedy of | told | true gain of the remedy | inside? | note |", "|---|---|---|---|---|---|"]
    for name, job in jobs.items():
        if "remedied" not in job:
            continue
        done, finding = job["remedied"], remedied_finding(job, truths[name])
        note = truths[name].get("remedy_note", "") + (" SLOWER" if done["gain"] < 0.97 else "")
        gain = f"{done['gain']:.2f} ({done['low']:.2f}..{done['high']:.2f})"
        which = finding["id"] if finding else "-"
        lines.append(f"| {name} | {which} | {told_gain(finding)} | {gain} | {inside(done['gain'], finding)} | {note} |")
    return "\n".join(lines)


def main() -> int:
    """Runs what is asked for, writes the JSON after each job, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for author in (
        "second",
        "third",
        "fourth",
        "fifth",
        "sixth",
        "seventh",
        "eighth",
        "ninth",
        "tenth",
        "eleventh",
        "twelfth",
        "thirteenth",
        "fourteenth",
        "fifteenth",
        "sixteenth",
        "seventeenth",
        "eighteenth",
        "nineteenth",
        "twentieth",
        "twentyfirst",
        "twentysecond",
        "twentyfourth",
        "twentyfifth",
        "twentyseventh",
        "twentyeighth",
    ):
        parser.add_argument(
            f"--{author}", dest="author", action="store_const", const=author, help=f"a {author} author's"
        )
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("whystall-runs/strangers"))
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a plain run")
    parser.add_argument("--watch", type=float, default=14.0, help="seconds of a watched run")
    parser.add_argument("--again", action="append", default=[], choices=("true", "told", "remedied"))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--recorded", action="store_true")
    args = parser.parse_args()
    args.folder = HERE / args.author if args.author else HERE
    truths = tomllib.loads((args.folder / "truth.toml").read_text())
    args.out.mkdir(parents=True, exist_ok=True)
    store = args.out / "strangers.json"
    jobs: Job = json.loads(store.read_text()) if store.exists() else {}
    if args.recorded:
        for name in [name for name in args.only or jobs if (args.out / name).is_dir()]:
            report = json.loads(whystall.render(whystall.analyze(args.out / name), "json"))
            jobs[name]["told"] = jobs[name]["told"] | said(report)
    elif not args.table:
        for name in args.only or list(truths):
            try:
                jobs[name] = run_job(name, truths[name], args, jobs.get(name, {}))
            except (RuntimeError, OSError, subprocess.TimeoutExpired, ValueError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            print(f"{time.strftime('%H:%M:%S')} {name}: {jobs[name]['judged']}", file=sys.stderr, flush=True)
            store.write_text(json.dumps(jobs, indent=1))
    ordered = {name: jobs[name] for name in truths if name in jobs}
    for name, job in ordered.items():
        job["judged"] = judge(job, truths[name])
    print(table(ordered, truths))
    return 0


if __name__ == "__main__":
    sys.exit(main())
