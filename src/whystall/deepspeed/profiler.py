"""``FlopsProfiler`` and ``get_model_profile`` with DeepSpeed's signatures, on whystall's counts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whystall.deepspeed import text
from whystall.deepspeed.config import FlopsProfilerConfig, read_config
from whystall.deepspeed.engine import facts_of
from whystall.deepspeed.strings import duration_to_string, macs_to_string, number_to_string, params_to_string
from whystall.model.meter import ForwardMeter, call, evaluating, input_of_shape, is_model

ATTRIBUTES = (
    "__flops__",
    "__macs__",
    "__params__",
    "__expert_params__",
    "__model_expert_params__",
    "__start_time__",
    "__duration__",
)
EXPERT_GROUP = "ep_size_"


class FlopsProfiler:
    """Counts and times the forward passes of a model between ``start_profile`` and ``stop_profile``.

    >>> import torch
    >>> profiler = FlopsProfiler(torch.nn.Linear(8, 8))
    >>> profiler.start_profile()
    >>> _ = profiler.model(torch.zeros(2, 8))
    >>> profiler.get_total_macs(), profiler.get_total_params()
    (128, 72)
    >>> profiler.end_profile()
    """

    def __init__(self, model: Any, ds_engine: Any = None, recompute_fwd_factor: float = 0.0) -> None:
        self.model = model
        self.ds_engine = ds_engine
        self.recompute_fwd_factor = recompute_fwd_factor
        self.started = False
        self.func_patched = False
        self._meter: ForwardMeter | None = None
        self._ignored: tuple[type, ...] = ()
        self._seconds: dict[int, float] = {}

    def start_profile(self, ignore_list: Sequence[type] | None = None) -> None:
        """Starts from zero. The work of modules of the types in ``ignore_list`` counts for those that contain them."""
        self.stop_profile()
        self.reset_profile()
        self._ignored = tuple(ignore_list or ())
        self._meter = ForwardMeter(self.model, self._publish)
        self._meter.attach()
        self.started = True

    def stop_profile(self) -> None:
        """Counts no further pass; the numbers stay."""
        if self._meter is not None:
            self._meter.detach()

    def reset_profile(self) -> None:
        """Sets the counts of every module to zero, and its numbers of parameters to the current ones."""
        for module in self.model.modules():
            dense, experts, all_experts = _parameters(module)
            values = (0, 0, dense, experts, all_experts, 0, 0)
            for name, value in zip(ATTRIBUTES, values, strict=True):
                setattr(module, name, value)

    def end_profile(self) -> None:
        """Takes every attribute away again."""
        if not self.started:
            return
        self.stop_profile()
        self.started = False
        self._meter = None
        for module in self.model.modules():
            for name in ATTRIBUTES:
                if name in vars(module):
                    delattr(module, name)

    def get_total_flops(self, as_string: bool = False) -> int | str:
        """All operations of the forward passes, elementwise ones included."""
        total = text.get_module_flops(self.model)
        return number_to_string(total) if as_string else total

    def get_total_macs(self, as_string: bool = False) -> int | str:
        """The multiply-accumulates of products, convolutions, recurrences and attention."""
        total = text.get_module_macs(self.model)
        return macs_to_string(total) if as_string else total

    def get_total_duration(self, as_string: bool = False) -> float | str:
        """The seconds of the forward passes."""
        total = text.get_module_duration(self.model)
        return duration_to_string(total) if as_string else total

    def get_total_params(self, as_string: bool = False) -> int | str:
        """The parameters of this rank, those of its experts included."""
        total: int = self.model.__params__ + self.model.__expert_params__
        return params_to_string(total) if as_string else total

    def is_expert_tensor_parallelism_enabled(self) -> bool:
        """Whether a mixture-of-experts layer of DeepSpeed enables it."""
        for module in self.model.modules():
            if hasattr(module, "enable_expert_tensor_parallelism"):
                return bool(module.enable_expert_tensor_parallelism)
        return False

    def print_model_profile(
        self,
        profile_step: int = 1,
        module_depth: int = -1,
        top_modules: int = 1,
        detailed: bool = True,
        output_file: str | None = None,
    ) -> None:
        """Prints the profile, or writes it to ``output_file``; nothing before ``start_profile``."""
        if not self.started:
            return
        self.flops = self.get_total_flops()
        self.macs = self.get_total_macs()
        self.params = self.get_total_params()
        facts = facts_of(self.ds_engine, expert_tensor_parallel=self.is_expert_tensor_parallelism_enabled())
        parts = [
            text.summary(self.model, facts, profile_step, self.recompute_fwd_factor),
            text.TITLES["aggregated"],
            text.aggregated(self.model, module_depth, top_modules),
        ]
        if detailed:
            parts += [text.TITLES["detailed"], text.detailed(self.model)]
        parts.append(text.TITLES["end"])
        _write("\n".join(parts) + "\n", output_file)

    def print_model_aggregated_profile(self, module_depth: int = -1, top_modules: int = 1) -> None:
        """Prints the classes that hold most parameters, MACs and latency at each depth."""
        if "__flops__" not in vars(self.model):
            hint = "no __flops__ attribute in the model, call this function after start_profile and before end_profile"
            _write(f"{hint}\n", None)
            return
        _write(text.aggregated(self.model, module_depth, top_modules) + "\n", None)

    def _publish(self) -> None:
        """Writes the readings onto the modules."""
        if self._meter is None:
            return
        owners = _owners(self.model, self._ignored)
        for module in self.model.modules():
            module.__flops__ = module.__macs__ = module.__duration__ = 0
        for reading in self._meter.readings():
            owner = owners[id(reading.module)]
            owner.__flops__ += reading.all_flops
            owner.__macs__ += reading.model_flops // 2
            if owner is reading.module:
                owner.__duration__ = self._seconds.get(id(owner), reading.seconds)


def get_model_profile(
    model: Any,
    input_shape: tuple[int, ...] | None = None,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    print_profile: bool = True,
    detailed: bool = True,
    module_depth: int = -1,
    top_modules: int = 1,
    warm_up: int = 1,
    as_string: bool = True,
    output_file: str | None = None,
    ignore_modules: Sequence[type] | None = None,
    mode: str = "forward",
) -> tuple[int | str, int | str, int | str]:
    """Operations, multiply-accumulates and parameters of one forward pass (or ``generate``) in evaluation mode.

    ``input_shape`` makes the only positional argument: of the parameters' dtype, or token ids for a model that begins
    with an embedding. Afterwards the model's modules are in their former modes.

    >>> import torch
    >>> get_model_profile(torch.nn.Linear(8, 8), (2, 8), print_profile=False, as_string=False)
    (272, 128, 72)
    """
    if not is_model(model):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if mode not in {"forward", "generate"}:
        raise ValueError(f"mode must be 'forward' or 'generate', not {mode!r}")
    arguments, named = list(args or ()), dict(kwargs or {})
    if input_shape is not None:
        arguments = [input_of_shape(model, input_shape)]
    if not arguments and not named:
        raise ValueError("args and/or kwargs must be specified if input_shape is None")
    profiler = FlopsProfiler(model)
    with evaluating(model):
        for _ in range(warm_up):
            call(model, arguments, named, generate=mode == "generate")
        timer = ForwardMeter(model, counts=False)
        timer.attach()
        try:
            call(model, arguments, named, generate=mode == "generate")
        finally:
            timer.detach()
        profiler._seconds = {id(reading.module): reading.seconds for reading in timer.readings()}  # noqa: SLF001 - its own
        try:
            profiler.start_profile(ignore_list=ignore_modules)
            call(model, arguments, named, generate=mode == "generate")
            if print_profile:
                profiler.print_model_profile(warm_up, module_depth, top_modules, detailed, output_file)
            return (
                profiler.get_total_flops(as_string),
                profiler.get_total_macs(as_string),
                profiler.get_total_params(as_string),
            )
        finally:
            profiler.end_profile()


def profile_at_step(
    model: Any, config: FlopsProfilerConfig | str | Path | Mapping[str, Any], ds_engine: Any = None
) -> FlopsProfiler:
    """Profiles pass number ``profile_step`` of ``model`` as a DeepSpeed configuration asks, prints it, and is gone.

    Without an engine a step is a forward pass in training mode. Where the block is not enabled, nothing happens.
    """
    settings = config if isinstance(config, FlopsProfilerConfig) else read_config(config)
    profiler = FlopsProfiler(model, ds_engine, settings.recompute_fwd_factor)
    if not settings.enabled:
        return profiler
    passes = 0

    def before(module: Any, _inputs: Any) -> None:
        nonlocal passes
        passes += module.training
        if passes == settings.profile_step and not profiler.started:
            first.remove()
            profiler.start_profile()
            profiler._meter._before(module, _inputs)  # type: ignore[union-attr]  # noqa: SLF001 - this pass began already
            last.append(model.register_forward_hook(after))

    def after(_module: Any, _inputs: Any, _outputs: Any) -> None:
        last.pop().remove()
        profiler.print_model_profile(
            settings.profile_step, settings.module_depth, settings.top_modules, settings.detailed, settings.output_file
        )
        profiler.end_profile()

    last: list[Any] = []
    first = model.register_forward_pre_hook(before)
    return profiler


def _owners(model: Any, ignored: tuple[type, ...]) -> dict[int, Any]:
    """For each module the one that gets its work: itself, or the nearest ancestor that is not ignored."""
    owners = {id(model): model}

    def walk(module: Any) -> None:
        for child in module.children():
            if id(child) not in owners:
                owners[id(child)] = owners[id(module)] if type(child) in ignored else child
                walk(child)

    walk(model)
    return owners


def _parameters(module: Any) -> tuple[int, int, int]:
    """Parameters outside experts, those of this rank's experts, and those of all ranks' experts."""
    dense = experts = all_experts = 0
    for parameter in module.parameters():
        count = getattr(parameter, "ds_numel", None) or parameter.numel()  # ZeRO-3 keeps the whole size aside
        group = str(getattr(parameter, "group_name", ""))
        ranks = group.removeprefix(EXPERT_GROUP) if group.startswith(EXPERT_GROUP) else ""
        if ranks.isdigit() and int(ranks):
            experts += count
            all_experts += count * int(ranks)
        else:
            dense += count
    return dense, experts, all_experts


def _write(content: str, output_file: str | None) -> None:
    if not output_file:
        sys.stdout.write(content)
        return
    path = Path(output_file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
