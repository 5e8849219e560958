"""Which thread trains, and what files of the user's are called."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.live.seen import BACKWARD, FORWARD, OPTIMIZER, OWN, SITE, WORKERS

from whystall.live.attach import _Names, _training
from whystall.vocabulary.frames import Frame


def test_the_main_thread_trains_unless_it_only_waits() -> None:
    busy = [FORWARD, BACKWARD, OPTIMIZER] * 10
    assert _training({100: busy, 101: [OWN] * 30}, 100) == 100
    assert _training({100: [WORKERS] * 30, 101: busy}, 100) == 101
    assert _training({100: [OWN] * 30, 101: [WORKERS] * 30}, 100) == 100


def test_files_are_told_from_the_job_s_folder_and_else_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "train.py").write_text("import torch\n  loss.backward()\n")
    names = _Names(os.getpid())
    library = f"{SITE}/torch/nn/modules/linear.py"
    given = tuple(
        Frame(file, 2, "f")
        for file in (f"{tmp_path}/steps/train.py", "steps/train.py", "/home/ada/secret/data.py", library, "<string>")
    )
    (shortened,) = names.shortened([given])
    assert [frame.file for frame in shortened] == ["steps/train.py", "steps/train.py", "data.py", library, "<string>"]
    assert names.line_of(shortened[0]) == "loss.backward()"
    assert names.line_of(shortened[2]) is None
    assert names.line_of(Frame("steps/train.py", 99, "f")) is None
