from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.compilation.builder import Log, training

from whystall.compilation.read import read_account
from whystall.report.compile_text import compile_document, summarize
from whystall.report.document import as_text

GOLDEN = Path(__file__).parent / "golden" / "compile.txt"


def test_the_text_is_as_recorded(tmp_path: Path) -> None:
    Log(rank=1, pid=101).ends("forward", 10, total=2).write(tmp_path, "dedicated_log_torch_trace_rank_1_b.log")
    training().write(tmp_path, "dedicated_log_torch_trace_rank_0_a.log")

    text = as_text(compile_document(read_account([tmp_path])), 100)

    if os.environ.get("WHYSTALL_UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_compiles_without_an_end_have_no_time(tmp_path: Path) -> None:
    log = Log().starts(("/home/someone/train.py", 1, "<module>")).breaks(7)

    account = read_account([log.write(tmp_path)])

    assert summarize(account) == "No compile has an end in these logs: 1 compile began."
    assert "0 ns" not in as_text(compile_document(account), 100)


@pytest.mark.parametrize(("event", "says"), [("compile_file", "the C++ compiler"), (None, "Triton")])
def test_the_largest_part_is_named(event: str | None, says: str, tmp_path: Path) -> None:
    log = Log().event("async_compile.wait", 1001, 1003)
    if event is not None:
        log.event(event, 1003, 1004)
    log.ends(total=4, code_gen_time_s=3.5, num_triton_bundles=0 if event else 2)

    assert f"s of it was {says}" in summarize(read_account([log.write(tmp_path)]))
