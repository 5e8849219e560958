"""Settings that a program gives, by the line that gives them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whystall.diagnosis.catalogue import causes
from whystall.run_folder.description import RunDescription, encode
from whystall.run_folder.facts import read_settings
from whystall.run_folder.settings import settings_in, settings_of


def found(text: str, *wanted: str) -> list[tuple[str, int, str]]:
    return [(one.name, one.at.line, one.at.text) for one in settings_in(text, "train.py", wanted)]


@pytest.mark.parametrize(
    ("text", "wanted", "shown"),
    [
        ("args = Arguments(\n    lr=1,\n    eval_steps=10,\n)", "eval_steps", (3, "Arguments(eval_steps=10)")),
        ("options = {\n 'eval_steps': 10}", "eval_steps", (2, "eval_steps=10")),
        ("class Options:\n    eval_steps: int = 10", "eval_steps", (2, "eval_steps=10")),
        ("parser.add_argument('--eval-steps', default=10)", "eval_steps", (1, "--eval_steps")),
        ("args.eval_steps = n", "eval_steps", (1, "eval_steps=…")),
        ("os.environ['OMP_NUM_THREADS'] = '1'", "OMP_NUM_THREADS", (1, "OMP_NUM_THREADS=…")),
        ("tok(texts, padding='max_length')", 'padding="max_length"', (1, "tok(padding=…)")),
        ("tok(texts, padding=True if short else 'max_length')", 'padding="max_length"', (1, "tok(padding=…)")),
        ("Trainer(detect_anomaly=not args.fast)", "detect_anomaly=True", (1, "Trainer(detect_anomaly=…)")),
        ("wandb.watch(model, 'all')", "watch()", (1, "watch(…)")),
        ("DataLoader(data, 8)", "DataLoader(-num_workers)", (1, "DataLoader(…)")),
    ],
)
def test_a_setting_is_found_at_the_line_that_gives_it(text: str, wanted: str, shown: tuple[int, str]) -> None:
    assert found(text, wanted) == [(wanted, *shown)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("nn.Conv2d(3, 8, 3, padding=1)", 'padding="max_length"'),
        ("DataLoader(data, num_workers=4)", "DataLoader(-num_workers)"),
        ("DataLoader(data, **options)", "DataLoader(-num_workers)"),
        ("DataLoader(data, num_workers=4)", "num_workers=0"),
        ("Trainer(detect_anomaly=False)", "detect_anomaly=True"),
        ("# eval_steps=10\nprint('eval_steps=10')", "eval_steps"),
        ("eval_steps=", "eval_steps"),
        ("x = \0", "x"),
    ],
)
def test_what_is_no_such_setting(text: str, wanted: str) -> None:
    assert not found(text, wanted)


def test_a_text_is_never_shown() -> None:
    assert found("login(report_to='s3cret', log_freq=key)", "report_to", "log_freq") == [
        ("log_freq", 1, "login(log_freq=…)"),
        ("report_to", 1, "login(report_to=…)"),
    ]


def test_the_function_that_sets_it() -> None:
    (one,) = settings_in("def main():\n    def inner(): pass\n    fit(save_steps=1)\n", "a.py", ["save_steps"])
    assert (one.at.file, one.at.function) == ("a.py", "main")


def samples(folder: Path, *files: str) -> Path:
    path = folder / "rank0.samples.jsonl"
    rows = [["forward", file, 3, "main", "loss()", "torch:add", 4] for file in files]
    path.write_text("\n".join(['{"schema": "whystall.samples/1"}', json.dumps({"stacks": rows}), '{"stacks": [1]']))
    return path


def test_only_files_below_the_folder_that_ran_are_read(tmp_path: Path) -> None:
    job, beside = tmp_path / "job", tmp_path / "beside.py"
    (job / "sub").mkdir(parents=True)
    for path in (job / "train.py", job / "sub" / "data.py", job / "unused.py", beside):
        path.write_text("run(save_steps=5)")
    (job / "link.py").symlink_to(beside)
    named = samples(job, "train.py", "sub/data.py", "../beside.py", str(beside), "gone.py", "sub", "train.py")
    at = [(one.at.file, one.at.line) for one in settings_of(job, [named, job / "none"], ["save_steps"])]
    assert at == [("train.py", 1), ("sub/data.py", 1)]


def test_a_run_keeps_what_it_found(tmp_path: Path) -> None:
    kept = settings_in("run(save_steps=5)", "train.py", ["save_steps"])
    run = RunDescription(
        whystall="1", kind="script", command="a.py", exit_code=0, began_unix_ns=1, schedule=None, settings=kept
    )
    path = tmp_path / "run.json"
    path.write_bytes(encode(run))
    assert read_settings(path) == {"save_steps": (kept[0].at,)}


@pytest.mark.parametrize("damaged", ['{"settings": 3}', '{"settings": [{"name": 1}]}', "[", '{"settings": null}'])
def test_damaged_settings_are_none(tmp_path: Path, damaged: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(damaged)
    assert read_settings(path) == {}


def test_a_cause_asks_for_the_settings_of_its_remedy() -> None:
    python = causes()["host.python"]
    assert "watch()" in python.deciding(python.remedies["observed"])
    assert not python.deciding(python.remedies["tabular"])
    assert causes()["episodic.evaluation"].deciding(None)[0] == "eval_steps"
