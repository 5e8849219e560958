"""Who holds the peak of a recorded run beside who was predicted to: two ways to the same bytes, of a real job."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path

import pytest

import whystall
from whystall.model.prediction.predict import predict
from whystall.model.prediction.simulator import Simulator

torch = pytest.importorskip("torch", reason="a run is trained with torch")


@pytest.mark.filterwarnings("ignore::FutureWarning")  # the profiler's own, of its next version
def test_activations_of_a_recorded_run_are_those_that_were_predicted(
    simulator: Simulator, models: str, tmp_path: Path
) -> None:
    from torch.profiler import ProfilerActivity, profile

    model, given = runpy.run_path(models)["parts"]()
    stepper = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=True) as recorded:
        for _ in range(3):
            stepper.zero_grad()
            model(given).backward()
            stepper.step()
    recorded.export_chrome_trace(str(tmp_path / "trace.json"))

    predicted = predict(f"{models}:parts", simulator=simulator, optimizer="sgd")
    (peak,) = whystall.analyze(tmp_path / "trace.json", cache=False).memory

    held = {one.kind: one.bytes for one in peak.held}
    assert sum(held.values()) == peak.peak_allocated_bytes
    # Beside them the loss, which this loop lets go, and the gradient that its backward pass begins with: 4 bytes each.
    assert held["activations"] == predicted.phase(predicted.peak_phase).held["activations"] + 2 * 4
    of_modules: Counter[str | None] = Counter()
    for one in peak.holders:
        if one.kind == "activations":
            of_modules[one.module] += one.bytes
    names = {
        "layers.*": "Parts/TwoParts",
        "layers.*.attention": "Parts/TwoParts/Scores",
        "layers.*.attention.qkv": "Parts/TwoParts/Scores/Linear",
        "layers.*.mlp.0": "Parts/TwoParts/Sequential/Linear",
        "layers.*.mlp.1": "Parts/TwoParts/Sequential/GELU",
    }
    assert {names[one.module]: one.n_bytes for one in predicted.activations}.items() <= of_modules.items()
