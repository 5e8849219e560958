from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .conftest import Cli


def write(folder: Path, rank: int, calls: int) -> None:
    entries = [
        {
            "record_id": number,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": number + 1,
            "profiling_name": "nccl:all_reduce",
            "input_sizes": [[4]],
            "input_dtypes": ["Float"],
            "state": "completed" if number < 1 else "started",
            "retired": number < 1,
            "time_created_ns": 1_700_000_000_000_000_000 + number,
            "frames": [{"filename": "/home/me/train.py", "line": 7 + number, "name": "st\x1bep"}],
        }
        for number in range(calls)
    ]
    body = {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": entries}
    (folder / f"trace_rank_{rank}").write_bytes(pickle.dumps(body, protocol=2))


def test_the_rank_and_the_line_are_named(cli: Cli, tmp_path: Path) -> None:
    for rank, calls in enumerate((2, 1, 2)):
        write(tmp_path, rank, calls)

    outcome = cli("hang", tmp_path)

    assert outcome.code == 0
    assert outcome.out == (
        "Rank 1 never came to all_reduce no. 2 of group 0 (default_pg): ranks 0, 2 wait in it.\n\n"
        "3 ranks, 5 operations recorded\n\n"
        "1. missing enter: Rank 1 never came to all_reduce no. 2 of group 0 (default_pg): ranks 0, 2 wait in it.\n"
        "   the others: all_reduce 2 of [4] Float at /home/me/train.py:8 (st\\x1bep)\n"
        "   rank 1, last call there: all_reduce 1 of [4] Float at /home/me/train.py:7 (st\\x1bep)\n"
    )


def test_json_holds_what_the_text_says(cli: Cli, tmp_path: Path) -> None:
    for rank, calls in enumerate((2, 1, 2)):
        write(tmp_path, rank, calls)

    answer = json.loads(cli("hang", tmp_path, "--json").out)

    assert answer["schema"] == "whystall.hang/1"
    assert answer["summary"].startswith("Rank 1 never came")
    assert answer["hangs"][0]["kind"] == "missing enter"
    assert answer["hangs"][0]["call"]["place"][:2] == ["/home/me/train.py", 8]


def test_a_folder_without_dumps_is_an_input_error(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("hang", tmp_path)

    assert outcome.code == 3
    assert "no flight recorder dump" in outcome.err


PLANTED = "hf_PLANTEDsecretTOKEN"


def test_what_a_dump_holds_besides_reaches_no_output(cli: Cli, tmp_path: Path) -> None:
    """Environment, command line and a token in every part of a dump that may have more keys than are known."""
    more = {"env": {"HF_TOKEN": PLANTED}, "cmdline": ["train.py", "--token", PLANTED], PLANTED: PLANTED}
    for rank, calls in enumerate((2, 1, 2)):
        write(tmp_path, rank, calls)
        path = tmp_path / f"trace_rank_{rank}"
        body = pickle.loads(path.read_bytes())  # noqa: S301 - made above
        body["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]", **more}}
        body["entries"] = [entry | more for entry in body["entries"]]
        path.write_bytes(pickle.dumps(body | more, protocol=2))
    for words in (("hang", tmp_path), ("hang", tmp_path, "--json"), ("hang", tmp_path, "-v")):
        outcome = cli(*words)
        assert outcome.code == 0
        assert "Rank 1 never came" in outcome.out
        assert PLANTED not in outcome.out + outcome.err
