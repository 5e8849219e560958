"""The one place where an operator's name meets its formula."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from whystall.cost import (
    attention,
    attention_library,
    compiled,
    convolution,
    fourier,
    losses,
    matrix,
    memory,
    normalisation,
    optimizer,
    pointwise,
    recurrent,
    reduction,
    resample,
    transformer,
)
from whystall.cost.result import Cost, Kind, Work
from whystall.cost.spec import Argument, TensorSpec, tensors

Formula = Callable[..., "Work | Cost | int"]

_FORMULAS: dict[str, Any] = {
    **matrix.FORMULAS,
    **convolution.FORMULAS,
    **attention.FORMULAS,
    **attention_library.FORMULAS,
    **recurrent.FORMULAS,
    **transformer.FORMULAS,
    **reduction.FORMULAS,
    **resample.FORMULAS,
    **losses.FORMULAS,
    **pointwise.FORMULAS,
    **normalisation.FORMULAS,
    **memory.FORMULAS,
    **optimizer.FORMULAS,
    **fourier.FORMULAS,
}

# Operators whose work is products: a compiled kernel with one has FLOPs that its name does not give.
_PRODUCTS = frozenset(
    name.rpartition("::")[2]
    for formulas in (
        matrix.FORMULAS,
        convolution.FORMULAS,
        attention.FORMULAS,
        attention_library.FORMULAS,
        recurrent.FORMULAS,
        transformer.FORMULAS,
    )
    for name in formulas
) | {"matmul", "linear", "einsum", "conv1d", "conv2d", "conv3d", "scaled_dot_product_attention"}

_USERS: dict[str, str | None] = {}
"""The user's registered operators, each with the failure of its formula, if any."""

_MISFITS = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    StopIteration,
    AssertionError,
)
"""Errors that formulas raise on arguments that do not fit them."""


class _NoAmountError(TypeError):
    """A formula returned something other than an amount of work."""


COMMUNICATION = ("c10d::", "_c10d_functional::", "c10d_functional::", "_dtensor::", "symm_mem::")


def register(operator: str, formula: Formula) -> None:
    """Teaches whystall the cost of ``operator``, named as the dispatcher names it, without overload.

    ``formula`` is called with the operator's arguments, a ``TensorSpec`` for each tensor, and with ``outputs=`` if it
    has a parameter of that name. It returns a ``Cost``, a ``Work``, or the model FLOPs as a whole number; bytes that it
    does not state are those of the tensors. A later registration replaces an earlier one. If it raises, or returns
    something else, the call has no cost, and ``reason`` explains why.

    >>> register("my::matmul", lambda a, b: 2 * a.numel * b.shape[-1])
    >>> cost_of("my::matmul", [TensorSpec((8, 16)), TensorSpec((16, 4))]).model_flops
    1024
    """
    _FORMULAS[operator] = formula
    _USERS[operator] = None
    wants_outputs.cache_clear()


def unregister(operator: str) -> None:
    """Forgets a formula. Raises ``KeyError`` where there is none."""
    del _FORMULAS[operator]
    _USERS.pop(operator, None)
    wants_outputs.cache_clear()


def reason(operator: str) -> str | None:
    """Why the formula registered for ``operator`` last gave no cost; ``None`` where it always gave one.

    >>> register("my::half", lambda a: a.numel / 2)
    >>> cost_of("my::half", [TensorSpec((3,))]), reason("my::half")
    (None, 'its formula returned float, wants a whole number')
    """
    return _USERS.get(_users_name(operator))


def _users_name(operator: str) -> str:
    """The name under which a user may have registered the formula of ``operator``."""
    return operator if operator in _FORMULAS else "::".join(base_name(operator))


def base_name(operator: str) -> tuple[str, str]:
    """The namespace, and the name without the marks of in-place and foreach forms.

    >>> base_name("aten::_foreach_add_")
    ('aten', 'add')
    """
    namespace, _, name = operator.rpartition("::")
    plain = name.removeprefix("_foreach_")
    return namespace or "aten", plain.removesuffix("_") if not plain.startswith("__") else plain


def kind_of(operator: str) -> Kind | None:
    """The kind of ``operator``, from its name; ``None`` where whystall knows no formula for it.

    "other" stands for an operator with a formula of its own; "composite" for one that torch takes apart.
    """
    namespace, name = base_name(operator)
    if _formula(operator, namespace, name) is not None:
        return "other"
    if operator.startswith(COMMUNICATION):
        return "communication"
    if namespace == "fsdp":  # gathers parameters and gradients into buffers and back
        return "memory"
    if namespace not in {"aten", "prims"}:
        return None
    whole = operator.rpartition("::")[2]
    return _kinds().get(whole) or _kinds().get(name)


@cache
def known_operators() -> frozenset[str]:
    """The names, without namespace, of all PyTorch operators that whystall knows."""
    own = {name.removeprefix("aten::") for name in _FORMULAS if name.startswith("aten::")}
    return frozenset(own | _kinds().keys())


@cache
def _kinds() -> dict[str, Kind]:
    """The kind of each operator that has no formula of its own; in a conflict, work comes before composition."""
    composite = files("whystall.cost").joinpath("composite.txt").read_text("utf-8").splitlines()
    return {
        **dict.fromkeys((name for name in composite if not name.startswith("#")), "composite"),
        **dict.fromkeys(memory.MOVES | memory.ACCUMULATES, "memory"),
        **dict.fromkeys(reduction.TABLE, "reduction"),
        **dict.fromkeys(pointwise.TABLE, "elementwise"),
        **dict.fromkeys(memory.VIEWS, "view"),
    }


