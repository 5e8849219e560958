"""Slowdowns of ByteDance's published jobs, and of simulated ones whose truth is known."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from whystall.errors import InputError
from whystall.fleet import Slowdowns, parquet, slowdowns
from whystall.report.straggler_text import render_slowdowns

from .pipeline import KINDS, usual, write

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "samples" / "straggler-analysis"
WITHIN = 0.01


def published(name: str) -> Path:
    path = SAMPLES / name
    if not path.exists():
        if os.environ.get("WHYSTALL_REQUIRE_TRACES") == "1":
            pytest.fail(f"{path} is missing")
        pytest.skip("the published jobs are not beside the repository (../shared/samples)")
    return path


@pytest.fixture(scope="module", params=["AR", "ST"])
def job(request: pytest.FixtureRequest) -> tuple[str, Slowdowns]:
    return request.param, slowdowns(published(f"trace-{request.param}.parquet"))


def expected(name: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(published(f"{name}.json").read_text())
    return body


def near(found: dict[Any, float], told: dict[str, float]) -> bool:
    return {str(key): value for key, value in found.items()} == pytest.approx(told, rel=WITHIN)


def test_published_jobs_have_their_slowdowns(job: tuple[str, Slowdowns]) -> None:
    name, found = job
    told = expected(f"result-{name}")

    assert found.slowdown == pytest.approx(told["blocking_slowdown"], rel=WITHIN)
    assert found.unexplained == pytest.approx(told["launch_slowdown"], rel=WITHIN)
    assert near(dict(found.by_step), told["blocking_step_slowdown"])
    assert near(dict(found.by_operation), told["blocking_decompose_by_optype"])
    assert near(dict(found.by_dp_rank), told["blocking_decompose_by_dp_rank"])
    assert near(dict(found.by_stage), told["blocking_decompose_by_stage"])


def test_published_jobs_have_their_shares(job: tuple[str, Slowdowns]) -> None:
    name, found = job

    for share, told in ((found.workers, expected(f"mw-{name}")), (found.last_stage, expected(f"ms-{name}"))):
        assert share.share == pytest.approx(told["rem"], rel=WITHIN)
        assert share.fixed_s == pytest.approx(told["trem"], rel=WITHIN)
        assert share.alone_s == pytest.approx(told["tadd"], rel=WITHIN)
    assert found.simulated_s == pytest.approx(expected(f"ms-{name}")["tori"], rel=WITHIN)
    assert found.ideal_s == pytest.approx(expected(f"ms-{name}")["tideal"], rel=WITHIN)


def test_equal_workers_have_no_slowdown(tmp_path: Path) -> None:
    found = slowdowns(write(tmp_path / "log.parquet"))

    assert found.slowdown == pytest.approx(1)
    assert found.unexplained == pytest.approx(1)  # the replay is what was logged
    assert found.workers.share is None or abs(found.simulated_s - found.ideal_s) < 1e-9
    assert "No stragglers" in render_slowdowns(found)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_one_slow_worker_explains_all(tmp_path: Path, stages: int) -> None:
    slow = (1, stages - 1)
    log = write(
        tmp_path / "log.parquet",
        lambda rank, stage, kind: KINDS[kind] * (1.5 if (rank, stage) == slow and kind != "optimizer" else 1),
        ranks=3,
        stages=stages,
    )

    found = slowdowns(log)

    assert found.slowdown > 1.1
    assert found.slowest_workers == (slow,)
    assert found.workers.share is not None
    assert found.workers.share > 0.9
    assert max(found.by_dp_rank, key=lambda rank: found.by_dp_rank[rank]) == 1


def test_a_heavy_last_stage(tmp_path: Path) -> None:
    log = write(tmp_path / "log.parquet", lambda _, stage, kind: KINDS[kind] * (1.6 if stage == 2 else 1))

    found = slowdowns(log)

    assert found.last_stage.share is not None
    assert found.last_stage.share > 0.9
    assert max(found.by_stage, key=lambda stage: found.by_stage[stage]) == 2


def test_the_order_of_rows_changes_nothing(tmp_path: Path) -> None:
    log = write(tmp_path / "log.parquet", lambda rank, stage, kind: usual(rank, stage, kind) * (1 + 0.1 * rank * stage))
    pl.read_parquet(log).sample(fraction=1, shuffle=True, seed=1).write_parquet(tmp_path / "other.parquet")

    assert slowdowns(tmp_path / "other.parquet") == slowdowns(log)


def test_steps_of_several_schedules_are_read_together(tmp_path: Path) -> None:
    short = pl.read_parquet(write(tmp_path / "a.parquet", microbatches=2, steps=1))
    long = pl.read_parquet(write(tmp_path / "b.parquet", microbatches=4, steps=1)).with_columns(
        pl.lit(99).alias("step")
    )
    pl.concat([short, long.with_columns(pl.col("step").cast(pl.Int64))]).write_parquet(tmp_path / "log.parquet")

    found = slowdowns(tmp_path / "log.parquet")

    assert set(found.by_step) == {0, 99}


def test_a_step_that_was_cut_is_left_out(tmp_path: Path) -> None:
    log = pl.read_parquet(write(tmp_path / "log.parquet", steps=3))
    log.filter((pl.col("step") != 10) | (pl.col("optype") != "forward-recv")).write_parquet(tmp_path / "cut.parquet")

    found = slowdowns(tmp_path / "cut.parquet")

    assert (set(found.by_step), found.left_out_steps) == ({0, 20}, (10,))
    assert "1 step" in render_slowdowns(found)


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    log = pl.read_parquet(write(tmp_path / "log.parquet"))
    wrong = tmp_path / "wrong.parquet"
    cases = {
        "no such file": None,
        "cannot be read as Parquet": b"PAR1 and no more",
        "lacks the columns duration": log.drop("duration"),
        "negative": log.with_columns(-pl.col("duration")),
        "no number or time": log.with_columns(pl.lit(None).cast(pl.Float64).alias("start_ts")),
        "twice": pl.concat([log, log]),
        "lacks forward-send": log.filter((pl.col("optype") != "forward-send") | (pl.col("seq_id") != 1)),
        "between 1 and": log.clear(),
    }
    for sentence, content in cases.items():
        wrong.unlink(missing_ok=True)
        if isinstance(content, bytes):
            wrong.write_bytes(content)
        elif content is not None:
            content.write_parquet(wrong)
        with pytest.raises(InputError, match=sentence):
            slowdowns(wrong)


def test_a_file_on_which_the_decoder_ends_its_process_gets_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet.sys, "executable", "/bin/false")  # type: ignore[attr-defined]

    with pytest.raises(InputError, match="it is damaged"):
        slowdowns(write(tmp_path / "log.parquet"))
