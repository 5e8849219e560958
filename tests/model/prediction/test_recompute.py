"""What to compute again: what is named is really run in torch.utils.checkpoint, and held against what was said."""

from __future__ import annotations

import math
import runpy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.model.prediction.test_against_runs import measured

from whystall.errors import UsageError
from whystall.model.prediction.predict import predict
from whystall.model.prediction.results import Prediction
from whystall.model.prediction.simulator import Simulator

torch = pytest.importorskip("torch", reason="runs are trained with torch")

# A layer of `parts` keeps, for 8 sequences of 256 and width 64 in fp32: 2,048 tokens of 64 are 512 KiB.
TOKENS, WIDTH, INNER, LENGTH, BATCH = 2048, 64, 128, 256, 8
SCORES = BATCH * LENGTH * LENGTH * 4
SQUARE = 2 * TOKENS * WIDTH * WIDTH  # FLOPs of a product of all tokens with a square matrix
ATTENTION_FLOPS = 4 * SQUARE + 2 * 2 * TOKENS * LENGTH * WIDTH
MLP_FLOPS = 2 * 2 * TOKENS * WIDTH * INNER


@pytest.fixture(scope="module")
def found(simulator: Simulator, models: str) -> Prediction:
    return predict(f"{models}:parts", simulator=simulator, optimizer="sgd", remedies=True)


def applied(models: str, name: str, names: tuple[str, ...]) -> Any:
    """A factory of the model with torch's own checkpointing around the modules of these names."""

    def made() -> Any:
        model, *given = runpy.run_path(models)[name]()
        for path, module in list(model.named_modules()):
            parts = path.split(".")
            starred = ".".join("*" if part.isdigit() and place == 1 else part for place, part in enumerate(parts))
            if {starred, f"{starred}:cheap"} & set(names):
                module.forward = _again(module.forward, cheap=starred not in names)
        return model, *given

    return made


def _again(forward: Any, *, cheap: bool) -> Any:
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    aten = torch.ops.aten
    kept = [aten.mm.default, aten.addmm.default, aten.bmm.default]
    settings = {"context_fn": partial(create_selective_checkpoint_contexts, kept)} if cheap else {}
    return lambda x: checkpoint(forward, x, use_reentrant=False, **settings)


def flops(factory: Any) -> int:
    """Of a really run forward and backward pass, by torch's own counter."""
    from torch.utils.flop_counter import FlopCounterMode

    model, *given = factory()
    with FlopCounterMode(display=False) as counted:
        model(*given).backward()
    return int(counted.get_total_flops())


def names_in(options: str) -> tuple[str, ...]:
    return tuple(options.removeprefix("--recompute ").strip("'").split(","))


def test_rows_add_up_and_each_says_what_was_said_of_the_step_with_it(
    found: Prediction, simulator: Simulator, models: str
) -> None:
    assert found.recompute
    assert found.no_recompute_because is None
    saved = added = 0
    for row in found.recompute:
        saved, added = saved + row.saved_bytes, added + row.more_flops
        assert (row.total_saved_bytes, row.total_more_flops) == (saved, added)
        assert row.peak_bytes == found.peak_bytes - saved
        assert row.flops_share == pytest.approx(row.more_flops / found.flops)
        step = predict(f"{models}:parts", simulator=simulator, optimizer="sgd", recompute=names_in(row.options))
        assert (step.peak_bytes, step.flops) == (row.peak_bytes, found.flops + added)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # the profiler's own, of its next version
@pytest.mark.parametrize(
    "names",
    [("layers.*.attention",), ("layers.*.mlp",), ("layers.*",), ("layers.*.mlp:cheap",), ("layers.*:cheap",)],
)
def test_the_peak_and_the_flops_are_those_of_a_real_run(
    simulator: Simulator, models: str, tmp_path: Path, names: tuple[str, ...]
) -> None:
    plain, again = applied(models, "parts", ()), applied(models, "parts", names)
    real = measured(SimpleNamespace(one=again), "one", tmp_path, optimizer=lambda given: torch.optim.SGD(given, lr=0.1))

    before = predict(f"{models}:parts", simulator=simulator, optimizer="sgd")
    after = predict(f"{models}:parts", simulator=simulator, optimizer="sgd", recompute=names)

    # Torch keeps a copy of the CPU's random state for each call of a checkpoint, which no operator makes.
    state = torch.get_rng_state().nbytes
    assert real - after.peak_bytes in {copies * state for copies in range(5)}
    assert after.flops - before.flops == flops(again) - flops(plain)
    assert after.peak_bytes != before.peak_bytes


