"""The tensors that a recorded call returns, worked out from its arguments: recordings of Kineto's hold inputs alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Final

from whystall.cost import memory
from whystall.cost.registry import base_name, cost_of
from whystall.cost.spec import Argument, TensorSpec

Specs = tuple[TensorSpec, ...]


def results(operator: str, arguments: Sequence[Argument]) -> Specs | None:
    """The tensors that a call returns; ``None`` where they do not follow from its arguments.

    Strides are set where the call decides them. Elementwise operators keep the order of their first large input.

    >>> results("aten::mm", [TensorSpec((8, 16)), TensorSpec((16, 4))])
    (TensorSpec(shape=(8, 4), dtype='float32', strides=None, values=None),)
    >>> results("aten::t", [TensorSpec((8, 16), strides=(16, 1))])[0].strides
    (1, 16)
    """
    name = base_name(operator)[1]
    try:
        if name in _RESULTS:
            return _RESULTS[name](*arguments)
        if writes_first(operator):
            first = arguments[0]
            return (first,) if isinstance(first, TensorSpec) else None
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
        return None  # a damaged recording may lack arguments
    cost = cost_of(operator, arguments)
    if cost is None or cost.outputs is None or (cost.kind in _APPROXIMATE and name not in _EXACT):
        return None
    plain = (TensorSpec(one.shape, one.dtype) for one in cost.outputs)
    return tuple(_as_laid_out(one, arguments) if cost.kind == "elementwise" else one for one in plain)


def is_view(operator: str) -> bool:
    """Whether an operator returns its first argument's memory, seen differently.

    >>> is_view("aten::transpose"), is_view("aten::empty_like"), is_view("aten::clone")
    (True, False, False)
    """
    namespace, _, name = operator.rpartition("::")
    return namespace == "aten" and name in memory.VIEWS and not name.startswith(("empty", "new_empty", "_efficient"))


def writes_first(operator: str) -> bool:
    """Whether an operator changes its first argument in place, by its name.

    >>> writes_first("aten::add_"), writes_first("aten::__and__"), writes_first("aten::copy_")
    (True, False, True)
    """
    return operator.startswith("aten::") and operator.endswith("_") and not operator.endswith("__")


# Formulas of these kinds know the number of bytes written, and not always the shape.
_APPROXIMATE: Final = ("memory", "reduction", "view", "composite", "communication", "optimizer", "other")
_EXACT: Final = frozenset(
    {"_embedding_bag", "_log_softmax", "_softmax", "_to_copy", "embedding", "embedding_dense_backward", "gather"}
    | {"index", "index_select"}
)


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor whose last dimension lies together.

    >>> dense((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(prod(max(size, 1) for size in shape[place + 1 :]) for place in range(len(shape)))


def _as_laid_out(out: TensorSpec, arguments: Sequence[Argument]) -> TensorSpec:
    """A result in the order in memory of the first input of its shape, where that has no gaps."""
    for one in arguments:
        if isinstance(one, TensorSpec) and one.shape == out.shape and one.strides is not None:
            return TensorSpec(out.shape, out.dtype, one.strides) if _has_no_gaps(one.shape, one.strides) else out
    return out


def _has_no_gaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    outward = sorted(zip(strides, shape, strict=True))
    return [step for step, _ in outward] == [prod(size for _, size in outward[:place]) for place in range(len(outward))]


def _steps(spec: TensorSpec) -> tuple[int, ...]:
    return dense(spec.shape) if spec.strides is None else spec.strides


def _same(spec: TensorSpec, *_: Argument) -> Specs:
    return (spec,)


def _copied(spec: TensorSpec, *_: Argument) -> Specs:
    return (TensorSpec(spec.shape, spec.dtype),)


def _as_strided(spec: TensorSpec, shape: Sequence[int], strides: Sequence[int], *_: Argument) -> Specs:
    return (TensorSpec(tuple(shape), spec.dtype, tuple(strides)),)


def _viewed(spec: TensorSpec, shape: Sequence[int], *_: Argument) -> Specs:
    """One size may be -1: it follows from the others."""
    known = prod(size for size in shape if size != -1)
    sizes = tuple(spec.numel // known if size == -1 else size for size in shape)
    if prod(sizes) != spec.numel:
        raise ValueError(f"{spec.numel} elements do not fit {sizes}")
    return (TensorSpec(sizes, spec.dtype),)


def _permuted(spec: TensorSpec, places: Sequence[int], *_: Argument) -> Specs:
    steps = _steps(spec)
    return (TensorSpec(tuple(spec.shape[one] for one in places), spec.dtype, tuple(steps[one] for one in places)),)


def _transposed(spec: TensorSpec, one: int = 0, other: int = 1, *_: Argument) -> Specs:
    places = list(range(len(spec.shape)))
    if places:
        places[one], places[other] = places[other], places[one]
    return _permuted(spec, places)


def _t(spec: TensorSpec, *_: Argument) -> Specs:
    return _transposed(spec) if len(spec.shape) == 2 else (spec,)


def _last_two(spec: TensorSpec, *_: Argument) -> Specs:
    return _transposed(spec, -2, -1)


def _expanded(spec: TensorSpec, shape: Sequence[int], *_: Argument) -> Specs:
    new = len(shape) - len(spec.shape)
    old = (*(1,) * new, *spec.shape)
    sizes = tuple(was if size == -1 else size for size, was in zip(shape, old, strict=True))
    steps = (*(0,) * new, *_steps(spec))
    kept = tuple(step if size == was else 0 for step, size, was in zip(steps, sizes, old, strict=True))
    return (TensorSpec(sizes, spec.dtype, kept),)


def _unsqueezed(spec: TensorSpec, place: int, *_: Argument) -> Specs:
    at = place % (len(spec.shape) + 1)
    steps = _steps(spec)
    step = steps[at] * spec.shape[at] if at < len(steps) else 1
    sizes = (*spec.shape[:at], 1, *spec.shape[at:])
    return (TensorSpec(sizes, spec.dtype, (*steps[:at], step, *steps[at:])),)


def _squeezed(spec: TensorSpec, *places: Argument) -> Specs:
    first = places[0] if places else None
    listed = [first] if isinstance(first, int) else [one for one in first or () if isinstance(one, int)]  # type: ignore[union-attr]
    gone = {one % max(len(spec.shape), 1) for one in listed} if listed else set(range(len(spec.shape)))
    kept = [at for at, size in enumerate(spec.shape) if size != 1 or at not in gone]
    return _permuted(spec, kept)


def _selected(spec: TensorSpec, place: int, *_: Argument) -> Specs:
    at = place % len(spec.shape)
    return _permuted(spec, [one for one in range(len(spec.shape)) if one != at])


def _sliced(spec: TensorSpec, place: int = 0, begin: Argument = None, end: Argument = None, step: int = 1) -> Specs:
    at = place % len(spec.shape)
    length = len(
        range(*slice(*(one if isinstance(one, int) else None for one in (begin, end, step))).indices(spec.shape[at]))
    )
    steps = list(_steps(spec))
    steps[at] *= step
    return (TensorSpec((*spec.shape[:at], length, *spec.shape[at + 1 :]), spec.dtype, tuple(steps)),)


def _made(shape: Sequence[int], *_: Argument) -> Specs:
    return (TensorSpec(tuple(shape), "unknown"),)


def _newly_made(spec: TensorSpec, shape: Sequence[int], *_: Argument) -> Specs:
    return (TensorSpec(tuple(shape), spec.dtype),)


def _joined(parts: Sequence[TensorSpec], place: int = 0, *_: Argument) -> Specs:
    first = parts[0]
    at = place % len(first.shape)
    length = sum(one.shape[at] for one in parts)
    return (TensorSpec((*first.shape[:at], length, *first.shape[at + 1 :]), first.dtype),)


def _stacked(parts: Sequence[TensorSpec], place: int = 0, *_: Argument) -> Specs:
    shape = parts[0].shape
    at = place % (len(shape) + 1)
    return (TensorSpec((*shape[:at], len(parts), *shape[at:]), parts[0].dtype),)


def _repeated(spec: TensorSpec, times: Sequence[int], *_: Argument) -> Specs:
    sizes = (*(1,) * (len(times) - len(spec.shape)), *spec.shape)
    return (TensorSpec(tuple(size * time for size, time in zip(sizes, times, strict=True)), spec.dtype),)


def _diagonal_matrix(spec: TensorSpec, offset: int = 0, one: int = -2, other: int = -1, *_: Argument) -> Specs:
    if (one, other) != (-2, -1):
        raise ValueError("dimensions in another order")
    side = spec.shape[-1] + abs(offset)
    return (TensorSpec((*spec.shape[:-1], side, side), spec.dtype),)


def _reduced(spec: TensorSpec, places: Argument = None, keep: Argument = False, *_: Argument) -> Specs:
    if isinstance(places, TensorSpec):
        raise TypeError("two tensors")
    every = range(len(spec.shape))
    listed = [places] if isinstance(places, int) and not isinstance(places, bool) else places
    gone = (
        {int(one) % len(spec.shape) for one in listed} if isinstance(listed, (list, tuple)) and listed else set(every)
    )
    sizes = [1 if at in gone else spec.shape[at] for at in every if keep is True or at not in gone]
    return (TensorSpec(tuple(sizes), spec.dtype),)


def _reduced_with_places(spec: TensorSpec, places: Argument = None, keep: Argument = False, *_: Argument) -> Specs:
    (out,) = _reduced(spec, places, keep)
    return (out,) if places is None else (out, TensorSpec(out.shape, "int64"))


def _places(spec: TensorSpec, *rest: Argument) -> Specs:
    return (TensorSpec(_reduced(spec, *rest)[0].shape, "int64"),)


def _sorted(spec: TensorSpec, *_: Argument) -> Specs:
    return (TensorSpec(spec.shape, spec.dtype), TensorSpec(spec.shape, "int64"))


def _top(spec: TensorSpec, count: int, place: int = -1, *_: Argument) -> Specs:
    at = place % len(spec.shape)
    sizes = (*spec.shape[:at], count, *spec.shape[at + 1 :])
    return (TensorSpec(sizes, spec.dtype), TensorSpec(sizes, "int64"))


def _compared(*arguments: Argument) -> Specs:
    cost = cost_of("aten::add", [one for one in arguments if isinstance(one, TensorSpec)])
    return tuple(TensorSpec(one.shape, "bool") for one in (cost.outputs if cost else None) or ())


def _named(function: Callable[..., Specs], names: str) -> dict[str, Callable[..., Specs]]:
    return dict.fromkeys(names.split(), function)


_RESULTS: Final[dict[str, Callable[..., Specs]]] = {
    **_named(_same, "detach alias lift_fresh _fw_primal resolve_conj resolve_neg"),
    **_named(
        _copied,
        "clone contiguous flip roll tril triu zeros_like ones_like full_like rand_like randn_like randint_like "
        "empty_like cumsum cumprod",
    ),
    "as_strided": _as_strided,
    "_reshape_alias": _as_strided,
    **_named(_viewed, "view _unsafe_view reshape"),
    "permute": _permuted,
    **_named(_transposed, "transpose swapaxes"),
    **_named(_t, "t numpy_T"),
    **_named(_last_two, "mT mH adjoint"),
    "expand": _expanded,
    "unsqueeze": _unsqueezed,
    "squeeze": _squeezed,
    "select": _selected,
    "slice": _sliced,
    **_named(_made, "empty zeros ones full rand randn empty_strided"),
    **_named(_newly_made, "new_empty new_zeros new_ones new_full"),
    **_named(_joined, "cat concat"),
    "stack": _stacked,
    "repeat": _repeated,
    "diag_embed": _diagonal_matrix,
    **_named(_reduced, "sum mean amax amin prod nansum logsumexp"),
    **_named(_reduced_with_places, "max min"),
    **_named(_places, "argmax argmin"),
    **_named(_sorted, "sort"),
    "topk": _top,
    **_named(_compared, "eq ne lt le gt ge isnan isfinite isinf logical_not logical_and logical_or isclose"),
}
"""Results of operators whose cost does not state them, by their name without marks."""
