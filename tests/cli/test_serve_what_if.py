"""``whystall serve what-if``: its text, its JSON, and the settings that it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.serving.server import MS, Call, Engine, steady

from whystall.cli.serve_flags import NOT_REPLAYED, SWITCHES

if TYPE_CHECKING:
    from .conftest import Cli

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three requests at once for one place, and four alone: numbers that can be worked out by hand."""
    calls = [Call(number * MS, 96, 8, front=2 * MS) for number in range(3)]
    calls += [Call(1000 * MS + number * 100 * MS, 96, 8, front=2 * MS) for number in range(4)]
    return Engine(max_num_seqs=1).serve(calls).write(tmp_path / "run")


def test_the_text_is_that_of_the_golden_file(cli: Cli, folder: Path) -> None:
    outcome = cli("serve", "what-if", folder, "--max-num-seqs", "8")

    assert outcome.code == 0
    assert outcome.out == (GOLDEN / "serve_what_if.txt").read_text("utf-8")
    assert all(len(line) <= 80 for line in outcome.out.splitlines() if line.startswith(("Metric", "TTFT", "TPOT")))
    assert outcome.err == "next: start the server with the change, repeat the same arrivals, and compare both reports\n"


def test_json_has_the_check_and_the_prediction(cli: Cli, folder: Path) -> None:
    answer = json.loads(cli("serve", "what-if", folder, "--max-num-seqs", "8", "--json").out)

    assert answer["schema"] == "whystall.serving-what-if/1"
    assert answer["change"] == "--max-num-seqs 8"
    names = [(one["name"], one["percentile"]) for one in answer["check"]["metrics"]]
    assert names == [(name, percentile) for name in ("ttft", "tpot", "e2e") for percentile in (50, 99)]
    assert [(one["name"], one["percentile"]) for one in answer["prediction"]["metrics"]] == names
    for one in answer["prediction"]["metrics"]:
        assert one["low_ns"] <= one["after_ns"] <= one["high_ns"]
    assert answer["prediction"]["rate"]["after"] > 0


def test_without_an_answer_json_says_why(cli: Cli, folder: Path) -> None:
    (folder / "a").unlink()

    outcome = cli("serve", "what-if", folder, "--max-num-seqs", "8", "--json")

    answer = json.loads(outcome.out)
    assert (outcome.code, outcome.err) == (0, "")
    assert (answer["check"], answer["prediction"]) == (None, None)
    assert answer["headline"].startswith("No answer: ")


def test_several_settings_are_played_together(cli: Cli, folder: Path) -> None:
    words = ("--max-num-seqs", "8", "--max-num-batched-tokens", "64", "--no-enable-prefix-caching")

    answer = json.loads(cli("serve", "what-if", folder, *words, "--json").out)

    assert answer["change"] == "--max-num-seqs 8 --max-num-batched-tokens 64 --no-enable-prefix-caching"
    assert answer["prediction"] is not None


@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("flag", sorted(NOT_REPLAYED))
def test_a_setting_without_a_model_is_refused_with_its_reason(
    cli: Cli, folder: Path, flag: str, *, before: bool
) -> None:
    """A switch stands alone, before the folder or behind it."""
    words = [flag] if flag in SWITCHES else [flag, "2"]
    words = [*words, str(folder)] if before else [str(folder), *words]

    outcome = cli("serve", "what-if", *words)

    assert outcome.code == 2
    assert outcome.err == (
        f"whystall: a replay does not answer {flag}: {NOT_REPLAYED[flag]}. It knows --max-num-seqs, "
        "--max-num-batched-tokens, --num-gpu-blocks-override, --max-concurrency, --enable-prefix-caching\n"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "whystall: `serve what-if` needs a setting to play: --max-num-seqs"),
        (("--max-num-seqs", "0"), "whystall: --max-num-seqs takes a number from 1, not 0"),
    ],
    ids=["none", "zero"],
)
def test_settings_that_make_no_sense_are_refused(cli: Cli, folder: Path, words: tuple[str, ...], sentence: str) -> None:
    outcome = cli("serve", "what-if", folder, *words)

    assert outcome.code == 2
    assert outcome.err.startswith(sentence)


