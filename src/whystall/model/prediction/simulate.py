"""Two training steps on fake tensors: the allocations and their times, without data, without the device."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import set_checkpoint_early_stop

from whystall.errors import UsageError
from whystall.hardware import Accelerator, find
from whystall.model import hooks
from whystall.model.prediction import accelerator, blocks, checkpointing, cpu_kernels, parallel
from whystall.model.prediction.cost_listener import CostListener
from whystall.model.prediction.division import Division
from whystall.model.prediction.events import Place, Record
from whystall.model.prediction.optimizers import make_optimizer
from whystall.model.prediction.outcome import PHASES, Simulated, deeper
from whystall.model.prediction.peaks import kinds_of, peaks_of
from whystall.model.prediction.request import Request
from whystall.model.prediction.saved import ModuleListener
from whystall.model.prediction.tracker import Tracker
from whystall.model.prediction.values import Values
from whystall.model.profile import differentiable
from whystall.model.target import DTYPES, Target, made_target

_DEPTHS = (2, 3, 4)  # of repeated blocks; the last one is to be foretold from the others
_TOLERANCE = 0.005
_ON_CPU = {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}
STEPS = 2  # the second has the optimizer's state from its beginning, and the outputs of the first


def simulate(request: Request) -> Simulated:
    """The allocations of training steps under ``request``.

    A few of many repeated blocks are run, and the rest follows from them. On an accelerator the process must have had
    ``accelerator.set_up`` called.
    """
    with ExitStack() as stack:
        mesh = parallel.mesh_of(request, "cpu" if request.on_cpu else accelerator.NAME)
        stack.enter_context(_Fakes(allow_non_fake_inputs=True))
        if not request.on_cpu:  # an exception that passes through its guards in C++ ends the interpreter
            stack.enter_context(set_checkpoint_early_stop(False))
            stack.enter_context(accelerator.Routes(request.capability or (8, 0), request.attention))
        elif request.attention != "default":
            stack.enter_context(sdpa_kernel([_ON_CPU[request.attention]]))
        values = Values()
        with _tracker(request, values):
            prepared = _Prepared(request, mesh)
        found = prepared.run(values)
        if request.pipeline_parallel == 1:
            return found
        return replace(found, parameters=prepared.parameters, trainable=prepared.trainable)


class _Fakes(FakeTensorMode):
    """Fake tensors of one mode: a copied module must not get tensors of another one."""

    def __deepcopy__(self, _: Any) -> Self:
        return self


def _tracker(request: Request, values: Values) -> Tracker:
    if request.on_cpu:
        return Tracker(values, temporary=cpu_kernels.temporary_bytes)
    return Tracker(values, rounding=accelerator.GRANULE_BYTES)


class _Prepared:
    """A model as it will be trained, on fake tensors, with its inputs."""

    def __init__(self, request: Request, mesh: Any) -> None:
        self.request = request
        self.device = "cpu" if request.on_cpu else accelerator.NAME
        made = made_target(request.target, batch=request.batch, device=self.device, input_shape=request.input_shape)
        _as_if_real()
        self.target = _in_dtype(made, None if request.dtype is None else DTYPES[request.dtype])
        self.model = self.target.model.train(request.backward)
        self.blocks = blocks.repeated(self.model)
        if self.blocks is not None and request.checkpoint != "none":
            checkpointing.apply(self.blocks.modules, request.checkpoint)
        self.names = blocks.names_of(self.model)
        checkpointing.apply_to(self.model, self.names, request.recompute)
        self.parameters = sum(one.numel() for one in self.model.parameters())
        self.trainable = sum(one.numel() for one in self.model.parameters() if one.requires_grad)
        parallel.distribute(request, self.model, self.blocks, mesh)

    def run(self, values: Values) -> Simulated:
        """The whole model's step, of all its blocks or worked out from few."""
        found = self.blocks
        stages = self.request.pipeline_parallel
        if stages > 1 and (found is None or found.count % stages):
            raise UsageError(
                f"{0 if found is None else found.count} repeated blocks cannot be shared evenly by {stages} stages"
            )
        count = 0 if found is None else found.count // stages
        if found is None or count < blocks.LEAST_BLOCKS or not self.request.extrapolate or self.request.events:
            return self._at(values, None if stages == 1 else count)
        try:
            low, high, check = (self._at(values, depth) for depth in _DEPTHS)
        except (RuntimeError, LookupError, AttributeError, TypeError, ValueError):
            return self._at(values, count)  # a model that counts on all its blocks
        error = abs(deeper(low, high, _DEPTHS[2]).peak_bytes / check.peak_bytes - 1)
        if error > _TOLERANCE:
            return self._at(values, count)
        return replace(deeper(high, check, count), depths=_DEPTHS, depth_error=error)

    def _at(self, values: Values, depth: int | None) -> Simulated:
        if self.blocks is not None and depth is not None:
            self.blocks.cut(depth)
        tracker = _tracker(self.request, values)
        with tracker:
            return _Step(self, tracker).run()


