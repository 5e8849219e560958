from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.compilation.builder import Log, training

if TYPE_CHECKING:
    from .conftest import Cli

SECRET = "hunter2"  # noqa: S105 - planted, to be looked for


def test_the_first_line_is_the_answer(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("compile", training().write(tmp_path))

    assert outcome.code == 0
    assert outcome.out.splitlines()[0] == (
        "Compilation took 24.0 s in 9 compiles; 3 recompiles of train.py:10, train.py:13; 1 graph break at train.py:12."
    )


def test_causes_are_in_the_order_of_their_seconds(cli: Cli, tmp_path: Path) -> None:
    found = json.loads(cli("compile", training().write(tmp_path), "--json").out)["findings"]

    saves = [one["saves_ns"] for one in found]
    assert saves == sorted(saves, reverse=True)
    assert [(one["id"], one["where"]) for one in found] == [
        ("compile.recompiles", "train.py:10"),
        ("compile.host-compiler", "train.py:10"),
        ("compile.graph-breaks", "train.py:12"),
        ("compile.cache-bypassed", "train.py:50"),  # as dear as the next
        ("compile.recompiles", "train.py:13"),
    ]
    assert all(one["edit"] and one["known_by"] for one in found)


def test_json_holds_each_process(cli: Cli, tmp_path: Path) -> None:
    for rank in range(3):
        Log(rank=rank, pid=rank + 1).ends(total=1 + rank).write(tmp_path, f"{rank}.log")

    outcome = cli("compile", tmp_path, "--json")
    answer = json.loads(outcome.out)

    assert answer["schema"] == "whystall.compile/1"
    assert answer["summary"] == "Compilation took 3.00 s in 1 compile on the slowest of 3 processes (rank 2, 2.log)."
    assert [one["total_ns"] for one in answer["processes"]] == [3 * 10**9, 2 * 10**9, 10**9]


def test_code_paths_and_values_stay_in_the_log(cli: Cli, tmp_path: Path) -> None:
    log = Log()
    folder = f"/home/{SECRET}/train.py"
    log.starts((folder, 4, "main"), (folder, 9, "forward"))
    said = (
        f"Graph break in user code at {folder}:9\nGraph Break Reason: Attempted `{SECRET}(x)` on ['{SECRET}']\n"
        f"  Explanation: {SECRET}\n  Hint: Avoid `{SECRET}(1)` with '{SECRET}'.\n  Developer debug context: {SECRET}\n"
        f'User code traceback:\n  File "{folder}", line 9\n    {SECRET}()\n'
    )
    log.artifact("dynamo_graph_break_reason", said)
    log.record("dynamo_output_graph", {"sizes": {SECRET: [1]}}, payload=f"{SECRET} = torch.mm")
    log.record("inductor_output_code", {"filename": f"/var/{SECRET}.py"}, payload=f"{SECRET}")
    log.artifact(
        "fx_graph_cache_bypass", {"cache_state": "bypass", "cache_bypass_reason": f"has '{SECRET}' in {folder}"}
    )
    log.artifact("dynamo_error", f"Traceback:\n  {SECRET}\nValueError: {SECRET}")
    failed: dict[str, Any] = {"fail_type": "Unsupported", "fail_reason": f"cannot call '{SECRET}'\n{SECRET}"}
    log.ends(
        file=folder, restart_reasons=[SECRET], stack_trace=[SECRET], cudagraph_skip_reason=f"at {folder}", **failed
    )
    guard = f"0/0: L['mode'] == '{SECRET}'   # if mode == '{SECRET}'  # {SECRET}/train.py:9 in forward\n{SECRET}"
    log.artifact("recompile_reasons", [guard], of="0/1").ends(of="0/1", file=folder, start=1010)
    path = log.write(tmp_path)
    assert SECRET in path.read_text()

    for words in ((), ("--json",), ("-o", tmp_path / "page.html"), ("-v",)):
        outcome = cli("compile", path, *words)
        assert outcome.code == 0
        assert "train.py:9" in outcome.out
        assert SECRET not in outcome.out + outcome.err
    assert SECRET not in (tmp_path / "page.html").read_text()


def test_control_characters_are_spelled_out(cli: Cli, tmp_path: Path) -> None:
    log = Log().ends("f\x1b[31m\u202e", file="/a/\x1b]0;b\x07.py", fail_type="\x9bX", fail_reason="bad\x1b[2J")
    log.breaks(3, "no \x1b[5m")

    out = cli("compile", log.write(tmp_path)).out

    assert "\\x1b" in out
    assert all(character.isprintable() or character == "\n" for character in out)


def test_other_input_ends_in_a_sentence(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty.log").write_text("")
    (tmp_path / "notes.txt").write_text("no log")
    (tmp_path / "folder").mkdir()

    for name, says in (
        ("empty.log", "is empty"),
        ("notes.txt", "no structured log of torch's compiler; set TORCH_TRACE=FOLDER"),
        ("folder", "no structured log of torch's compiler in this folder"),
        ("nowhere", "no such file"),
    ):
        outcome = cli("compile", tmp_path / name)
        assert outcome.code == 3
        [line] = outcome.err.splitlines()
        assert says in line
        assert outcome.out == ""


def test_other_files_beside_logs_are_left_out_with_a_sentence(cli: Cli, tmp_path: Path) -> None:
    path = training().write(tmp_path)
    (tmp_path / "notes.txt").write_text("no log")

    outcome = cli("compile", path, tmp_path / "notes.txt", tmp_path / "nowhere", tmp_path, "--json")
    answer = json.loads(outcome.out)

    assert outcome.code == 0
    assert len(answer["processes"]) == 1  # the log was named twice
    assert [note.partition(";")[0] for note in answer["notes"]] == [
        "Left out: notes.txt is no structured log of torch's compiler",
        "Left out: nowhere: no such file.",
    ]


def test_analyze_says_which_verb_reads_it(cli: Cli, tmp_path: Path) -> None:
    path = training().write(tmp_path)

    for given in (path, tmp_path):
        outcome = cli("analyze", given)
        assert outcome.code == 3
        assert f"no trace: whystall compile {given}" in outcome.err
