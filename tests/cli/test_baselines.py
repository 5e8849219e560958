"""Baselines as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import whystall
from whystall.cli import main
from whystall.report.baseline import LARGEST_BYTES


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(whystall.demo_recording())


def test_a_run_is_kept_by_name_and_compared_with(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--save", "main", recording]) == 0
    told = capsys.readouterr()
    assert "1 run, median step" in told.out
    assert "next: whystall compare --against main RUN" in told.err
    assert Path(".whystall/baselines/main.json").is_file()
    assert main(["compare", "--against", "main", recording, "--fail-on", "launches>+0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["base"]["name"], found["speedup"]) == ("main", 1.0)
    assert main(["compare", "--against", "main", recording, "--fail-on", "operators>-1", "--quiet"]) == 0


def test_several_runs_measure_noise_and_a_finer_gate_is_warned_of(
    recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import msgspec

    from whystall.report.schema import decode, encode

    report = whystall.analyze(recording, cache=False)
    for number, stretch in enumerate((1.0, 1.1, 0.9)):
        (device,) = report.devices
        steps = [msgspec.structs.replace(step, window_ns=round(step.window_ns * stretch)) for step in device.steps]
        run = msgspec.structs.replace(report, devices=[msgspec.structs.replace(device, steps=steps)])
        Path(f"{number}.json").write_bytes(encode(run))
        assert decode(Path(f"{number}.json").read_bytes()) == run
    assert main(["compare", "--save", "main", "0.json", "1.json", "2.json", "--baselines", "kept", "--json"]) == 0
    saved = json.loads(capsys.readouterr().out)
    assert saved["noise"] == {"runs": 3, "spread": 0.1004}
    arguments = ["compare", "--against", "main", "--baselines", "kept", "0.json", "--fail-on", "step>+3%"]
    assert main(arguments) == 0
    assert "warning: step>+3% is finer than the noise: beside what 3 runs of the baseline" in capsys.readouterr().err
    assert main([*arguments[:-1], "step>+99%"]) == 0
    assert "warning" not in capsys.readouterr().err


def test_nothing_is_overwritten_unasked_and_no_file_of_others_ever(
    recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "--save", "main", recording]) == 0
    assert main(["compare", "--save", "main", recording]) == 2
    assert "add --force to replace it" in capsys.readouterr().err
    assert main(["compare", "--save", "main", recording, "--force"]) == 0
    Path("package.json").write_text('{"name": "mine"}')
    assert main(["compare", "--save", "package", recording, "--baselines", ".", "--force"]) == 2
    assert "it is no baseline" in capsys.readouterr().err
    assert Path("package.json").read_text() == '{"name": "mine"}'


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--against", "none", "RUN"], 3, "no baseline is called 'none' in .whystall/baselines: there is main"),
        (["--against", "../main", "RUN"], 2, "'../main' is no name of a baseline"),
        (["--save", "a/b", "RUN"], 2, "is no name of a baseline"),
        (["--against", "main", "RUN", "RUN"], 2, "the baseline main is of one run"),
        (["--against", "main", "RUN", "--again", "RUN", "RUN"], 2, "--again is for pairs of two runs"),
        (["--save", "new", "RUN", "-o", "page.html"], 2, "--save writes the baseline alone"),
        (["--save", "new", "none.json"], 3, "none.json"),
        (["RUN"], 2, "compare takes two runs"),
        (["RUN", "RUN", "RUN"], 2, "compare takes two runs"),
    ],
)
def test_what_is_refused(
    recording: str, arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "--save", "main", recording]) == 0
    capsys.readouterr()
    assert main(["compare", *(recording if one == "RUN" else one for one in arguments)]) == code
    assert said in capsys.readouterr().err


def test_a_damaged_or_huge_baseline_is_a_sentence(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--save", "main", recording]) == 0
    path = Path(".whystall/baselines/main.json")
    path.write_bytes(path.read_bytes()[:-100])
    assert main(["compare", "--against", "main", recording]) == 3
    assert "is no baseline that this whystall can read" in capsys.readouterr().err
    with path.open("wb") as stream:
        stream.truncate(LARGEST_BYTES + 1)
    assert main(["compare", "--against", "main", recording]) == 3
    assert "is larger than any baseline" in capsys.readouterr().err
