"""``whystall export`` for trackers of experiments, read back by each tracker's own means."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray
from tests.cli.conftest import Cli
from tests.trace.test_following import row

import whystall
from whystall.run_folder.samples import LOOKED_AT, PROFILED, SCHEMA, STEP_COLUMNS

BEGAN_S = 1_800_000_000
LASTS_US = {1: 50_000, 2: 40_000, 3: 900_000, 4: 30_000, 5: 700_000, 6: 20_000}
FLAGS = {3: PROFILED, 5: LOOKED_AT}
SERIES = "whystall_step_duration_seconds/rank0"
SECRET = "the-name-of-my-customer"  # noqa: S105 - a name, no password


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of six steps, two of which watching disturbed, with a recording."""
    folder = tmp_path / SECRET
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"schema": "whystall.run/1", "exit_code": 0, "ranks": []}))
    shutil.copy(whystall.demo_recording(), folder / "rank0.trace.json.gz")
    head = {"schema": SCHEMA, "rank": 0, "columns": STEP_COLUMNS, "began_unix_ns": BEGAN_S * 10**9}
    rows = [row(number, lasts, flags=FLAGS.get(number, 0)) for number, lasts in LASTS_US.items()]
    (folder / "rank0.samples.jsonl").write_bytes(json.dumps(head).encode() + b"\n" + b"".join(rows))
    return folder


def steps() -> list[tuple[int, Any]]:
    return [(number, pytest.approx(us / 1e6)) for number, us in LASTS_US.items() if number not in FLAGS]


def ledger_shares(run: Path) -> dict[str, float]:
    """From the report itself."""
    (device,) = whystall.analyze(run, cache=False).devices
    return {
        f"whystall_ledger_share/rank0/device{device.device}/{part}": getattr(device.ledger, part) / device.window_ns
        for part in device.ledger.__struct_fields__
    }


