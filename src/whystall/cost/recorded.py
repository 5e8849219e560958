"""From the text that Kineto records of a call to its cost.

``Input Dims``, ``Input type``, ``Concrete Inputs`` and ``Input Strides`` are JSON lists with one entry per argument of
the operator's schema, keyword-only ones included. A list of tensors has a list of lists for dimensions and
"TensorList" for a type; in older traces its dtypes are unknown. Scalars stand as text in ``Concrete Inputs``.
"""

from __future__ import annotations

from typing import Any, Final

from whystall.cost.registry import cost_of
from whystall.cost.result import Cost
from whystall.cost.spec import Argument, TensorSpec
from whystall.json_text import parse_json

DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz",
    "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
    "c10::Float8_e8m0fnu": "float8_e8m0fnu",
    "c10::Float4_e2m1fn_x2": "float4_e2m1fn_x2",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "c10::complex<c10::Half>": "complex32",
    "bool": "bool",
    "unsigned char": "uint8",
    "signed char": "int8",
    "short int": "int16",
    "short": "int16",
    "int": "int32",
    "long int": "int64",
    "long": "int64",
    "long long": "int64",
    "c10::qint8": "qint8",
    "c10::quint8": "quint8",
    "c10::qint32": "qint32",
}
"""C++ type names in ``Input type``, to dtypes."""

UNKNOWN_DTYPE = "unknown"
_LARGEST_SIZE: Final = (1 << 63) - 1  # as torch can write one


def recorded_cost(
    operator: str, dims: str | None, types: str | None, concrete: str | None = None, strides: str | None = None
) -> Cost | None:
    """The cost of a recorded call; ``None`` where shapes were not recorded or no formula fits.

    >>> recorded_cost("aten::mm", "[[8, 16], [16, 4]]", '["float", "float"]').model_flops
    1024
    """
    arguments = parse(dims, types, concrete, strides)
    return None if arguments is None else cost_of(operator, arguments)


def parse(
    dims: str | None, types: str | None, concrete: str | None = None, strides: str | None = None
) -> list[Argument] | None:
    """The arguments of a recorded call, by position; ``None`` where dimensions or types were not recorded.

    >>> parse("[[8, 16], []]", '["c10::BFloat16", "Scalar"]', '["", "True"]')
    [TensorSpec(shape=(8, 16), dtype='bfloat16', strides=None, values=None), True]
    """
    shapes, names = _list(dims), _list(types)
    if shapes is None or names is None:
        return None
    texts, steps = _list(concrete) or [], _list(strides) or []
    try:
        return [
            _argument(shape, str(_at(names, place) or ""), _at(texts, place), _at(steps, place))
            for place, shape in enumerate(shapes)
        ]
    except (ValueError, RecursionError):
        return None  # the values there are no dimensions


def _list(text: str | None) -> list[Any] | None:
    if not text:
        return None
    try:
        parsed = parse_json(text)
    except ValueError:
        return None
    return parsed if isinstance(parsed, list) else None


def _at(entries: list[Any], place: int) -> Any:
    return entries[place] if place < len(entries) else None


def _argument(shape: Any, name: Any, text: Any, strides: Any) -> Argument:
    if isinstance(shape, list) and shape and isinstance(shape[0], list):
        steps = strides if isinstance(strides, list) else []
        return [_tensor(one, UNKNOWN_DTYPE, _at(steps, place)) for place, one in enumerate(shape)]
    if text:
        return scalar(str(text))
    if isinstance(shape, list) and (shape or name in DTYPES):
        return _tensor(shape, DTYPES.get(name, UNKNOWN_DTYPE), strides)
    return None


def _tensor(shape: Any, dtype: str, strides: Any) -> TensorSpec:
    if not _are_sizes(shape):
        raise ValueError(f"no dimensions: {shape!r:.100}")
    known = _are_sizes(strides) and len(strides) == len(shape)
    return TensorSpec(tuple(shape), dtype, tuple(strides) if known else None)


def _are_sizes(values: Any) -> bool:
    """Whether ``values`` is a list of sizes as a tensor can have them."""
    return isinstance(values, list) and all(type(value) is int and 0 <= value <= _LARGEST_SIZE for value in values)


def scalar(text: str) -> Argument:
    """The value that ``Concrete Inputs`` writes as ``text``.

    >>> scalar("[16, -1]"), scalar("0."), scalar("False"), scalar("reflect")
    ([16, -1], 0.0, False, 'reflect')
    """
    if text in {"True", "False"}:
        return text == "True"
    if text.startswith("[") and text.endswith("]"):
        inner = text[1:-1].strip()
        return [scalar(one.strip()) for one in inner.split(",")] if inner else []
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text
