"""Values of small whole-number tensors, followed beside a run on fake ones, which have none.

Models read values: how many tokens an expert got, whether a mask is full, how long a sequence is. Whole numbers that
come from constants, ranges and random draws are really computed as long as they are few; values from activations (the
experts that a router picks) are drawn at random, which is balanced routing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

MOST_ELEMENTS = 1 << 22
MOST_FRACTIONS = 1 << 10  # of floating-point ones: schedules of rates, lengths
_SEED = 20


class Values:
    """Known values of tensors; ``assumed`` lists unknown values that were replaced by an assumption."""

    def __init__(self) -> None:
        self._known: Any = WeakTensorKeyDictionary()
        self._draw = torch.Generator("cpu").manual_seed(_SEED)
        self.assumed: dict[str, None] = {}

    def of(self, tensor: Tensor) -> Tensor | None:
        """The values of a tensor, where they are known."""
        found: Tensor | None = self._known.get(tensor)
        return found

    def learn(self, tensor: Tensor, values: Tensor) -> None:
        """Takes ``values`` for those of ``tensor``."""
        self._known[tensor] = values

    def instead(self, name: str, args: Sequence[Any]) -> tuple[bool, Any]:
        """The result of a call that reads values: whether it is one, and the answer."""
        if name in {"aten::_local_scalar_dense", "aten::item"}:
            return True, self._scalar(args[0])
        if name == "aten::is_nonzero":
            return True, bool(self._scalar(args[0]))
        if name in {"aten::equal", "aten::allclose"}:
            left, right = (self.of(one) for one in args[:2])
            with no_dispatch():
                return True, left is not None and right is not None and bool(torch.equal(left, right))
        return False, None

    def _scalar(self, tensor: Tensor) -> Any:
        values = self.of(tensor)
        if values is not None:
            with no_dispatch():
                return values.item()
        if tensor.dtype is torch.bool:
            self.assumed["a condition on values that are not known was taken as false"] = None
            return False
        self.assumed["a number read from a tensor whose value is not known was taken as 1"] = None
        return 1.0 if tensor.is_floating_point() else 1

    def sized(
        self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Sequence[Tensor] | None]:
        """The arguments with masks replaced by places; and results whose shapes depend on values, where they do."""
        if name in {"aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"}:
            return self._places(args), None
        if name not in _SHAPED_BY_VALUES:
            return args, None
        with no_dispatch():
            real = self._real(args, kwargs)
            if real is None:
                return args, None
            found = func(*real[0], **real[1])
        return args, [found] if isinstance(found, Tensor) else list(found)

    def _places(self, args: Sequence[Any]) -> Sequence[Any]:
        places: list[Any] = []
        for one in args[1]:
            values = self.of(one) if isinstance(one, Tensor) and one.dtype is torch.bool else None
            if values is None:
                places.append(one)
                continue
            with no_dispatch():
                rows = values.nonzero(as_tuple=True)
            for row in rows:
                fake = torch.empty(row.shape, dtype=torch.int64, device=one.device)
                self.learn(fake, row)
                places.append(fake)
        return (args[0], places, *args[2:])

    def follow(self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Computes the values of a call's result, where those of its arguments are known."""
        outputs = _tensors(result)
        if self._took_constants(outputs):
            return
        written = outputs or _tensors(args)  # an in-place operator may return nothing
        if not written or not (all(_is_small(one) for one in written) or name in _PICKS):
            return
        with no_dispatch():
            if name in _PICKS and self._real(args, kwargs) is None:
                self._pick(name, args, outputs)
                return
            real = self._real(args, kwargs) if _is_repeatable(name, written) else None
            if real is None:
                self._forget(func, args)
                return
            try:
                found = func(*real[0], **real[1])
            except (RuntimeError, IndexError, TypeError):  # a fake run allows more than a real one
                return
        for fake, value in zip(outputs, tree_leaves(found), strict=False):
            if isinstance(value, Tensor):
                self.learn(fake, value)

    def _took_constants(self, outputs: Sequence[Tensor]) -> bool:
        """Takes over fake tensors' constant values: they would compute with them where no device is."""
        constants = [getattr(one, "constant", None) for one in outputs]
        for fake, constant in zip(outputs, constants, strict=True):
            if constant is not None:
                self.learn(fake, constant)
                fake.constant = None
        return any(one is not None for one in constants)

    def _pick(self, name: str, args: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        """Places that no values decide: random ones."""
        scores = args[0]
        if scores.numel() > MOST_ELEMENTS:
            return
        self.assumed["what a router picks from activations is random: every expert gets its share"] = None
        drawn = torch.rand(scores.shape, generator=self._draw, device="cpu")
        place = args[2 if name == "aten::topk" else 1] if len(args) > (2 if name == "aten::topk" else 1) else -1
        ranks = drawn.argsort(dim=-1 if not isinstance(place, int) or isinstance(place, bool) else place)
        for fake in outputs:
            if fake.dtype is torch.int64:
                index = tuple(slice(0, size) for size in fake.shape)
                self.learn(fake, ranks[index].contiguous() if ranks.dim() == fake.dim() else ranks[..., 0])

    def _real(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any] | None:
        """The arguments with values for tensors, on the CPU; ``None`` where one is not known."""
        unknown = False

        def real(one: Any) -> Any:
            nonlocal unknown
            if isinstance(one, Tensor):
                values = self.of(one)
                unknown |= values is None
                return values
            return torch.device("cpu") if isinstance(one, torch.device) else one

        found = tree_map(real, (tuple(args), dict(kwargs)))
        return None if unknown else found

    def _forget(self, func: Any, args: Sequence[Any]) -> None:
        """Values that a call overwrites with unknown ones are no longer known."""
        for one, declared in zip(args, func._schema.arguments, strict=False):  # noqa: SLF001 - nothing public says it
            if declared.alias_info is not None and declared.alias_info.is_write:
                for tensor in _tensors(one):
                    self._known.pop(tensor, None)


def _tensors(value: Any) -> list[Tensor]:
    return [one for one in tree_leaves(value) if isinstance(one, Tensor)]


def _is_small(tensor: Tensor) -> bool:
    return bool(tensor.numel() <= (MOST_FRACTIONS if tensor.is_floating_point() else MOST_ELEMENTS))


def _is_repeatable(name: str, outputs: Sequence[Tensor]) -> bool:
    whole = not any(one.is_floating_point() or one.is_complex() for one in outputs)
    return whole or name not in _DRAWS


_DRAWS = frozenset({"aten::normal_", "aten::uniform_", "aten::bernoulli_", "aten::randn", "aten::rand", "aten::empty"})
_PICKS = frozenset({"aten::topk", "aten::argmax", "aten::argsort", "aten::sort", "aten::multinomial"})
_SHAPED_BY_VALUES = frozenset(
    {"aten::nonzero", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::bincount"}
    | {"aten::masked_select", "aten::repeat_interleave"}
)
