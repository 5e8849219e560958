"""Remedies in the words of the job's trainer: a loop that the user did not write has options, and no line to change."""

from __future__ import annotations

import re
from typing import Final, Literal

from msgspec import structs

from whystall.diagnosis.finding import Remedy

Trainer = Literal["transformers"]
"""The trainer that runs a job's loop, where known: ``transformers.Trainer``."""

_LOADER: Final = re.compile(r"^DataLoader\(\.\.\., (?P<options>[\w=, ]+)\)(?P<note>  #[^\n]*)?")
_AS_THEY_STAND: Final = (
    (re.compile(r"^torch\.optim\.AdamW\(\.\.\., fused=True\)"), 'optim="adamw_torch_fused"'),
    (re.compile(r"^model = torch\.compile\(model\)"), "torch_compile=True"),
    (re.compile(r"^model = torch\.compile\(model, mode=(\S+)\)"), r"torch_compile=True, torch_compile_mode=\1"),
    (re.compile(r"^DistributedDataParallel\(model, (bucket_cap_mb=\d+|broadcast_buffers=False)\)"), r"ddp_\1"),
    (re.compile(r'^torch\.set_float32_matmul_precision\("high"\)'), "tf32=True"),
)
_OF_CAUSES: Final = {
    "episodic.checkpoint": 'save_strategy="steps", save_steps=1000',
    "episodic.evaluation": 'eval_strategy="steps", eval_steps=1000',
    "episodic.logging": "logging_steps=100",
}


def in_words_of(trainer: Trainer | None, cause: str, remedy: Remedy) -> Remedy:
    """A remedy with its patch as an option of the job's trainer, where there is one; else unchanged."""
    if trainer is None:
        return remedy
    patch = _option(cause, remedy.patch or "")
    return remedy if patch is None else structs.replace(remedy, patch=patch)


def _option(cause: str, patch: str) -> str | None:
    loader = _LOADER.match(patch)
    if loader is not None:
        options = ", ".join(f"dataloader_{option}" for option in loader["options"].split(", "))
        return f"TrainingArguments(..., {options}){loader['note'] or ''}"
    for pattern, option in _AS_THEY_STAND:
        if pattern.match(patch):
            return pattern.sub(f"TrainingArguments(..., {option})", patch)
    return f"TrainingArguments(..., {_OF_CAUSES[cause]})" if cause in _OF_CAUSES else None
