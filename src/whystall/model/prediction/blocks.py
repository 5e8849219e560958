"""Models that repeat a block: the block, models with fewer of them, and the extrapolation to the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from whystall.model.prediction.conventions import TransformerSizes
from whystall.model.prediction.recompute_names import general

LEAST_BLOCKS = 6
BEFORE, AFTER = "before", "after"


@dataclass(frozen=True, slots=True)
class Blocks:
    """A list of modules that are all alike: where it stands in the model, and all of them."""

    path: str
    modules: nn.Module
    all: tuple[tuple[str, nn.Module], ...]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.all)

    def cut(self, depth: int) -> None:
        """Leaves the first ``depth`` of them in the model."""
        self.modules._modules.clear()  # noqa: SLF001 - that of a Sequential and a ModuleList alike
        self.modules._modules.update(self.all[:depth])  # noqa: SLF001 - likewise

    def general(self, path: str) -> str:
        """A module's path with a star for the number of its block."""
        head = f"{self.path}." if self.path else ""
        if not path.startswith(head):
            return path
        number, dot, rest = path[len(head) :].partition(".")
        return f"{head}*{dot}{rest}" if number.isdigit() else path


def sizes_of(model: nn.Module, found: Blocks, given: Sequence[int]) -> TransformerSizes | None:
    """The sizes of a language model whose first block gets ``given`` batch, sequence and width; ``None`` for others.

    A language model's vocabulary has the same size at its input and its output.
    """
    if len(given) != 3:
        return None
    batch, sequence, hidden = given
    inside = {id(one) for _, block in found.all for one in block.modules()}
    inner = [one.in_features for one in found.all[0][1].modules() if isinstance(one, nn.Linear)]
    ends = [one for one in model.modules() if id(one) not in inside]
    told = {one.out_features for one in ends if isinstance(one, nn.Linear)}
    words = told & {one.num_embeddings for one in ends if isinstance(one, nn.Embedding)}
    if not inner or not words or max(inner) < hidden:
        return None
    return TransformerSizes(
        sequence=sequence, batch=batch, hidden=hidden, inner=max(inner), layers=found.count, vocabulary=max(words)
    )


def repeated(model: nn.Module, least: int = 2) -> Blocks | None:
    """The list of alike blocks that holds most parameters, of at least ``least`` blocks."""
    found = list(alike_lists(model, least))
    if not found:
        return None
    return max(found, key=lambda one: sum(weight.numel() for weight in one.modules.parameters()))


def alike_lists(model: nn.Module, least: int) -> Iterator[Blocks]:
    """Every list of at least ``least`` modules that are all alike."""
    for path, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            children = list(module.children())
            if len(children) >= least and len({_likeness(child) for child in children}) == 1:
                yield Blocks(path, module, tuple(module.named_children()))


def names_of(model: nn.Module) -> dict[int, str]:
    """Every module's path by its id, with a star for the number of one in a list of alike modules."""
    lists = {one.path for one in alike_lists(model, 2)}
    return {id(module): general(path, lists) for path, module in model.named_modules()}


def _likeness(module: nn.Module) -> tuple[Any, ...]:
    """The common traits of two blocks that compute alike: their structure, and shapes and dtypes of their weights."""
    weights = tuple((name, one.shape, one.dtype, one.requires_grad) for name, one in module.named_parameters())
    return repr(module), weights


def watch(blocks: Blocks, entered: Callable[[str], None]) -> list[Any]:
    """Hooks that report the block of a forward and a backward pass: by number, or before or after all of them."""
    handles = []
    children = list(blocks.modules.children())
    for number, child in enumerate(children):
        last = number == len(children) - 1

        def before(_: Any, args: Any, kwargs: Any, number: int = number) -> None:
            entered(str(number))
            given = next((one for one in (*args, *kwargs.values()) if _has_gradient(one)), None)
            if given is not None and number == 0:
                given.register_hook(lambda _: entered(BEFORE))

        def after(_: Any, __: Any, result: Any, number: int = number, last: bool = last) -> None:
            if last:
                entered(AFTER)
            result = result[0] if isinstance(result, (tuple, list)) and result else result
            if _has_gradient(result):
                result.register_hook(lambda _: entered(str(number)))

        handles.append(child.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(child.register_forward_hook(after))
    return handles


def _has_gradient(value: Any) -> bool:
    return getattr(value, "requires_grad", False) and hasattr(value, "register_hook")
