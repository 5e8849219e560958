"""Logs that hold secrets, and logs that are damaged: no secret comes out, and nothing but a sentence goes wrong."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from tests.fleet.logs import samples
from tests.fuzz.mutations import damaged

from whystall.cli import main
from whystall.errors import InputError
from whystall.fleet.logs import read_logs
from whystall.report.comm_log_text import render_logs

LOGS = {
    "nccl-tests text": samples.NCCL_TESTS_TEXT,
    "nccl-tests JSON": samples.nccl_tests_json(),
    "inspector": samples.inspector_log(0) + samples.inspector_log(1),
    "RAS JSON": samples.ras_json({0: 5, 1: 4}, missing=2),
    "RAS text": samples.RAS_TEXT,
    "DeepSpeed calls": samples.deepspeed_calls(),
    "DeepSpeed summary": samples.deepspeed_summary(),
}
CASES = 150
ODD = ("NaN", "-1", "1e999", "9" * 400, "1e17", "18446744073709551616", "null", '"x"', "[]", "{}", "0", "true", "-0.0")


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_no_planted_token_comes_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], log: str, form: tuple[str, ...]
) -> None:
    path = tmp_path / "some.log"
    path.write_text(LOGS[log])
    assert samples.TOKEN in LOGS[log]

    assert main(["ranks", str(path), "--group-size", "8", *form]) == 0

    told = capsys.readouterr()
    assert samples.TOKEN not in told.out + told.err
    assert told.out.strip()


@pytest.mark.parametrize("log", LOGS)
def test_no_planted_token_comes_out_of_a_log_that_is_cut_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], log: str
) -> None:
    path = tmp_path / "some.log"
    for part in range(1, 20):
        path.write_text(LOGS[log][: len(LOGS[log]) * part // 20])
        assert main(["ranks", str(path)]) in (0, 3)
        told = capsys.readouterr()
        assert samples.TOKEN not in told.out + told.err


def outcome(path: Path, content: bytes) -> bool:
    """Whether a log could be read; what it tells can be rendered and holds no number that is none."""
    path.write_bytes(content)
    try:
        found = read_logs([path], {None: 8})
    except InputError:
        return False
    text = render_logs(found)
    assert samples.TOKEN not in text
    assert "nan" not in text.lower().replace("nanosecond", "")
    return True


@pytest.mark.parametrize("log", LOGS)
def test_any_damage_is_read_or_told_in_a_sentence(tmp_path: Path, log: str) -> None:
    originals = [LOGS[log].encode()]
    for seed in range(CASES):
        outcome(tmp_path / "some.log", damaged(seed, originals))


@pytest.mark.parametrize("log", ["nccl-tests JSON", "RAS JSON", "inspector"])
def test_any_value_may_be_something_else(tmp_path: Path, log: str) -> None:
    read = 0
    for seed in range(CASES):
        random = Random(seed)  # noqa: S311 - reproducible on purpose
        documents = (
            [json.loads(LOGS[log])] if log != "inspector" else [json.loads(line) for line in LOGS[log].splitlines()]
        )
        for document in documents:
            changed(document, random)
        text = "\n".join(json.dumps(document) for document in documents).replace('"@', "").replace('@"', "")
        read += outcome(tmp_path / "some.log", text.encode())
    assert read > 0


def changed(value: object, random: Random) -> None:
    """Puts an odd value somewhere into a document; it is written without its quotes later."""
    if isinstance(value, dict | list) and value:
        key = random.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if random.random() < 0.4:
            value[key] = f"@{random.choice(ODD).replace(chr(34), '')}@"
        else:
            changed(value[key], random)


@pytest.mark.parametrize("log", LOGS)
def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path, log: str) -> None:
    content = LOGS[log].encode()
    for place in range(0, len(content), max(len(content) // 40, 1)):
        outcome(tmp_path / "some.log", content[:place] + b"\xff\xfe\x00\x80" + content[place:])
