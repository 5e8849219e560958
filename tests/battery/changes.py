"""Trains twice, the second time watched, and says which attributes of modules and classes watching has changed.

Prints a line of JSON: what is another object than before, and which functions run other code.
"""

from __future__ import annotations

import gc
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from whystall.capture.config import CaptureConfig
from whystall.capture.session import Session

STEPS = 60


def train() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (given,) in DataLoader(TensorDataset(torch.randn(STEPS * 4, 4)), batch_size=4):
        optimizer.zero_grad()
        model(given).sum().backward()
        optimizer.step()


def attributes() -> dict[str, Any]:
    """Of every module and of every class there is each attribute, by its place."""
    found: dict[str, Any] = {}
    for name, module in list(sys.modules.items()):
        if hasattr(module, "__dict__") and not name.startswith("whystall"):
            found |= {f"{name}.{key}": value for key, value in list(vars(module).items())}
    for kind in [each for each in gc.get_objects() if issubclass(type(each), type)]:
        owner = f"{kind.__dict__.get('__module__')}:{type.__repr__(kind)}:{id(kind)}"
        if not owner.startswith("whystall"):
            found |= {f"{owner}.{key}": value for key, value in vars(kind).items()}
    return found


def codes(found: dict[str, Any]) -> dict[str, types.CodeType]:
    return {place: value.__code__ for place, value in found.items() if isinstance(value, types.FunctionType)}


def main() -> None:
    # what training and a profiler change by themselves
    train()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        train()
    before = attributes()
    code_before = codes(before)
    session = Session(torch, CaptureConfig(folder=str(Path(sys.argv[1]))))
    session.open()
    train()
    after = attributes()
    replaced = sorted(place for place, value in before.items() if after.get(place) is not value)
    added = sorted(set(after) - set(before))
    code_after = codes(after)
    recoded = sorted(place for place, code in code_before.items() if code_after.get(place, code) is not code)
    session.close()
    left = codes(attributes())
    kept = sorted(place for place, code in code_before.items() if left.get(place, code) is not code)
    told = {"replaced": replaced, "added": added, "recoded": recoded, "kept": kept, "steps": session.steps}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
