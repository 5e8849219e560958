"""Whatever samples, descriptions, outcomes of experiments and logs say, every verb ends as it says it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.fuzz.mutations import damaged
from tests.fuzz.seeds import CASES, seeds

from whystall.cli import main
from whystall.errors import WhystallError
from whystall.fleet.logs.read import read_logs
from whystall.report.schema import decode
from whystall.trace.following import Followed
from whystall.trace.samples import read_samples

HERE = Path(__file__).parent / "run"
SHARED = Path(__file__).parents[3] / "shared"
SAMPLES, RANK, RUN = "rank0.samples.jsonl", "rank0.run.json", "run.json"
MORE_LINES = (
    '{"at_unix_ns":1795876443804870120,"step":46,"cpu_ticks":[515784,398],'
    '"allocator":[{"allocated":1,"reserved":2,"peak_allocated":3,"retries":0}],'
    '"devices":[{"use_percent":50,"sm_mhz":1000,"throttle_bits":4}],'
    '"children":[[17,"S",5]],"threads":[[18,"R",7]]}\n'
)
EXPERIMENTS = '[{"name":"threads","why":"x","base_ns":10,"candidate_ns":5,"low":0.1,"high":2.0,"cause":"host.sync"}]'
# Each of them once ended as a bug.
KNOWN_ROWS = (
    "[3,{0},{0},421,9615,63075,87141,0,0,63062,1,30,6,0,0,32,110981,0,325256,120314,0]",
    "[{0},400000,83163,421,9615,63075,87141,0,0,63062,1,30,6,0,0,32,110981,0,325256,120314,0]",
    "[3,400000,83163,421,9615,63075,87141,0,0,63062,1,30,6,0,0,32,110981,0,325256,120314,{0}]",
)
ODD_CELLS = (
    *map(str, (2**63, 2**63 - 1, -(2**63), 2**62, 2**53, 2**200)),
    *("-1", "1.5", "1e300", "null", "true", '"x"', "{}", '{"a": 1}', "[]", "[[1]]"),
)


def run_folder(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for file in HERE.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def outcomes(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What each verb said that ended as a bug of ours, or said nothing at all."""
    wrong = []
    for words in (
        ("analyze", "--json"),
        ("watch", "--once", "--no-windows"),
        ("export", "--format", "steps"),
        ("hang",),
    ):
        code = main([words[0], str(folder), *words[1:]])
        said = capsys.readouterr()
        if code not in (0, 2, 3) or (code and not said.err.strip()):
            wrong.append(f"{words[0]}: {code}: {said.err.strip()[-300:]}")
        elif words[0] == "analyze" and code == 0:
            decode(said.out.encode())
    return wrong


@pytest.mark.parametrize("cell", ODD_CELLS)
@pytest.mark.parametrize("row", KNOWN_ROWS)
def test_an_odd_cell_of_a_step(row: str, cell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path / "run")
    lines = (folder / SAMPLES).read_text().splitlines(keepends=True)
    (folder / SAMPLES).write_text("".join([*lines[:9], row.replace("{0}", cell) + "\n", *lines[9:]]))

    assert outcomes(folder, capsys) == []


@pytest.mark.parametrize("key", ["at_unix_ns", "step", "cpu_ticks", "allocator", "devices", "children", "threads"])
def test_an_odd_value_of_the_machine(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path / "run")
    known = (folder / SAMPLES).read_text()
    for cell in ODD_CELLS:
        lines = [
            json.dumps({**json.loads(MORE_LINES), key: json.loads(value)}) for value in (cell, f"[{cell}, {cell}]")
        ]
        (folder / SAMPLES).write_text(known + "\n".join(lines) + "\n")
        assert outcomes(folder, capsys) == [], cell


@pytest.mark.parametrize("nested", ["[" * 100_000, '{"a":' * 100_000])
def test_nesting_without_end_is_no_bug(nested: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path / "run")
    for name in ("experiments.json", "experiments.jsonl", *(file.name for file in HERE.iterdir())):
        known = (folder / name).read_bytes() if (folder / name).exists() else b""
        for content in (nested.encode(), known + b"\n" + nested.encode() + b"\n"):
            (folder / name).write_bytes(content)
            assert outcomes(folder, capsys) == [], name
        (folder / name).write_bytes(known)


@pytest.mark.parametrize("name", [SAMPLES, RANK, RUN, "experiments.json"])
def test_any_run_folder_is_read_or_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path / "run")
    originals = [(HERE / name).read_bytes()] if (HERE / name).exists() else [EXPERIMENTS.encode()]
    if name == SAMPLES:
        originals.append(originals[0] + MORE_LINES.encode())
    for seed in seeds(CASES // 6):
        (folder / name).write_bytes(damaged(seed, originals))
        assert outcomes(folder, capsys) == [], seed


def test_any_samples_are_read_or_refused_by_themselves(tmp_path: Path) -> None:
    path, originals = tmp_path / SAMPLES, [(HERE / SAMPLES).read_bytes() + MORE_LINES.encode()]
    read = 0
    for seed in seeds(CASES):
        path.write_bytes(damaged(seed, originals))
        for look in (lambda: read_samples(path), Followed(path).look):
            try:
                look()
                read += 1
            except WhystallError:
                continue
            except Exception as error:
                raise AssertionError(f"case {seed}") from error
    assert read > CASES // 10


def logs() -> list[Path]:
    found = [*SHARED.glob("samples/compile-logs/*.log"), *SHARED.glob("recordings/*.log")]
    return sorted(path for path in found if path.stat().st_size < 1 << 18)


@pytest.mark.skipif(not logs(), reason="no logs beside the repository")
def test_any_log_is_read_or_refused(tmp_path: Path) -> None:
    path, originals = tmp_path / "job.log", [log.read_bytes() for log in logs()]
    for seed in seeds(CASES):
        path.write_bytes(damaged(seed, originals))
        try:
            read_logs([path], {None: 8})
        except WhystallError:
            continue
        except Exception as error:
            raise AssertionError(f"case {seed}") from error
