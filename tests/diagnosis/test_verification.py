"""The command that proves a remedy is the job's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.diagnosis.cases import case_of, fixed, loop

from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.run_facts import RunFacts
from whystall.run_folder.description import command_line
from whystall.run_folder.observations import MadeAt


def command(told: str | None) -> str:
    (found,) = diagnose(case_of(loop(), facts=RunFacts(command=told)), [fixed("host.gc", 0.2)]).findings
    assert found.verify is not None
    return found.verify.command


def test_it_holds_the_jobs_own_command_where_that_is_known() -> None:
    begin = "whystall verify --finding host.gc"
    assert command(None) == f"{begin} --before 'COMMAND' --after 'COMMAND'"
    assert command("python train.py") == f"{begin} --before 'python train.py' --after 'python train_changed.py'"
    assert command("python train.py ARGS") == (
        f"{begin} --before 'python train.py ARGS' --after 'python train_changed.py ARGS'"
    )
    assert command("python -m pkg.train") == f"{begin} --toggle CHANGED=0,1 -- python -m pkg.train"


def test_the_line_that_sets_what_decides_stands_first() -> None:
    set_at = MadeAt("train.py", 7, "main", "Trainer(eval_steps=10)")
    facts = RunFacts(settings={"eval_interval": (MadeAt("a.py", 1, "f", "x"),), "eval_steps": (set_at,) * 3})
    (found,) = diagnose(case_of(loop(), facts=facts), [fixed("episodic.evaluation", 0.2)]).findings
    assert [(one.line, one.symbol, one.share) for one in found.code] == [(7, "Trainer(eval_steps=10)", None)]
    (other,) = diagnose(case_of(loop(), facts=facts), [fixed("host.gc", 0.2)]).findings
    assert not other.code


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"kind": "script", "command": "train.py", "arguments": 0}, "python train.py"),
        ({"kind": "script", "command": "train.py", "arguments": 2}, "python train.py ARGS"),
        ({"kind": "script", "command": "examples/train.py", "arguments": 0}, "python examples/train.py"),
        ({"kind": "script", "command": "-c"}, None),
        ({"kind": "module", "command": "pkg.train", "arguments": 1}, "python -m pkg.train ARGS"),
        ({"kind": "command", "command": "bash"}, None),
        (
            {"kind": "command", "command": "torchrun --nproc-per-node 2 train.py", "arguments": 3},
            "torchrun --nproc-per-node 2 train.py ARGS",
        ),
        (
            {"kind": "command", "command": "torchrun --nproc_per_node=gpu a/b.py"},
            "torchrun --nproc_per_node=gpu a/b.py",
        ),
        ({"kind": "command", "command": "torchrun --rdzv-endpoint host:1 train.py"}, None),
        ({"kind": "command", "command": "torchrun --nproc-per-node 2 ../train.py'"}, None),
        ({"kind": "command", "command": "bash train.py"}, None),
        ({"kind": "script", "command": "x.py'; rm -rf ~ #"}, None),
        ({"kind": "script"}, None),
        ([], None),
    ],
)
def test_a_run_tells_its_command_without_what_it_does_not_know(
    tmp_path: Path, about: object, expected: str | None
) -> None:
    (tmp_path / "run.json").write_text(json.dumps(about))
    assert command_line(tmp_path) == expected
