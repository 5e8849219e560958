"""Where in a model work is done: one frame per module path, found by identity and by the caller's place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import nn


def is_wrapper(module: nn.Module | None) -> bool:
    """Whether this is the wrapper that ``torch.compile`` returns for a module."""
    return type(module).__name__ == "OptimizedModule"  # importing its class takes a second


def is_compiled(module: nn.Module | None) -> bool:
    """Whether a module was compiled as a whole, be it by a wrapper or in its place (``module.compile()``)."""
    return is_wrapper(module) or getattr(module, "_compiled_call_impl", None) is not None


@dataclass(eq=False, slots=True)
class Frame:
    """A module's place in the tree. ``calls`` and ``recompute_calls`` are counted as the job runs."""

    path: str
    class_name: str
    parent: Frame | None
    module: nn.Module | None = None
    children: list[Frame] = field(default_factory=list)
    calls: int = 0
    recompute_calls: int = 0

    def walk(self) -> Iterator[Frame]:
        """This frame and all below it, in the order of the tree."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def in_compiled(self) -> bool:
        """Whether Python does not call the module itself: it, or one around it, was compiled as a whole."""
        above: Frame | None = self
        while above is not None:
            if is_compiled(above.module) and (above is not self or not is_wrapper(above.module)):
                return True
            above = above.parent
        return False

    @property
    def depth(self) -> int:
        """How many frames are above this one."""
        return 0 if self.parent is None else self.parent.depth + 1


class Tree:
    """The frames of a model, or of every module that turns up where no model was named.

    The root stands for all of the job: with a model it is the model itself.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self.root = Frame("", type(model).__name__ if model is not None else "", None, model)
        self._aliases: dict[int, list[Frame]] = {}
        self._parameters: dict[int, Frame] = {}
        self._kept: list[nn.Module] = []  # identities stay taken while they serve as keys
        if model is not None:
            self._plant(model, self.root)

    def frame(self, module: nn.Module, caller: Frame) -> Frame:
        """The frame of ``module`` when it is called from ``caller``: among several aliases, the one below that."""
        frames = self._aliases.get(id(module))
        if frames is None:
            return self._adopt(module, caller)
        if len(frames) == 1:
            return frames[0]
        place = caller
        while True:
            for frame in frames:
                if _is_below(frame, place):
                    return frame
            if place.parent is None:
                return frames[0]
            place = place.parent

    def owner(self, parameter: object) -> Frame:
        """The frame of the module that holds ``parameter``; the root where none does."""
        return self._parameters.get(id(parameter), self.root)

    def _adopt(self, module: nn.Module, caller: Frame) -> Frame:
        """A new frame for a module that the tree does not know, below its caller."""
        name = type(module).__name__
        taken = sum(child.path.rpartition(".")[2].partition("#")[0] == name for child in caller.children)
        name = f"{name}#{taken + 1}" if taken else name
        frame = Frame(f"{caller.path}.{name}" if caller.path else name, type(module).__name__, caller, module)
        caller.children.append(frame)
        self._plant(module, frame)
        return frame

    def _plant(self, module: nn.Module, root: Frame) -> None:
        frames = {"": root}
        for path, child in module.named_modules(remove_duplicate=False):
            self._kept.append(child)
            frame = root
            if path:
                parent = frames[path.rpartition(".")[0]]
                frame = Frame(f"{root.path}.{path}" if root.path else path, type(child).__name__, parent, child)
                frames[path] = frame
            known = self._aliases.setdefault(id(child), [])
            if frame.parent is not None and not any(one is frame for one in frame.parent.children):
                frame.parent.children.append(frame)
            known.append(frame)
            for parameter in child.parameters(recurse=False):
                self._parameters.setdefault(id(parameter), frame)


def _is_below(frame: Frame, place: Frame) -> bool:
    above: Frame | None = frame
    while above is not None:
        if above is place:
            return True
        above = above.parent
    return False
