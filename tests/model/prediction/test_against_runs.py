"""Predicted peaks beside what torch's own allocator says of a real run of the same model, in this process."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest

from whystall.model.prediction.predict import predict
from whystall.model.prediction.simulator import Simulator

torch = pytest.importorskip("torch", reason="runs are trained with torch")


def measured(
    models: Any, name: str, folder: Path, *, optimizer: Any = None, dtype: Any = None, keeps: bool = False
) -> int:
    """The most bytes that torch's CPU allocator held during three steps, by the profiler's memory events."""
    from torch.profiler import ProfilerActivity, profile

    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        model, *given = getattr(models, name)()
        model.to(dtype)
        given = [one.to(dtype) if one.is_floating_point() else one for one in given]
        stepper = (optimizer or torch.optim.AdamW)([one for one in model.parameters() if one.requires_grad])
        for _ in range(3):
            if not keeps:
                stepper.zero_grad()
            output = model(*given)
            output.backward(torch.ones_like(output))
            stepper.step()
    path = folder / "trace.json"
    recorded.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    told = sorted((one["ts"], one["args"]) for one in events if one.get("name") == "[memory]")
    first = told[0][1]
    return max(int(one["Total Allocated"]) for _, one in told) - int(first["Total Allocated"] - first["Bytes"])


@pytest.fixture
def module(models: str) -> Any:
    import runpy
    from types import SimpleNamespace

    return SimpleNamespace(**runpy.run_path(models))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # the profiler's own, of its next version
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("shallow", None),
        ("deep", None),
        ("frozen", None),
        ("stepwise", None),
        ("branches", None),
        ("shallow", "bf16"),
        ("deep", "bf16"),
    ],
)
def test_the_peak_is_that_of_a_real_run(
    simulator: Simulator, models: str, module: Any, tmp_path: Path, name: str, dtype: str | None
) -> None:
    real = measured(module, name, tmp_path, dtype=None if dtype is None else torch.bfloat16)

    found = predict(f"{models}:{name}", simulator=simulator, dtype=dtype)

    # In bf16 oneDNN's scratch space, which does not grow with the model, is a larger part of models as small as these.
    assert found.peak_bytes == pytest.approx(real, rel=0.0001 if dtype is None else 0.05)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # likewise
def test_a_router_sends_every_expert_its_share(simulator: Simulator, models: str, module: Any, tmp_path: Path) -> None:
    found = predict(f"{models}:picky", simulator=simulator)

    assert found.peak_bytes == pytest.approx(measured(module, "picky", tmp_path), rel=0.15)  # fresh routers lean
    assert any("random" in one for one in found.assumed)


def test_values_of_a_mask_decide_which_way_a_model_goes(simulator: Simulator, models: str) -> None:
    found = predict(f"{models}:asking", simulator=simulator, optimizer=None, backward=False)

    # both inputs, and twice the output of the way that a full mask takes (the last step's lives until the next)
    assert found.peak_bytes == 4000 + 8 + 2 * 4000


@pytest.mark.filterwarnings("ignore::FutureWarning")  # likewise
def test_gradients_that_are_accumulated_are_those_of_a_real_run(
    simulator: Simulator, models: str, module: Any, tmp_path: Path
) -> None:
    real = measured(module, "deep", tmp_path, keeps=True)

    found = predict(f"{models}:deep", simulator=simulator, batch=2, effective_batch=8)

    assert found.peak_bytes == pytest.approx(real, rel=0.0001)
    assert found.peak_bytes > predict(f"{models}:deep", simulator=simulator, batch=2).peak_bytes