def cost_of(
    operator: str,
    args: Sequence[Argument],
    kwargs: Mapping[str, Argument] | None = None,
    outputs: Sequence[TensorSpec] | None = None,
) -> Cost | None:
    """The cost of one call of ``operator``; ``None`` where no formula knows it or the arguments do not fit it.

    ``operator`` is named as in a trace ("aten::mm"). Arguments may all be positional, in the order of the operator's
    schema, as traces record them. ``outputs`` are the tensors that it returned, where they are known.

    >>> cost_of("aten::mm", [TensorSpec((8, 16)), TensorSpec((16, 4))]).model_flops
    1024
    """
    named = dict(kwargs or {})
    written = tensors(
        [named.pop(name) for name in [*named] if name == "out" or (name.startswith("out") and name[3:].isdigit())]
    )
    outputs = written or outputs
    try:
        result = _evaluate(operator, tuple(args), named, outputs)
        cost = result if result is None or isinstance(result, Cost) else _finish(result, args, named, outputs)
    except Exception as error:
        if _users_name(operator) not in _USERS and not isinstance(error, _MISFITS):
            raise
        said = str(error) if isinstance(error, _NoAmountError) else f"raised {type(error).__name__}: {error}"
        _keep(operator, said)
        return None  # a recorded call may lack arguments, or hold ones that fit no formula
    if cost is not None and _is_possible(cost):
        return cost
    _keep(
        operator,
        "returned None, wants a whole number" if cost is None else "gave an amount that is negative or not whole",
    )
    return None


def _keep(operator: str, said: str) -> None:
    """Keeps the error of a user's formula."""
    name = _users_name(operator)
    if name in _USERS:
        _USERS[name] = f"its formula {said}"


def _is_possible(cost: Cost) -> bool:
    """Whether all amounts are whole and none is negative."""
    amounts: tuple[Any, ...] = (
        cost.model_flops,
        cost.model_flops_causal,
        cost.executed_flops,
        cost.elementwise_ops,
        cost.bytes_read or 0,
        cost.bytes_written or 0,
    )
    return all(isinstance(amount, int) and amount >= 0 for amount in amounts)


def _evaluate(
    operator: str, args: tuple[Argument, ...], kwargs: dict[str, Argument], outputs: Sequence[TensorSpec] | None
) -> Work | Cost | None:
    namespace, name = base_name(operator)
    if "_fused_" in operator and "::" not in operator:
        return compiled.fused_cost(operator, args, known_operators(), _PRODUCTS)
    formula = _formula(operator, namespace, name)
    if formula is not None:
        if wants_outputs(formula) and outputs is not None:
            kwargs = {**kwargs, "outputs": tuple(outputs)}
        return _work_of(formula(*args, **kwargs))
    return _by_kind(operator, name, args, kwargs)


def _work_of(result: object) -> Work | Cost | None:
    """A formula's result as work, a bare number being model FLOPs. Raises ``_NoAmountError`` for anything else."""
    if result is None or isinstance(result, (Work, Cost)):
        return result
    if isinstance(result, float) and result.is_integer():
        result = int(result)
    if not isinstance(result, int):
        raise _NoAmountError(f"returned {type(result).__name__}, wants a whole number")
    return Work(flops=result)


def _by_kind(operator: str, name: str, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> Work | Cost | None:
    kind = kind_of(operator)
    every = (*args, *kwargs.values())
    result: Work | Cost | None = None
    if kind == "view":
        result = Cost(kind="view")
    elif kind == "communication":
        result = Work(kind="communication")
    elif kind == "elementwise":
        result = pointwise.pointwise(name, every, kwargs.get("approximate", args[-1] if args else None))
    elif kind == "reduction":
        result = reduction.reduction(name if name in reduction.TABLE else operator.rpartition("::")[2], every)
    elif kind == "memory":
        result = memory.accumulate(args) if name in memory.ACCUMULATES else memory.move(args)
    return result


def _formula(operator: str, namespace: str, name: str) -> Any:
    """The formula of ``operator``, else that of the form without marks of in-place and foreach."""
    if operator in _FORMULAS:
        return _FORMULAS[operator]
    return None if operator.startswith("aten::_foreach_") else _FORMULAS.get(f"{namespace}::{name}")


@cache
def wants_outputs(formula: Any) -> bool:
    """Whether ``formula`` has a parameter called ``outputs``."""
    return "outputs" in inspect.signature(formula).parameters


def _finish(
    work: Work,
    args: Sequence[Argument],
    kwargs: Mapping[str, Argument],
    outputs: Sequence[TensorSpec] | None,
) -> Cost:
    written_specs = outputs or (outputs if work.outputs is None else work.outputs)  # an in-place one may return nothing
    read, written = work.read, work.written
    if read is None:
        read = _bytes(tensors([*args, *kwargs.values()]))
    if written is None and written_specs is not None:
        written = _bytes(written_specs)
    return Cost(
        model_flops=work.flops,
        model_flops_causal=work.flops if work.causal is None else work.causal,
        executed_flops=work.flops if work.executed is None else work.executed,
        elementwise_ops=work.elementwise,
        bytes_read=read,
        bytes_written=written,
        kind=work.kind,
        weight_flops=work.weight_flops,
        outputs=None if written_specs is None else tuple(written_specs),
    )


def _bytes(specs: Sequence[TensorSpec]) -> int | None:
    """The bytes of ``specs``, or ``None`` where one has a dtype of unknown size."""
    try:
        return sum(spec.nbytes for spec in specs)
    except KeyError:
        return None