def test_what_a_module_keeps_is_known_by_arithmetic(found: Prediction) -> None:
    tokens = TOKENS * WIDTH * 4
    # The attention keeps queries, keys and values, the scores after softmax, and what `out` is given.
    expected = {"layers.*.attention": 4 * (3 * tokens + SCORES + tokens), "layers.*.mlp": 4 * 2 * TOKENS * INNER * 4}
    kept = {row.module: row.kept_bytes for row in found.recompute if row.module in expected}

    assert kept
    assert kept.items() <= expected.items()


def test_no_module_alone_saves_more_for_a_flop_than_the_first_row(
    found: Prediction, simulator: Simulator, models: str
) -> None:
    def per_flop(names: tuple[str, ...]) -> tuple[float, int]:
        step = predict(f"{models}:parts", simulator=simulator, optimizer="sgd", recompute=names)
        saved, more = found.peak_bytes - step.peak_bytes, step.flops - found.flops
        return (0.0 if saved <= 0 else math.inf if more <= 0 else saved / more), saved

    parts = ("", ".attention", ".mlp", ".attention.qkv", ".mlp.0", ".mlp.1")
    paths = [f"layers.*{part}" for part in parts]

    assert per_flop(names_in(found.recompute[0].options)) == max(
        per_flop((f"{path}{how}",)) for path in paths for how in ("", ":cheap")
    )


def test_rows_end_where_the_step_fits(simulator: Simulator, models: str) -> None:
    whole = predict(f"{models}:parts", simulator=simulator, optimizer="sgd", remedies=True)
    enough = whole.recompute[0].peak_bytes

    found = predict(f"{models}:parts", simulator=simulator, optimizer="sgd", limit_bytes=enough)

    assert [row.fits for row in found.recompute] == [True]
    assert found.recompute[0].peak_bytes == enough


def test_few_layers_tell_of_all(simulator: Simulator, models: str) -> None:
    few = predict(f"{models}:many_parts", simulator=simulator, optimizer="sgd", remedies=True)
    every = predict(f"{models}:many_parts", simulator=simulator, optimizer="sgd", remedies=True, extrapolate=False)

    assert few.basis.depths
    assert not every.basis.depths
    assert few.recompute == every.recompute


def test_nothing_is_named_where_nothing_is_gained(simulator: Simulator, models: str) -> None:
    small = predict(f"{models}:square", simulator=simulator, remedies=True)
    infer = predict(f"{models}:parts", simulator=simulator, backward=False, optimizer=None, remedies=True)
    one = predict(f"{models}:square", simulator=simulator, optimizer=None, remedies=True)

    assert (small.recompute, infer.recompute, one.recompute) == ((), (), ())
    assert "optimizer's phase" in (small.no_recompute_because or "")
    assert "no backward pass" not in (infer.no_recompute_because or "")
    assert "keeps nothing for a backward pass" in (infer.no_recompute_because or "")
    assert one.no_recompute_because is not None


def test_nothing_is_worked_out_where_nobody_asked(simulator: Simulator, models: str) -> None:
    found = predict(f"{models}:parts", simulator=simulator, optimizer="sgd")

    assert (found.recompute, found.no_recompute_because) == ((), None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"recompute": ("nowhere",)}, "there are layers, layers.\\*"),
        ({"recompute": ("layers.0",)}, "there are layers, layers.\\*"),
        ({"recompute": ("layers.*:dear",)}, "wants a module such as"),
        ({"recompute": ("layers.*",), "checkpoint": "full"}, "leave --checkpoint"),
        ({"recompute": ("layers.*",), "backward": False}, "leave --checkpoint and --infer out"),
    ],
)
def test_mistakes(simulator: Simulator, models: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        predict(f"{models}:parts", simulator=simulator, **options)


def test_on_an_accelerator_what_a_checkpoint_stops_before_is_not_counted(simulator: Simulator, models: str) -> None:
    """A checkpoint ends when all that is saved is there again: the last product of `mlp` saves nothing after it."""
    device = "NVIDIA H100 80GB HBM3"
    plain = predict(f"{models}:parts", simulator=simulator, optimizer=None, device=device)
    again = predict(f"{models}:parts", simulator=simulator, optimizer=None, device=device, recompute=("layers.*.mlp",))

    assert again.flops - plain.flops == 4 * MLP_FLOPS // 2
