"""Remedies as options of Transformers' trainer: those that its arguments have."""

from __future__ import annotations

import inspect
import re

import pytest
from tests.diagnosis.cases import found_in_runs, run

from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.frameworks import in_words_of
from whystall.diagnosis.rules import RULES


def patch_of(cause: str, patch: str | None) -> str | None:
    return in_words_of("transformers", cause, Remedy(text="", patch=patch, risk=None)).patch


@pytest.mark.parametrize(
    ("cause", "patch", "said"),
    [
        (
            "input.synchronous-loader",
            "DataLoader(..., num_workers=2, pin_memory=True)\nbatch = batch.to(device, non_blocking=True)",
            "TrainingArguments(..., dataloader_num_workers=2, dataloader_pin_memory=True)",
        ),
        (
            "compute.unfused-optimizer",
            "torch.optim.AdamW(..., fused=True)",
            'TrainingArguments(..., optim="adamw_torch_fused")',
        ),
        ("compute.unfused-optimizer", "torch.optim.SGD(..., fused=True)", "torch.optim.SGD(..., fused=True)"),
        (
            "host.launch-bound",
            'model = torch.compile(model, mode="reduce-overhead")',
            'TrainingArguments(..., torch_compile=True, torch_compile_mode="reduce-overhead")',
        ),
        ("episodic.evaluation", None, 'TrainingArguments(..., eval_strategy="steps", eval_steps=1000)'),
        ("host.gc", None, None),
    ],
)
def test_a_patch_is_an_option_of_the_trainer(cause: str, patch: str | None, said: str | None) -> None:
    assert patch_of(cause, patch) == said
    assert in_words_of(None, cause, Remedy(text="", patch=patch, risk=None)).patch == patch


def test_every_option_is_one_that_the_trainer_has() -> None:
    transformers = pytest.importorskip("transformers")
    known = set(inspect.signature(transformers.TrainingArguments).parameters)
    said = [patch_of(rule.cause.id, rule.cause.patch) or "" for rule in RULES]
    said = [patch for patch in said if patch.startswith("TrainingArguments")]
    options = {option for patch in said for option in re.findall(r"(\w+)=", patch)}
    assert len(said) >= 10
    assert options <= known


def test_a_job_of_the_trainer_is_told_its_options() -> None:
    slow = run(shares={"input": 0.5})
    for trainer, word in ((None, "DataLoader("), ("transformers", "TrainingArguments(..., dataloader_num_workers=")):
        found = found_in_runs(slow, trainer=trainer, cores=8, threads=4, loaders=({"workers": 0},))
        remedy = found["input.synchronous-loader"].remedy
        assert remedy is not None
        assert (remedy.patch or "").startswith(word)
