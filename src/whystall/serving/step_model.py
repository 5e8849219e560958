"""The duration of an engine step by its composition.

t = c0 + c1·prompt tokens + c2·sequences + c3·context + c4·pairs, where pairs are those of a prompt's tokens with the
tokens before them, which attention computes. Fitted in relative error and robustly (least absolute deviations by
reweighting), each coefficient at least zero. Rare slow steps feed the queue and a median has none: replays add the pace
that the machine had (`whystall.serving.machine`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from whystall.serving.membership import Placed
from whystall.serving.records import Iterations

Floats = npt.NDArray[np.float64]

_ROUNDS: Final = 30
_FEWEST: Final = 30
"""Steps for a fit: four coefficients and a median."""
_SEQUENCES: Final = 2  # the column
_SMALLEST: Final = 1e-3  # relative residual below which a step weighs no more


@dataclass(frozen=True, slots=True)
class StepModel:
    """Coefficients in nanoseconds a step, a prompt token, a sequence, a token of context, a pair of prompt tokens.

    ``error`` is the median relative deviation over ``steps`` steps.
    """

    step_ns: float
    token_ns: float
    sequence_ns: float
    context_ns: float
    pair_ns: float
    error: float
    steps: int

    def of(self, prompt_tokens: float, sequences: float, context: float = 0.0, pairs: float = 0.0) -> float:
        """The usual duration of a step, in nanoseconds."""
        grown = self.token_ns * prompt_tokens + self.sequence_ns * sequences + self.context_ns * context
        return self.step_ns + grown + self.pair_ns * pairs


def prompt_tokens(steps: Iterations) -> Floats:
    """Tokens of each step that are no newly generated ones: prompts and recomputation."""
    again = np.maximum(steps.generation_tokens - steps.generation_requests, 0)
    found: Floats = (steps.context_tokens + again).astype(np.float64)
    return found


def sequences(steps: Iterations) -> Floats:
    """Requests in each step."""
    found: Floats = (steps.context_requests + steps.generation_requests).astype(np.float64)
    return found


def context_tokens(count: int, asked: list[int], placed: tuple[Placed | None, ...]) -> Floats:
    """Tokens that the generating requests of each step look back at; ``asked`` are the requests' prompt tokens."""
    constant = np.zeros(count + 1)
    slope = np.zeros(count + 1)
    for prompt, one in zip(asked, placed, strict=True):
        emitted = 0
        for first, end in one.emits if one is not None else ():
            for at, sign in ((first, 1), (end, -1)):
                constant[at] += sign * (prompt + emitted - first)
                slope[at] += sign
            emitted += end - first
    found: Floats = (np.cumsum(constant) + np.cumsum(slope) * np.arange(count + 1))[:count]
    return found


def prompt_pairs(count: int, placed: tuple[Placed | None, ...]) -> Floats:
    """Pairs of a prompt's tokens with those before them, in each step."""
    found = np.zeros(count)
    for one in placed:
        computed = 0
        again = False
        for chunk in one.chunks if one is not None else ():
            computed = 0 if chunk.again and not again else computed
            again = chunk.again
            found[chunk.step] += chunk.tokens * (computed + chunk.tokens / 2)
            computed += chunk.tokens
    return found


def fit(steps: Iterations, context: Floats | None = None, pairs: Floats | None = None) -> StepModel | None:
    """The model of a log; ``None`` where it has fewer than 30 steps with work."""
    used = (steps.elapsed_ns > 0) & (steps.dummy == 0)
    if int(used.sum()) < _FEWEST:
        return None
    measured = steps.elapsed_ns[used].astype(np.float64)
    features = _features(steps, context, pairs)[used]
    found = _least_absolute(features / measured[:, None])
    error = float(np.median(np.abs(features @ found / measured - 1.0)))
    step, token, sequence, looked, pair = (float(one) for one in found)
    return StepModel(step, token, sequence, looked, pair, error, len(measured))


def usual_ns(model: StepModel, steps: Iterations, context: Floats | None = None, pairs: Floats | None = None) -> Floats:
    """The model's duration of each step."""
    coefficients = (model.step_ns, model.token_ns, model.sequence_ns, model.context_ns, model.pair_ns)
    found: Floats = _features(steps, context, pairs) @ np.array(coefficients)
    return found


def _features(steps: Iterations, context: Floats | None, pairs: Floats | None) -> Floats:
    unknown = np.zeros(len(steps))
    columns = [unknown if one is None else one for one in (context, pairs)]
    return np.column_stack([np.ones(len(steps)), prompt_tokens(steps), sequences(steps), *columns])


def _least_absolute(relative: Floats) -> Floats:
    """Coefficients at least zero with the smallest sum of absolute deviations from 1."""
    weights = np.ones(len(relative))
    found = np.zeros(relative.shape[1])
    for _ in range(_ROUNDS):
        found = _non_negative(relative, weights)
        weights = 1.0 / np.sqrt(np.maximum(np.abs(relative @ found - 1.0), _SMALLEST))
    return found


def _non_negative(relative: Floats, weights: Floats) -> Floats:
    """Weighted least squares; the coefficient that is most negative leaves until none is."""
    active = [place for place in range(relative.shape[1]) if relative[:, place].any()]
    if _is_constant(relative):
        active.remove(_SEQUENCES)  # always the same number of sequences: its cost is not separable from that of a step
    scale = np.maximum(np.abs(relative).max(axis=0), 1e-30)
    found = np.zeros(relative.shape[1])
    while active:
        columns = relative[:, active] / scale[active] * weights[:, None]
        solved = np.linalg.lstsq(columns, weights, rcond=None)[0]
        if (solved >= 0).all():
            found[active] = solved / scale[active]
            break
        active.pop(int(np.argmin(solved)))
    return found


def _is_constant(relative: Floats) -> bool:
    """Whether all steps have the same number of sequences."""
    each = relative[:, _SEQUENCES] / relative[:, 0]
    return bool(np.allclose(each, each[0])) and bool(each[0])
