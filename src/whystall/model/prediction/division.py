"""One rank's part of tensors that tensor, sequence and expert parallelism divide, by the way they are computed.

The step runs whole. In each block the first product of replicated tensors is split by columns, tensors computed from
its result are split as well, and the product that takes them is split by rows and gives a replicated result again
(Shoeybi et al., arXiv 1909.08053). With sequence parallelism replicated tensors are split along the sequence
(Korthikanti et al., arXiv 2205.05198).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_leaves

from whystall.errors import UsageError
from whystall.model.prediction.blocks import Blocks, alike_lists
from whystall.model.prediction.events import Event, Record
from whystall.model.prediction.request import Request
from whystall.model.prediction.sharding import DIVIDED
from whystall.model.prediction.tracker import Tracker

_PRODUCTS: Final[Mapping[str, tuple[int, int]]] = {"aten::mm": (0, 1), "aten::addmm": (1, 2), "aten::linear": (0, 1)}
_STEP: Final = ("forward", "backward")


class Division:
    """Receives every operator, and computes the number of parts of each storage on a rank."""

    def __init__(self, request: Request, tracker: Tracker, model: nn.Module, blocks: Blocks | None) -> None:
        self._request, self._tracker = request, tracker
        self._tensor = request.tensor_parallel
        self._split: set[int] = set()  # numbers of storages that are split by features, heads or words
        self._along: set[int] = set()  # those that are split along the sequence
        self._known: set[int] = set()
        self._linears: dict[int, nn.Linear] = {}
        self._weights = {id(one): tracker.numbers(one) for one in model.parameters()}
        self._known.update(*self._weights.values())
        self._of_weights = frozenset(self._known)
        self._reduced_bytes = 0
        self._returned: set[int] = set()  # storages whose gradients are reduced over all ranks
        if self._tensor > 1:
            self._find_linears(model, blocks)
        self._experts = {id(one) for one in _experts(model, blocks)} if request.expert_parallel > 1 else set()
        if request.expert_parallel > 1 and not self._experts:
            raise UsageError(
                "no experts were found to spread: neither a list of alike modules in a block nor stacked ones"
            )

    def _find_linears(self, model: nn.Module, blocks: Blocks | None) -> None:
        inside = {id(one) for one in blocks.modules.modules()} if blocks is not None else None
        tables = [one for one in model.modules() if isinstance(one, nn.Embedding)]
        words = max(tables, key=lambda one: one.num_embeddings, default=None)
        if words is not None and words.num_embeddings % self._tensor == 0:
            self._split |= self._weights[id(words.weight)]
        for module in model.modules():
            if isinstance(module, nn.Linear):
                is_head = words is not None and module.out_features == words.num_embeddings
                if inside is None or id(module) in inside or is_head:
                    for number in self._weights[id(module.weight)]:
                        self._linears[number] = module

    # --- while the step runs -----------------------------------------------------------------------------------------

    def __call__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Decides whether an operator's result is split."""
        if self._tensor == 1:
            return
        name = func._schema.name  # noqa: SLF001 - the name without overload has no public accessor
        if name.startswith("aten::_foreach") and isinstance(result, (list, tuple)):
            for place, one in enumerate(result):
                lists = [given[place] for given in args if isinstance(given, (list, tuple)) and len(given) > place]
                self._made(one, split=self._any(lists))
            return
        if name == "aten::embedding":
            split = False  # each rank's part is added up over all
            self._reduces(args[0], args[0], result)
        elif name in _PRODUCTS:
            left, right = (args[place] for place in _PRODUCTS[name])
            split = self._product(left, right)
            self._reduces(left, right, result)
        else:
            split = self._any((args, kwargs))
        self._made(result, split=split)

    def _product(self, left: Tensor, right: Tensor) -> bool:
        """Whether a product is split: where one of its sides is; with two the sum over the split dimension is taken."""
        for weight, other in ((right, left), (left, right)):
            for number in self._tracker.numbers(weight):
                layer = self._linears.get(number)
                if layer is not None and not self._is_split(weight) and self._tracker.place.phase == "forward":
                    self._decide(layer, by_rows=self._is_split(other))
                    if not self._is_split(weight):
                        return False
        return self._is_split(left) != self._is_split(right)

    def _reduces(self, left: Tensor, right: Tensor, result: Tensor) -> None:
        """Counts the bytes of a product's all-reduces: its partial sums, or the gradient of a replicated input.

        Products by columns that take the same input add up their gradients first. Recomputation by a checkpoint is not
        counted.
        """
        if self._tracker.place.phase != "forward":
            return
        split = self._is_split(left), self._is_split(right)
        if all(split):
            self._reduced_bytes += result.numel() * result.element_size()
        elif any(split):
            given = right if split[0] else left
            numbers = self._tracker.numbers(given)
            if given.requires_grad and numbers.isdisjoint(self._returned | self._of_weights):
                self._returned |= numbers
                self._reduced_bytes += given.numel() * given.element_size()

    def _decide(self, layer: nn.Linear, *, by_rows: bool) -> None:
        width = layer.in_features if by_rows else layer.out_features
        if width % self._tensor:
            return  # every rank has all of it
        self._split |= self._weights[id(layer.weight)]
        if layer.bias is not None and not by_rows:
            self._split |= self._weights[id(layer.bias)]

    def _is_split(self, tensor: Tensor) -> bool:
        return not self._split.isdisjoint(self._tracker.numbers(tensor))

    def _any(self, values: Any) -> bool:
        return any(isinstance(one, Tensor) and self._is_split(one) for one in tree_leaves(values))

    def _made(self, result: Any, *, split: bool) -> None:
        new = self._tracker.numbers(result) - self._known
        self._known |= new
        if split:
            self._split |= new
        elif self._request.sequence_parallel and self._tracker.place.phase in _STEP:
            self._along |= new

    def share(self, args: Sequence[Any], result: Any) -> int:
        """By how many ranks the work of an operator is shared."""
        if self._tensor == 1:
            return 1
        numbers = self._tracker.numbers((args, result))
        return 1 if numbers.isdisjoint(self._split | self._along) else self._tensor

    def reset(self) -> None:
        """Forgets the reductions of a step before."""
        self._reduced_bytes = 0
        self._returned.clear()

    @property
    def sent_bytes(self) -> int:
        """The least bytes that a rank sends in a step to those that share its products: a ring's part of an all-reduce.

        A reduce-scatter and an all-gather along the sequence send the same (Korthikanti et al.).
        """
        return 2 * (self._tensor - 1) * self._reduced_bytes // self._tensor

    # --- afterwards --------------------------------------------------------------------------------------------------

    def of_weight(self, weight: Tensor, kind: str = "parameters") -> int:
        """The number of parts of a parameter, or of its tensors of ``kind``.

        A ZeRO stage divides its tensors of experts among the ranks that have them, and all others among all ranks.
        """
        spread = id(weight) in self._experts and kind not in DIVIDED.get(self._request.strategy, ())
        split = not self._split.isdisjoint(self._weights.get(id(weight), frozenset()))
        return (self._tensor if split else 1) * (self._request.expert_parallel if spread else 1)

    def applied(self, record: Record, held: Iterable[tuple[Tensor, str, frozenset[int]]]) -> Record:
        """The record of one rank; ``held`` are the tensors kept for each parameter, with their kind and storages."""
        factors = dict.fromkeys(self._split | self._along, self._tensor)
        for weight, kind, numbers in held:
            factors.update(dict.fromkeys(numbers, self.of_weight(weight, kind)))
        return Record(tuple(_divided(event, factors.get(event.number, 1)) for event in record.events))


def _divided(event: Event, by: int) -> Event:
    if by == 1:
        return event
    part = -(-abs(event.n_bytes) // by)
    return event._replace(n_bytes=part if event.n_bytes > 0 else -part)


def _experts(model: nn.Module, blocks: Blocks | None) -> Iterator[nn.Parameter]:
    """The parameters of experts: of lists of alike modules inside a block, and those that stack one for each expert."""
    lists = [one for one in alike_lists(model, 2) if blocks is None or one.modules is not blocks.modules]
    for found in lists:
        yield from found.modules.parameters()
    for module in model.modules():
        if not isinstance(module, _ConvNd):
            yield from (one for one in module.parameters(recurse=False) if one.dim() == 3)
