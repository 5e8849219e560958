"""The calls of an execution trace that questions about values are asked of, and what each of them does to memory.

A call is an operator with a cost, a view, an operator of another library, or one that contains none: all inside it
belongs to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from whystall.analysis.dataflow.recorded import ITSELF, OUTSIDE, counts, declared, tensors_in, within, written_by
from whystall.run_folder.layout import HELD_SCOPE, READ_SCOPE, STEP_SCOPE
from whystall.trace.readers.execution_trace import ExecutionTrace, Node
from whystall.vocabulary.random_operators import random_operators

_OPERATORS: Final = "aten::"
_NO_MEMORY: Final = ("profiler::", "prim::")
_ENGINE: Final = "autograd::engine"
_WITHOUT_CONTENT: Final = "empty"
_LIFTED: Final = "aten::lift_fresh"
"""Marks a tensor that Python made of something else (`torch.from_numpy`, `torch.tensor`)."""
_LENT: Final = frozenset({"aten::resolve_conj", "aten::resolve_neg"})
"""Operators that `Tensor.numpy` and `Tensor.tolist` call outside of any other."""
_STORAGE: Final = "Storage "
"""Type of an argument that is memory and no tensor, as a loader's process hands it over, or a pickle."""


@dataclass(slots=True)
class ChosenCall:
    """A call.

    Args:
        place: Its place in the trace's nodes.
        node: The node.
        step: The step it belongs to, from 0.
        backward: Whether it is part of a backward pass.
        writes: The storages whose content it changes, by its schema and by those of the calls inside it.
        opaque: Whether only its library knows what it does: it may write to all that it is given.
        random: Whether its results differ from call to call.
        blank: Whether it makes memory without content.
        outside: Whether it shows memory of the host that no operator has filled: of a list, of a loader's process.
        lent: Whether it shares the host's memory with Python: with numpy, or with a list.
        sized: Whether the size of its result says something about the content of its arguments.
        learned: Whether autograd goes back through it.
    """

    place: int
    node: Node
    step: int
    backward: bool
    writes: set[int] = field(default_factory=set)
    opaque: bool = False
    random: bool = False
    blank: bool = False
    outside: bool = False
    lent: bool = False
    sized: bool = False
    learned: bool = False

    @property
    def made(self) -> list[int]:
        """The storages that it makes, in the order of its results."""
        given = {one.storage for one in tensors_in(self.node.given)}
        return [
            one for one in dict.fromkeys(each.storage for each in tensors_in(self.node.returned)) if one not in given
        ]

    @property
    def written(self) -> list[int]:
        """The storages among its arguments that it writes."""
        given = dict.fromkeys(one.storage for one in tensors_in(self.node.given))
        return [one for one in given if one in self.writes]

    @property
    def shows_only(self) -> bool:
        """Whether all it does is to show the memory that it is given in another way."""
        return not self.made and not self.written and any(True for _ in tensors_in(self.node.returned))


@dataclass(frozen=True, slots=True)
class ChosenCalls:
    """The calls in the order in which they began, and the storages that the job held from the beginning to the end.

    ``reads_unseen``: some tensors were read by no call (a pickle, another library).
    """

    calls: list[ChosenCall]
    held: frozenset[int]
    steps: int
    reads_unseen: bool = False


def chosen_calls(execution: ExecutionTrace) -> ChosenCalls:
    """The calls of the steps of an execution trace."""
    nodes = execution.nodes
    backward = within(nodes, lambda node: node.backward or node.name.startswith(_ENGINE))
    marks = within(nodes, lambda node: node.name in (HELD_SCOPE, STEP_SCOPE))
    state = within(nodes, _is_chosen)
    parents = {node.parent for node in nodes}
    learned = _learned(nodes, backward)
    chosen: dict[int, ChosenCall] = {}
    out: list[ChosenCall] = []
    step = 0
    for place, node in enumerate(nodes):
        if marks[place] != OUTSIDE:
            step += node.name == STEP_SCOPE
            continue
        around = chosen.get(node.parent)
        if around is None and (state[place] == ITSELF or _is_alone(node, parents)):
            around = ChosenCall(place, node, step, backward[place] != OUTSIDE)
            around.opaque = not node.name.startswith(_OPERATORS)
            around.blank = _WITHOUT_CONTENT in node.name
            around.outside = node.name == _LIFTED or any(_STORAGE in part for part, _ in declared(node))
            around.lent = node.name in _LENT or node.name == _LIFTED
            out.append(around)
        if around is not None:
            chosen[node.number] = around
            around.writes.update(one.storage for one in written_by(node))
            around.writes.update(_statistics(node))
            around.random |= _is_random(node)
            around.sized |= node.name in random_operators().sized_by_content
            around.learned |= place in learned
    return ChosenCalls(out, _held(nodes), step + 1, any(node.name == READ_SCOPE for node in nodes))


def _is_chosen(node: Node) -> bool:
    if not node.schema or node.name.startswith(_NO_MEMORY):
        return False
    return counts(node) or not node.name.startswith(_OPERATORS)


def _is_alone(node: Node, parents: set[int]) -> bool:
    """Whether a call contains no other one: an operator, or work of a library that is no operator."""
    if node.number in parents or node.backward:
        return False
    return bool(node.schema) or any(True for _ in tensors_in(node.given))


def _statistics(node: Node) -> Iterator[int]:
    """The storages of running statistics, which a normalisation writes though most schemas do not say so."""
    named = [(part.rpartition(" ")[2].partition("=")[0], value) for part, value in declared(node)]
    if dict(named).get("training", True) is False:
        return
    for name, value in named:
        if name.startswith("running_"):
            yield from (one.storage for one in tensors_in(value))


def _is_random(node: Node) -> bool:
    known = random_operators()
    named = {part.rpartition(" ")[2].partition("=")[0]: value for part, value in declared(node)}
    if "generator" in named:
        return True
    if named.get("train") is False:
        return False
    chances = [value for name, value in named.items() if name in known.chance_by]
    return node.name in known.names and (not chances or any(value != 0 for value in chances))


def _learned(nodes: list[Node], backward: list[int]) -> set[int]:
    """The calls that autograd goes back through: for each backward node's number, the last call to begin with it.

    A number grows with the call that autograd remembers: calls before it show the same one.
    """
    back = {node.sequence for node in nodes if node.backward and node.sequence >= 0}
    last: dict[int, int] = {}
    for place, node in enumerate(nodes):
        if node.schema and backward[place] == OUTSIDE and node.sequence in back:
            last[node.sequence] = place
    return set(last.values())


def _held(nodes: list[Node]) -> frozenset[int]:
    """The storages that both scopes of held memory name."""
    scopes: dict[int, set[int]] = {node.number: set() for node in nodes if node.name == HELD_SCOPE}
    for node in nodes:
        if node.parent in scopes:
            scopes[node.parent].update(one.storage for one in tensors_in(node.given))
    found = list(scopes.values())
    return frozenset(found[0].intersection(*found[1:])) if len(found) > 1 else frozenset()