class _Step:
    """The loop of a training script around a prepared model, under a tracker."""

    def __init__(self, prepared: _Prepared, tracker: Tracker) -> None:
        self._prepared, self._tracker, self._request = prepared, tracker, prepared.request
        self._model, self._target, self._blocks = prepared.model, prepared.target, prepared.blocks
        self._roles: dict[int, str] = {}
        self._section = ""
        self._modules: list[str] = []
        self._held: list[tuple[torch.Tensor, str, frozenset[int]]] = []  # for each parameter
        self._ends: dict[int, str] = {}  # id of a parameter that is not the blocks' → before or after them
        self._boundary_bytes = 0
        self._given: Sequence[int] = ()
        self._paths = {id(module): path for path, module in self._model.named_modules()}

    def run(self) -> Simulated:
        """Two steps, and their outcome."""
        request, tracker = self._request, self._tracker
        self._role("parameters", list(self._model.parameters()))
        self._role("buffers", list(self._model.buffers()))
        self._role("inputs", (self._target.args, dict(self._target.kwargs)))
        self._division = Division(request, tracker, self._model, self._blocks)
        self._held += [(one, "parameters", tracker.numbers(one)) for one in self._model.parameters()]
        for weight, n_bytes in parallel.buffers(request, self._model):
            number = tracker.borrow(n_bytes)
            self._roles[number] = "communication"
            self._held.append((weight, "communication", frozenset({number})))
        optimizers = []
        if request.backward and request.optimizer is not None:
            optimizers = make_optimizer(request.optimizer, self._model, request.kernels, on_cpu=request.on_cpu)
        costs = CostListener(
            tracker, _accelerator(request), [find(name) for name in request.timed_on], self._division.share
        )
        self._kept = ModuleListener(tracker, self._prepared.names, lambda: costs.latest_flops)
        tracker.listeners += [self._division, costs, self._kept]
        with self._watched(), parallel.following(tracker):
            self._steps(optimizers, costs)
        state = self._role("optimizer state", [one.state for one in optimizers])
        for optimizer in optimizers:
            self._held += [(weight, "optimizer state", tracker.numbers(one)) for weight, one in optimizer.state.items()]
        return self._outcome(costs, state)

    def _outcome(self, costs: CostListener, state: frozenset[int]) -> Simulated:
        record = self._division.applied(self._tracker.record, self._held)
        self._roles.update(dict.fromkeys(self._tracker.refilled, "communication"))
        sizes: dict[int, int] = {}
        for event in record.events:
            sizes[event.number] = max(sizes.get(event.number, 0), event.n_bytes)
        weights = list(self._model.parameters())
        trained = [one for one in weights if one.requires_grad]
        return Simulated(
            sections=peaks_of(record, self._roles, PHASES, self._owners(record)),
            work=costs.work,
            parameters=sum(one.numel() for one in weights),
            trainable=sum(one.numel() for one in trained),
            parameter_bytes=sum(map(self._n_bytes, weights)),
            gradient_bytes=sum(map(self._n_bytes, trained)),
            state_bytes=sum(sizes[number] for number in state),
            largest_unit_bytes=parallel.largest_unit_bytes(self._model, self._blocks, self._n_bytes),
            boundary_bytes=self._boundary_bytes,
            tensor_parallel_bytes=self._division.sent_bytes,
            sizes=None if self._blocks is None else blocks.sizes_of(self._model, self._blocks, self._given),
            blocks=None if self._blocks is None else (self._blocks.path, len(list(self._blocks.modules.children()))),
            assumed=tuple(self._tracker.values.assumed),
            uncovered=costs.uncovered,
            record=record,
            modules=self._kept.kept(kinds_of(record, self._roles), sizes),
        )

    def _n_bytes(self, weight: torch.Tensor) -> int:
        """A rank's bytes of a parameter."""
        return int(weight.numel() * weight.element_size()) // self._division.of_weight(weight)

    def _owners(self, record: Record) -> dict[int, str]:
        """The storages of modules before the blocks, and after them; only for stages of a pipeline."""
        if self._request.pipeline_parallel == 1:
            return {}
        born: dict[int, Place] = {}
        for event in record.events:
            born.setdefault(event.number, event.place)
        ends = {
            number: place.section for number, place in born.items() if place.section in (blocks.BEFORE, blocks.AFTER)
        }
        for weight, _, numbers in self._held:
            ends.update(dict.fromkeys(numbers, self._ends.get(id(weight), "")))
        return ends

    def _steps(self, optimizers: Sequence[torch.optim.Optimizer], costs: CostListener) -> None:
        """The loop that a training script has: its outputs live until the next step's replace them."""
        request = self._request
        cast = (
            nullcontext()
            if request.autocast is None
            else torch.autocast(self._prepared.device, DTYPES[request.autocast], cache_enabled=True)
        )
        for number in range(STEPS):
            for listener in (costs, self._kept, self._division):
                listener.reset()
            if number == 0 or not request.keeps_gradients:
                for weight in self._model.parameters():
                    weight.grad = None
            self._enter("forward")
            with torch.set_grad_enabled(request.backward), cast:
                output = self._model(*self._target.args, **self._target.kwargs)
            if not request.backward:
                continue
            target = differentiable(output)
            if target is not None:
                self._enter("backward")
                self._section = blocks.AFTER if self._blocks is not None else ""
                self._moved()
                _run_backward(target)
            self._note_gradients()
            if optimizers:
                self._enter("optimizer")
                for optimizer in optimizers:
                    optimizer.step()
                self._role("optimizer state", [one.state for one in optimizers])
        self._tracker.place = Place("end", "", "")
        for weight in self._model.parameters():
            weight.grad = None

    def _note_gradients(self) -> None:
        for weight in self._model.parameters():
            if weight.grad is not None:
                self._held.append((weight, "gradients", self._role("gradients", weight.grad)))

    # --- where the step is -------------------------------------------------------------------------------------------

    def _enter(self, phase: str) -> None:
        self._section = blocks.BEFORE if self._blocks is not None and phase != "optimizer" else ""
        self._modules.clear()
        self._tracker.place = Place(phase, self._section, "")

    def _moved(self) -> None:
        module = self._modules[-1] if self._modules else ""
        self._tracker.place = Place(self._tracker.place.phase, self._section, module)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        handles = hooks.watch(self._model, self._module_begins, self._module_ends)
        if self._blocks is not None:
            handles += blocks.watch(self._blocks, self._block_entered)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _block_entered(self, section: str) -> None:
        self._section = section
        self._moved()

    def _module_begins(self, module: nn.Module, given: Any) -> None:
        path = self._paths.get(id(module), "")
        if self._blocks is not None and self._tracker.place.phase == "forward":
            self._place(module, given)
        self._modules.append(path if self._blocks is None else self._blocks.general(path))
        self._kept.begins(module)
        self._moved()

    def _place(self, module: nn.Module, given: Any) -> None:
        """Notes on which side of the blocks a module's own parameters are used, and the first block's input."""
        if self._section in (blocks.BEFORE, blocks.AFTER):
            for weight in module.parameters(recurse=False):
                self._ends[id(weight)] = self._section
        first = next((one for one in tree_leaves(given) if isinstance(one, torch.Tensor)), None)
        if first is not None and module is next(iter(self._blocks.modules.children()), None):  # type: ignore[union-attr]
            along = self._request.tensor_parallel if self._request.sequence_parallel else 1
            self._boundary_bytes = first.numel() * first.element_size() // along
            self._given = tuple(first.shape)

    def _module_ends(self, _: nn.Module, __: Any, result: Any) -> None:
        self._kept.ends(result)
        if self._modules:
            self._modules.pop()
        self._moved()

    def _role(self, role: str, value: Any) -> frozenset[int]:
        self._tracker.hold(value)
        numbers = self._tracker.numbers(value)
        for number in numbers:
            self._roles.setdefault(number, role)
        return numbers


