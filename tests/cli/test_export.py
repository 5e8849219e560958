"""``whystall export`` of tables and timelines from a folder."""

from __future__ import annotations

import gzip
import json
import shutil
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

import whystall
from whystall.testing import trace

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Cli


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(whystall.demo_recording(), folder / "rank0.trace.json.gz")
    for name in ("run.json", "rank0.run.json", "report.json"):
        (folder / name).write_text("{}")
    return folder


def test_the_one_trace_of_a_run_folder_is_exported(cli: Cli, run_folder: Path, tmp_path: Path) -> None:
    assert cli("export", run_folder, "--format", "csv", "-o", "tables").code == 0
    assert (tmp_path / "tables" / "operators.csv").stat().st_size > 0
    assert cli("export", run_folder, "--format", "perfetto", "-o", "timeline.json").code == 0
    assert json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]


def test_of_several_traces_one_must_be_named(cli: Cli, run_folder: Path) -> None:
    shutil.copy(run_folder / "rank0.trace.json.gz", run_folder / "rank1.trace.json.gz")
    outcome = cli("export", run_folder, "--format", "csv", "-o", "tables")
    assert outcome.code == 2
    assert "holds 2: name one, such as" in outcome.err


def test_steps_of_a_watched_run_as_csv(tmp_path: Path, cli: Cli) -> None:
    head = {"schema": "whystall.samples/1", "rank": 0, "columns": ["step", "duration_us", "flags"]}
    for rank in (0, 1):
        lines = [json.dumps({**head, "rank": rank}), "[1,500,0]", "[2,700,1]", "[3,600,2]", "[4,800,4]"]
        (tmp_path / f"rank{rank}.samples.jsonl").write_text("\n".join(lines))
    path = tmp_path / "steps.csv"
    assert cli("export", str(tmp_path), "--format", "steps", "-o", str(path)).code == 0
    rows = path.read_text().splitlines()
    assert rows[0] == "rank,step,duration_us,profiled,looked_at,skipped"
    assert rows[1:5] == [
        "0,1,500,false,false,false",
        "0,2,700,true,false,false",
        "0,3,600,false,false,true",
        "0,4,800,false,true,false",
    ]
    assert len(rows) == 9
    assert cli("export", str(tmp_path), "--format", "steps", "-o", str(path)).code == 2  # it exists
    (tmp_path / "empty").mkdir()
    outcome = cli("export", str(tmp_path / "empty"), "--format", "steps")
    assert outcome.code == 3
    assert "holds no samples of a watched run" in outcome.err


def of_rank(folder: Path, rank: int, *, behind_ns: int) -> None:
    """Four collectives of two ranks; the clock of this one is behind."""
    built = trace(distributedInfo={"rank": rank, "world_size": 2})
    record: dict[str, Any] = {
        "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 64, "Out msg nelems": 64,
        "Process Group Name": "0", "Group size": 2, "Process Group Ranks": "[0, 1]",
    }  # fmt: skip
    for number in range(4):
        late = 200_000 if rank else 0
        begin = 1_000_000_000 + number * 10_000_000 + late - behind_ns
        built.kernel("ncclDevKernel_AllReduce", at=begin, lasts=500_000 - late, **record)
    built.write(folder / f"rank{rank}.json")


def test_ranks_are_exported_on_one_clock(cli: Cli, tmp_path: Path) -> None:
    of_rank(tmp_path, 0, behind_ns=0)
    of_rank(tmp_path, 1, behind_ns=700_000_000)
    files = [tmp_path / f"rank{rank}.json" for rank in (0, 1)]
    assert cli("export", *files, "--format", "perfetto", "--ranks", "all", "-o", "both.json").code == 0
    events = json.loads((tmp_path / "both.json").read_text())["traceEvents"]
    ends = sorted(round((one["ts"] + one["dur"]) * 1000) for one in events if one["ph"] == "X")
    assert ends == [end for number in range(4) for end in [500_000 + number * 10_000_000] * 2]
    assert cli("export", *files, "--format", "perfetto", "--ranks", "1", "-o", "one.json").code == 0
    assert len([one for one in json.loads((tmp_path / "one.json").read_text())["traceEvents"] if one["ph"] == "X"]) == 4