def read(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    return events.Reload()


def export(run: Path, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: these packages change that in which they are imported."""
    command = [sys.executable, "-m", "whystall", "export", str(run), *map(str, words)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "WANDB_"))}
    told = clean | {"HOME": str(run.parent), **environment}
    return subprocess.run(command, env=told, capture_output=True, text=True, check=False)


def test_tensorboard_reads_what_the_run_says(cli: Cli, run: Path, tmp_path: Path) -> None:
    done = cli("export", run, "--format", "tensorboard", "-o", tmp_path / "board")
    assert (done.code, done.err) == (0, f"next: tensorboard --logdir {tmp_path / 'board'}\n")
    events = read(tmp_path / "board")
    assert [(event.step, event.value) for event in events.Scalars(SERIES)] == steps()
    for path, share in ledger_shares(run).items():
        assert [event.value for event in events.Scalars(path)] == [pytest.approx(share, rel=1e-6)]
    (histogram,) = events.Tensors(f"{SERIES}/histogram")
    left, right, count = make_ndarray(histogram.tensor_proto).T
    assert (left.min(), right.max(), count.sum()) == pytest.approx((0.02, 0.05, 4))
    (verdict,) = events.Tensors("whystall/verdict")
    assert make_ndarray(verdict.tensor_proto).item().decode() == whystall.analyze(run, cache=False).verdict.summary


def test_an_event_file_has_the_same_bytes_each_time_and_is_not_overwritten(cli: Cli, run: Path, tmp_path: Path) -> None:
    words = ("export", run, "--format", "tensorboard", "-o")
    assert [cli(*words, tmp_path / name).code for name in ("one", "two")] == [0, 0]
    (one,), (two,) = ((tmp_path / name).iterdir() for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    assert socket.gethostname() not in one.name
    again = cli(*words, tmp_path / "one")
    assert again.code == 2
    assert "--force" in again.err
    assert cli(*words, tmp_path / "one", "--force").code == 0


def test_of_a_trace_the_recorded_steps(cli: Cli, tmp_path: Path) -> None:
    assert cli("export", whystall.demo_recording(), "--format", "tensorboard", "-o", "board").code == 0
    (device,) = whystall.analyze(whystall.demo_recording(), cache=False).devices
    told = [(f"ProfilerStep#{event.step}", event.value) for event in read(tmp_path / "board").Scalars(SERIES)]
    assert told == [(step.name, pytest.approx(step.window_ns / 1e9)) for step in device.steps]


def test_a_report_to_share_names_nothing_of_the_job(cli: Cli, run: Path, tmp_path: Path) -> None:
    assert cli("export", run, "--format", "tensorboard", "-o", tmp_path / "board", "--redact").code == 0
    (written,) = (tmp_path / "board").iterdir()
    assert SECRET.encode() not in written.read_bytes()
    done = export(run, "--format", "wandb", "-o", tmp_path / "wandb", "--redact")
    assert done.returncode == 0, done.stderr
    for record in records(Path(done.stdout.strip())):
        assert SECRET not in str(record)


def test_mlflow_holds_what_the_run_says(run: Path, tmp_path: Path) -> None:
    # mlflow-skinny, which the tests have, knows no database: only the store of files, which is asked for by name.
    store = (tmp_path / "store").as_uri()
    done = export(run, "--format", "mlflow", "-o", store, MLFLOW_ALLOW_FILE_STORE="true")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "next: open the experiment whystall in MLflow\n"
    program = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient(tracking_uri=sys.argv[1])
(run,) = client.search_runs([client.get_experiment_by_name("whystall").experiment_id])
history = [(one.step, one.value, one.timestamp) for one in client.get_metric_history(run.info.run_id, sys.argv[2])]
page = open(client.download_artifacts(run.info.run_id, "whystall.html")).read()
print(json.dumps([run.info.run_name, run.info.status, run.data.tags, run.data.metrics, history, page]))
"""
    environment = os.environ | {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    command = [sys.executable, "-c", program, store, SERIES]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    name, status, tags, metrics, history, page = json.loads(ended.stdout.splitlines()[-1])
    verdict = whystall.analyze(run, cache=False).verdict
    assert (name, status) == (SECRET, "FINISHED")
    assert tags == {
        "mlflow.runName": SECRET,
        "mlflow.note.content": verdict.summary,
        "whystall.verdict": verdict.summary,
        "whystall.cause": verdict.cause or "",
    }
    assert sorted((step, value) for step, value, _ in history) == steps()
    assert min(at for _, _, at in history) == BEGAN_S * 1000
    shares = ledger_shares(run)
    assert {path: value for path, value in metrics.items() if path in shares} == pytest.approx(shares)
    assert page.lower().startswith("<!doctype html>")
    assert verdict.summary[:30] in page


def test_mlflow_wants_to_be_told_where_and_names_no_password(run: Path, tmp_path: Path) -> None:
    nowhere = export(run, "--format", "mlflow")
    assert nowhere.returncode == 2
    assert "MLFLOW_TRACKING_URI" in nowhere.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    uri = f"http://me:{SECRET}@127.0.0.1:{port}"
    absent = export(run, "--format", "mlflow", MLFLOW_TRACKING_URI=uri, MLFLOW_HTTP_REQUEST_MAX_RETRIES="0")
    assert absent.returncode == 2
    assert absent.stderr.startswith("whystall: MLflow: ")
    assert SECRET not in absent.stderr.replace(str(run), "")


def records(folder: Path) -> list[Any]:
    """The records of a run that W&B keeps offline: framed as in LevelDB's log, after a head of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("run-*.wandb")
    data, at, part = file.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    found = []
    while at + 7 <= len(data):
        left = 32_768 - at % 32_768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in {1, 4}:  # whole, or the last part of one
            found.append(Record.FromString(part))
            part = b""
    return found


def test_wandb_holds_what_the_run_says_and_nothing_of_the_machine(run: Path, tmp_path: Path) -> None:
    done = export(run, "--format", "wandb", "-o", tmp_path / "tracked")
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert done.stderr == f"next: wandb sync {folder}\n"
    assert folder.is_relative_to(tmp_path / "tracked")
    kept = records(folder)
    history: list[dict[str, Any]] = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in kept
        if record.HasField("history")
    ]
    assert [(line["_step"], line[SERIES]) for line in history if SERIES in line] == steps()
    whole = {key: value for line in history for key, value in line.items()}
    shares = ledger_shares(run)
    assert {path: whole[path] for path in shares} == pytest.approx(shares)
    (began,) = (record.run for record in kept if record.HasField("run"))
    assert (began.project, began.display_name, began.host) == ("whystall", SECRET, "")
    (page,) = folder.glob("files/media/html/*.html")
    assert page.read_text().lower().startswith("<!doctype html>")
    assert not [*folder.rglob("wandb-metadata.json"), *folder.rglob("requirements.txt")]
    summary = [item for record in kept if record.HasField("summary") for item in record.summary.update]
    said = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in summary}
    assert said["whystall_verdict"] == whystall.analyze(run, cache=False).verdict.summary


def test_wandb_goes_online_for_who_has_logged_in_alone(run: Path, tmp_path: Path) -> None:
    done = export(run, "--format", "wandb", "-o", tmp_path / "tracked", WANDB_MODE="online")
    assert done.returncode == 2
    assert "wandb login" in done.stderr
    for nowhere in ([], ["-o", "-"]):
        assert "name one with -o" in export(run, "--format", "wandb", *nowhere).stderr


@pytest.mark.parametrize("package", ["tensorboard", "mlflow", "wandb"])
def test_a_package_that_is_missing_is_named(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setattr("whystall.cli.finished.find_spec", lambda name: None if name == package else find_spec(name))
    done = cli("export", run, "--format", package, "-o", "there")
    assert done.code == 2
    assert f"pip install 'whystall[{package}]'" in done.err
