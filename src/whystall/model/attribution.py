"""Finds an operator's module and phase, from PyTorch's own bookkeeping.

Forward: module hooks keep a stack of frames. Backward: every autograd node carries the number that was current when it
was made (`_sequence_nr`), so the module of a backward operator is the module on the stack at that number. Nothing is
attached to tensors or to the autograd graph, so the user's code cannot trip over it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Literal

import torch

from whystall.model.frames import Frame, Tree
from whystall.model.gradients import is_weight_gradient
from whystall.model.lanes import Call, Lane, ModuleSlot, ModuleSlots

Part = Literal["forward", "input_gradient", "weight_gradient", "backward", "recompute", "optimizer"]

NO_TASK = -1
NO_NUMBER = 2**63  # AccumulateGrad nodes carry the largest number there is

_task_id = torch._C._current_graph_task_id  # noqa: SLF001 - the engine's state has no public accessor
_current_node = torch._C._current_autograd_node  # noqa: SLF001 - likewise
_sequence_number = torch._C._autograd._get_sequence_nr  # noqa: SLF001 - likewise


class ThreadState:
    """One thread's place in the model: the stack of frames, the numbers seen, and the counts by place."""

    def __init__(self, tree: Tree, forward_of: ThreadState | None = None) -> None:
        self.tree = tree
        self.tables = ModuleSlots()
        self.frame = tree.root
        self.stack: list[tuple[int, Frame, Part]] = []
        self.part: Part = "forward"
        self.place = self.tables[self.frame, self.part]
        self.lane: Lane | None = None
        self._starts = [0]
        self._frames = [tree.root]
        self._task = NO_TASK
        self._number = 0
        self._node_number = NO_TASK
        self._node_frame = tree.root
        self._ordinal = 0
        self._main = forward_of  # the thread whose forward pass this one's backward pass follows
        self._made_nodes_in_backward = False
        self._owners: dict[int, ThreadState] = {}

    # --- forward ------------------------------------------------------------------------------------------------------

    def enter(self, module: Any) -> None:
        """A module's forward begins."""
        task = _task_id()
        part: Part = self.part
        caller = self.frame
        if task != NO_TASK and part != "recompute":
            part = "recompute"
            caller = self._frame_of_node(_current_node())
            self._made_nodes_in_backward = True
        elif task == NO_TASK and part != "forward":  # a closure of the optimizer
            part = "forward"
        frame = self.tree.frame(module, caller)
        if part == "recompute":
            frame.recompute_calls += 1
        else:
            frame.calls += 1
        self.stack.append((id(module), self.frame, self.part))
        self._move(frame, part)

    def leave(self, module: Any) -> None:
        """A module's forward ended, by a result or by an exception."""
        place = len(self.stack) - 1
        while place >= 0 and self.stack[place][0] != id(module):
            place -= 1
        if place < 0:  # it began before the count did
            return
        _, frame, part = self.stack[place]
        del self.stack[place:]
        self._move(frame, part)

    def switch(self, part: Part) -> Part:
        """Counts later operators as ``part``; returns the part until now."""
        before = self.part
        self._move(self.frame, part)
        return before

    def _move(self, frame: Frame, part: Part) -> None:
        self.frame, self.part = frame, part
        self.place = self.tables[frame, part]
        if self.lane is not None:
            self.lane.set_place(self.place.number, part in {"recompute", "optimizer"})
        self._mark(_sequence_number(), frame)

    def _mark(self, number: int, frame: Frame) -> None:
        """Nodes made from ``number`` on belong to ``frame``."""
        while self._starts[-1] > number:  # numbers of a thread only grow, except those marked ahead
            self._starts.pop()
            self._frames.pop()
        if self._starts[-1] == number:
            self._frames[-1] = frame
        else:
            self._starts.append(number)
            self._frames.append(frame)

    # --- every operator -----------------------------------------------------------------------------------------------

    def current(self, call: Call) -> ModuleSlot:
        """Where a call belongs that runs now; for a product, also which gradient it computes."""
        task = _task_id()
        if task == NO_TASK:
            if self._task != NO_TASK:
                self._end_backward()
            return self.place
        if self.part in {"recompute", "optimizer"}:  # the latter if gradients are used as soon as they exist
            return self.place
        node = _current_node()
        if task != self._task:
            self._begin_backward(task)
        if node is None:
            return self.tables[self.tree.root, "backward"]
        number = node._sequence_nr()  # noqa: SLF001 - how the profiler links backward to forward; no public accessor
        if number != self._node_number or number >= NO_NUMBER:
            self._node_number, self._ordinal = number, 0
            self._node_frame = self._frame_of_node(node)
        frame = self._node_frame
        if torch.is_grad_enabled():
            if _is_recomputing(node):
                return self.tables[frame, "recompute"]
            self._mark_made_in_backward(frame)
        return self.tables[frame, self._gradient(node) if call.is_product else "backward"]

    def _begin_backward(self, task: int) -> None:
        owner = self if self._main is None or self._made_nodes_in_backward else self._main
        self._owners.setdefault(task, owner)
        self._made_nodes_in_backward = False
        self._task = task
        self._number = max(_sequence_number() - 1, 0)
        self._node_number = NO_TASK

    def _end_backward(self) -> None:
        self._task = NO_TASK
        self._mark(max(_sequence_number() - 1, 0), self.frame)

    def _mark_made_in_backward(self, frame: Frame) -> None:
        """Gradients of gradients: the nodes that a backward operator makes belong to its module too."""
        number = _sequence_number()
        if number > self._number:
            self._mark(self._number, frame)
            self._number = number

    def _frame_of_node(self, node: Any) -> Frame:
        if node is None:
            return self.tree.root
        number = node._sequence_nr()  # noqa: SLF001 - as above
        if number >= NO_NUMBER:
            return self.tree.owner(getattr(node, "variable", None))
        maker = self._owners.get(_task_id(), self if self._main is None else self._main)
        return maker._frames[bisect_right(maker._starts, number) - 1]  # noqa: SLF001 - another thread's own kind

    def _gradient(self, node: Any) -> Part:
        weight = is_weight_gradient(node, self._ordinal)
        self._ordinal += 1
        if weight is None:
            return "backward"
        return "weight_gradient" if weight else "input_gradient"


def _is_recomputing(node: Any) -> bool:
    """Whether checkpointing runs forward code inside ``node``.

    Its own backward, or a hook that unpacks its saved tensors.
    """
    if node.name() == "CheckpointFunctionBackward":
        return True
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # noqa: SLF001 - says who packs tensors now
    return hooks is not None and "_recomputation_hook" in getattr(hooks[0], "__qualname__", "")