def on_a_base(path: Path, base_ns: int) -> None:
    """The same times, written since a base that the file names, as torch writes them."""
    written = json.loads(path.read_text())
    for event in written["traceEvents"]:
        if "ts" in event:
            event["ts"] = round(float(event["ts"]) - base_ns / 1000, 3)
    path.write_text(json.dumps({"baseTimeNanoseconds": base_ns} | written))


def test_ranks_are_archived_as_they_are_with_a_manifest_of_their_clocks(cli: Cli, tmp_path: Path) -> None:
    """What a file reads at T the first one reads at T + offset: then each collective ends on both at one time."""
    for rank, behind_ns in ((0, 0), (1, 700_000_000)):
        of_rank(tmp_path, rank, behind_ns=behind_ns)
        on_a_base(tmp_path / f"rank{rank}.json", 1_690_000_000_000_000_000 - 5_000_000_000 * rank)
    files = [tmp_path / f"rank{rank}.json" for rank in (0, 1)]
    assert cli("export", *files, "--format", "perfetto", "--ranks", "all", "-o", "both.zip").code == 0
    with zipfile.ZipFile(tmp_path / "both.zip") as archive:
        manifest = json.loads(archive.read("perfetto_manifest.json"))["perfetto_manifest"]
        assert [archive.read(f"rank{rank}.json") for rank in (0, 1)] == [file.read_bytes() for file in files]
    assert manifest["version"] == 1
    offset_of = {one["path"]: one.get("clocks", {}).get("offset_ns", 0) for one in manifest["files"]}
    assert min(offset_of.values()) == 0
    ends = []
    for file in files:
        events = [one for one in json.loads(file.read_text())["traceEvents"] if one["ph"] == "X"]
        ends.append([round((one["ts"] + float(one["dur"])) * 1000) + offset_of[file.name] for one in events])
    assert ends[0] == pytest.approx(ends[1], abs=2_000)


@pytest.mark.parametrize(
    ("ranks", "why"),
    [("7", "no trace of rank 7: there are ranks 0"), ("0,0", "takes numbers such as 0,7, or all"), ("x", "or all")],
)
def test_ranks_that_are_not_there(cli: Cli, tmp_path: Path, ranks: str, why: str) -> None:
    of_rank(tmp_path, 0, behind_ns=0)
    outcome = cli("export", tmp_path / "rank0.json", "--format", "perfetto", "--ranks", ranks)
    assert outcome.code == 2
    assert why in outcome.err


def test_ranks_are_of_timelines(cli: Cli, run_folder: Path) -> None:
    outcome = cli("export", run_folder, "--format", "csv", "--ranks", "0", "-o", "tables")
    assert outcome.code == 2
    assert "--ranks is for timelines" in outcome.err


def test_the_evidence_of_a_finding_is_exported(cli: Cli, run_folder: Path, tmp_path: Path) -> None:
    (run_folder / "report.json").unlink()
    report = whystall.analyze(run_folder, cache=False)
    finding = next(finding for finding in report.findings if finding.shown)
    arguments = ("export", run_folder, "--format", "perfetto", "--finding", finding.id)
    assert cli(*arguments, "-o", "evidence.json").code == 0
    evidence = json.loads((tmp_path / "evidence.json").read_text())
    names = {event["args"]["name"] for event in evidence["traceEvents"] if event["name"] == "thread_name"}
    assert {f"finding {finding.id}", "ledger"} <= names
    assert cli(*arguments, "-o", "evidence.json.gz").code == 0
    assert gzip.decompress((tmp_path / "evidence.json.gz").read_bytes()) == (tmp_path / "evidence.json").read_bytes()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--format", "perfetto", "--finding", "no.such"], "no finding 'no.such'"),
        (["--format", "perfetto", "--finding", "host.sync", "--ranks", "all"], "not for --ranks"),
        (["--format", "csv", "--finding", "host.sync", "-o", "x"], "not for csv"),
    ],
)
def test_a_finding_that_cannot_be_exported_is_told(cli: Cli, run_folder: Path, more: list[str], told: str) -> None:
    (run_folder / "report.json").unlink()
    outcome = cli("export", run_folder, *more)
    assert outcome.code == 2
    assert told in outcome.err