@pytest.mark.parametrize("flag", sorted(SWITCHES))
def test_the_negation_of_a_switch_is_refused_too(cli: Cli, folder: Path, flag: str) -> None:
    outcome = cli("serve", "what-if", flag.replace("--", "--no-", 1), folder)

    assert outcome.code == 2
    assert outcome.err.startswith(f"whystall: a replay does not answer {flag}: ")


BEHIND = "; put the flags of the server behind --"


@pytest.mark.parametrize(
    ("action", "words", "sentence"),
    [
        ("report", ("--max-num-seqs", "8"), "takes no --max-num-seqs, which belongs to `serve what-if`"),
        ("report", ("--enforce-eager",), "takes no --enforce-eager, which belongs to `serve what-if`"),
        ("report", ("--every", "2"), "takes no --every, which belongs to `serve watch` and `serve run`"),
        ("report", ("--no-flags",), "takes no --no-flags, which belongs to `serve run`"),
        ("what-if", ("--for", "2"), "takes no --for, which belongs to `serve watch`"),
        ("watch", ("--no-limits",), "takes no --no-limits, which belongs to `serve report` and `serve what-if`"),
        ("watch", ("--max-num-seqs", "8"), "takes no --max-num-seqs, which belongs to `serve what-if`"),
        ("run", ("--max-num-seqs", "5"), f"takes no --max-num-seqs, which belongs to `serve what-if`{BEHIND}"),
        ("run", ("--dtype", "half"), f"takes no --dtype, which belongs to `serve what-if`{BEHIND}"),
        (
            "run",
            ("--no-enable-prefix-caching",),
            f"takes no --enable-prefix-caching, which belongs to `serve what-if`{BEHIND}",
        ),
        ("run", ("--report-every", "9"), "takes no --report-every, which belongs to `serve watch`"),
        ("run", ("--json",), "takes no --json, which belongs to `serve report`, `serve what-if` and `serve watch`"),
    ],
)
def test_an_option_that_an_action_ignores_is_refused(
    cli: Cli, tmp_path: Path, action: str, words: tuple[str, ...], sentence: str
) -> None:
    """Nothing is started, read or written."""
    outcome = cli("serve", action, "-o", tmp_path / "run", *words, "--", "false")

    assert outcome.code == 2
    assert outcome.err == f"whystall: `serve {action}` {sentence}\n"
    assert not (tmp_path / "run").exists()


def test_defaults_of_the_project_are_refused_by_no_action(cli: Cli, folder: Path, tmp_path: Path) -> None:
    """They are for other verbs and actions, too: ``dtype`` is an option of `whystall model`."""
    (tmp_path / "pyproject.toml").write_text('[tool.whystall]\njson = true\ndtype = "bf16"\n')

    report = cli("serve", "report", folder)
    answer = cli("serve", "what-if", folder, "--max-num-seqs", "8")

    assert json.loads(report.out)["schema"] == "whystall.serving/1"
    assert json.loads(answer.out)["prediction"] is not None
    assert cli("serve", "run", "-o", tmp_path / "started", "--", "true").code == 0
    assert cli("serve", "run", "-o", tmp_path / "started", "--dtype", "half", "--", "true").code == 2


def test_flags_behind_the_dashes_are_the_servers_own(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("serve", "run", "-o", tmp_path / "run", "--", "true", "--max-num-seqs", "5", "--json")

    assert outcome.code == 0
    assert (tmp_path / "run").exists()


def test_the_answer_is_written_to_files(cli: Cli, folder: Path, tmp_path: Path) -> None:
    page, data = tmp_path / "answer.html", tmp_path / "answer.json"

    assert cli("serve", "what-if", folder, "--max-num-seqs", "8", "-o", page, "-o", data).code == 0
    assert "--max-num-seqs 8" in page.read_text()
    assert json.loads(data.read_text())["change"] == "--max-num-seqs 8"


def test_no_prompt_key_path_or_model_is_shown(cli: Cli, tmp_path: Path) -> None:
    planted = ["Traceback /secret/x.py"] + [""] * 19
    folder = Engine().serve(steady(20)).write(tmp_path / "run", spans=True, errors=planted)

    for options in ((), ("--json",), ("-v",)):
        outcome = cli("serve", "what-if", folder, "--max-num-seqs", "2", *options)
        assert outcome.code == 0
        assert "secret" not in outcome.out + outcome.err
