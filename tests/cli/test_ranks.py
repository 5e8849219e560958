from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl
from tests.fleet.ranks import job

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Cli


def log(folder: Path) -> Path:
    """Two ranks of one stage, one of which computes for 3 s and the other for 1 s."""
    rows = [
        {"dp_rank": rank, "stage": 0, "step": 5, "seq_id": 0, "mc": 0, "mb_id": microbatch, "gmc": gmc}
        | {"optype": kind, "start_ts": start, "duration": end - start}
        for rank, computed in ((0, 3.0), (1, 1.0))
        for kind, microbatch, gmc, start, end in (
            ("forward-compute", 0, 0, 0.0, computed),
            ("grads-reduce-scatter", -1, -1, computed, 3.5),
        )
    ]
    path = folder / "operations.parquet"
    pl.DataFrame(rows).write_parquet(path)
    return path


def test_slowdowns_are_told(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("ranks", log(tmp_path))

    assert outcome.code == 0
    assert outcome.out.startswith(
        "Stragglers make steps 1.40 times as long: 3.50 s instead of 2.50 s.\n\n"
        "1 step, 2 workers; measured 3.50 s a step\n"
    )
    assert "slowest workers (rank 0, stage 0) explain 100.0 % of the slowdown" in outcome.out


def test_json_holds_the_same(cli: Cli, tmp_path: Path) -> None:
    answer = json.loads(cli("ranks", log(tmp_path), "--json").out)

    assert answer["schema"] == "whystall.ranks/1"
    assert answer["slowdown"] == 1.4
    assert answer["by_step"] == {"5": 1.4}
    assert answer["by_worker"][0] == {"dp_rank": 0, "stage": 0, "slowdown": 1.4}
    assert answer["workers"]["fixed_s"] == 2.5


def test_what_is_no_log_is_an_input_error(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"no")

    outcome = cli("ranks", tmp_path / "x.parquet")

    assert outcome.code == 3
    assert "cannot be read as Parquet" in outcome.err


def test_what_a_log_holds_besides_reaches_no_output(cli: Cli, tmp_path: Path) -> None:
    planted = "hf_PLANTEDsecretTOKEN"
    path = log(tmp_path)
    pl.read_parquet(path).with_columns(pl.lit(planted).alias("command"), pl.lit("x").alias(planted)).write_parquet(path)
    for words in (("ranks", path), ("ranks", path, "--json")):
        outcome = cli(*words)
        assert outcome.code == 0
        assert planted not in outcome.out + outcome.err


def test_traces_tell_of_collectives_alone_and_what_tells_why(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("ranks", job(tmp_path / "traces", 2, late=1, steps=12))

    assert outcome.code == 0
    assert outcome.out.startswith("Rank 1 of communicator 0 comes last in 12 of 12 collectives")
    assert f"whystall analyze {tmp_path / 'traces'}" in outcome.err