def _run_backward(target: torch.Tensor) -> None:
    """``target.backward()`` by a way that keeps an accelerator's routes for recomputation."""
    engine = torch.autograd.Variable._execution_engine  # noqa: SLF001 - the public call runs without modes of functions
    with torch.autograd.set_multithreading_enabled(False):
        engine.run_backward(
            (target,), (torch.ones_like(target),), False, False, (), allow_unreachable=True, accumulate_grad=True
        )


def _as_if_real() -> None:
    """Transformers takes another way through a model (masks that a real run leaves out) where tensors are fake."""
    utils: Any = sys.modules.get("transformers.utils.import_utils")
    if utils is not None and hasattr(utils, "is_fake_tensor"):
        utils.is_fake_tensor = lambda _: False


def _accelerator(request: Request) -> Accelerator | None:
    return None if request.on_cpu else find(request.device)


def _in_dtype(target: Target, dtype: torch.dtype | None) -> Target:
    """The model and its inputs in ``dtype``, by new parameters: fake ones cannot be cast."""
    if dtype is None:
        return target

    def cast(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    made: dict[int, nn.Parameter] = {}
    for module in target.model.modules():
        for name, weight in module._parameters.items():  # noqa: SLF001 - nn.Module has no public way to replace them
            if weight is not None:
                if id(weight) not in made:
                    made[id(weight)] = nn.Parameter(cast(weight.detach()), requires_grad=weight.requires_grad)
                module._parameters[name] = made[id(weight)]  # noqa: SLF001 - likewise
        for name, buffer in module._buffers.items():  # noqa: SLF001 - likewise
            module._buffers[name] = cast(buffer)  # noqa: SLF001 - likewise
    move = partial(tree_map, cast)
    return Target(target.model, move(target.args), move(dict(target.kwargs)))
