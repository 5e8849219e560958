"""Which settings of the model are worth a trial: the precision of its products, how pictures lie, torch.compile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from whystall.verify.tune.candidate import Candidate, gain, is_worth_it
from whystall.verify.tune.results import Seen, Settings

# Largest share of a step's compute. A number in 16 bits is half the bytes, and units for products run at least twice as
# fast (accelerators.csv: A100 312 TFLOP/s against 156 in TF32).
_OF_PRECISION: Final = 0.5
# Share of the operators that reorder layouts for convolutions, if these are the whole model.
_OF_LAYOUT: Final = 0.3
# Work between products, which is fused, and launches.
_OF_COMPILER: Final = 0.4
_NO_MODEL: Final = "no model of torch's was trained by an optimizer of torch's"


def model_candidates(seen: Seen, settings: Settings) -> Iterator[Candidate]:
    """The worthwhile settings of the model."""
    computes = computing(seen)
    reasons = why_no_model(seen)
    if "precision" not in settings and reasons["precision"] is None:
        yield Candidate("precision", "bf16", gain(_OF_PRECISION * computes))
    if "memory_format" not in settings and reasons["memory_format"] is None:
        yield Candidate("memory_format", "channels_last", gain(_OF_LAYOUT * computes))
    if reasons["compile"] is None or "compile" in settings:
        for rank, mode in enumerate(_modes(seen, settings)):
            yield Candidate("compile", mode, gain(_OF_COMPILER * computes) * 0.99**rank)


def why_no_model(seen: Seen) -> Mapping[str, str | None]:
    """Why a setting of the model is not tried; ``None`` where it is."""
    small = None if is_worth_it(_OF_LAYOUT * computing(seen)) else f"the model takes {computing(seen):.1%} of the steps"
    if not seen.models:
        return dict.fromkeys(("precision", "memory_format", "compile"), _NO_MODEL)
    return {
        "precision": _why_no_precision(seen, max(seen.models, key=_parameters)) or small,
        "memory_format": _why_no_layout(seen) or small,
        "compile": "the job compiles already" if seen.compiled else small,
    }


def computing(seen: Seen) -> float:
    """The largest share of forward and backward passes in a step: they are not always timed separately."""
    return max(1 - sum(seen.shares.get(part, 0.0) for part in ("input", "optimizer", "save", "gc")), 0.0)


def _why_no_precision(seen: Seen, model: Mapping[str, Any]) -> str | None:
    if seen.autocast:
        return "the job uses autocast already"
    if model.get("dtype") != "float32":
        return f"the model is in {model.get('dtype')}"
    return None if seen.bf16 else "what the model runs on has no instructions for bfloat16"


def _why_no_layout(seen: Seen) -> str | None:
    convolutions = [model for model in seen.models if model.get("convolutions")]
    if not convolutions:
        return "no model has convolutions of pictures"
    return "weights lie so already" if all(model.get("channels_last") for model in convolutions) else None


def _modes(seen: Seen, settings: Settings) -> list[str]:
    """Modes of the compiler: CUDA graphs save launches; modes that compile for long come last."""
    now = settings.get("compile")
    if now is None:
        return ["default", "reduce-overhead"] if seen.devices else ["default"]
    others = ["reduce-overhead", "max-autotune"] if seen.devices else []
    return [mode for mode in others if mode != now]


def _parameters(model: Mapping[str, Any]) -> int:
    return int(model.get("parameters") or 0)
