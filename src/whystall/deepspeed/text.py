"""The text of DeepSpeed's profile, line for line: summary, aggregated profile, detailed profile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from whystall.deepspeed.engine import EngineFacts
from whystall.deepspeed.strings import (
    DEFAULT_PRECISION,
    duration_to_string,
    flops_to_string,
    macs_to_string,
    number_to_string,
    params_to_string,
)

NOTATIONS = """Notations:
data parallel size (dp_size), model parallel size(mp_size),
number of parameters (params), number of multiply-accumulate operations(MACs),
number of floating-point operations (flops), floating-point operations per second (FLOPS),
fwd latency (forward propagation latency), bwd latency (backward propagation latency),
step (weights update latency), iter latency (sum of fwd, bwd and step latency)
"""
ORDER = (
    "Each module profile is listed after its name in the following order: \n"
    "params, percentage of total params, MACs, percentage of total MACs, fwd latency, percentage of total fwd latency, "
    "fwd FLOPS"
)
NOTES = (
    "\nNote: 1. A module can have torch.nn.module or torch.nn.functional to compute logits (e.g. CrossEntropyLoss). "
    "They are not counted as submodules, thus not to be printed out. However they make up the difference between a "
    "parent's MACs (or latency) and the sum of its submodules'.\n"
    "2. Number of floating-point operations is a theoretical estimation, thus FLOPS computed using that could be "
    "larger "
    "than the maximum system throughput.\n"
    "3. The fwd latency listed in the top module's profile is directly captured at the module forward function in "
    "PyTorch, thus it's less than the fwd latency shown above which is captured in DeepSpeed.\n"
)
TITLES = {
    "summary": "\n-------------------------- DeepSpeed Flops Profiler --------------------------",
    "aggregated": "\n----------------------------- Aggregated Profile per GPU -----------------------------",
    "detailed": "\n------------------------------ Detailed Profile per GPU ------------------------------",
    "end": "------------------------------------------------------------------------------",
}


def get_module_flops(module: Any) -> int:
    """All operations of the forward passes of a module and its submodules."""
    return sum(one.__flops__ for one in module.modules())


def get_module_macs(module: Any) -> int:
    """All multiply-accumulates of a module and its submodules."""
    return sum(one.__macs__ for one in module.modules())


def get_module_duration(module: Any) -> float:
    """The seconds of a module's forward passes; of a container that is never called, those of its children."""
    return module.__duration__ or sum(get_module_duration(child) for child in module.children())


def line(name: str, value: object) -> str:
    """A line of the summary."""
    return f"{name:<70}  {value!s:<8}"


def summary(model: Any, facts: EngineFacts, step: int, recompute_fwd_factor: float) -> str:
    """The first part: totals of the model and the job."""
    flops, macs = get_module_flops(model), get_module_macs(model)
    latency = facts.forward_s if facts.forward_s is not None else get_module_duration(model)
    lines = [TITLES["summary"], f"Profile Summary at step {step}:", NOTATIONS]
    lines += [line(name, value) for name, value in facts.sizes()]
    lines += [line("params per GPU: ", params_to_string(model.__params__ + model.__expert_params__))]
    lines += _params_of_model(model, facts)
    lines += [
        line("fwd MACs per GPU: ", macs_to_string(macs)),
        line("fwd flops per GPU: ", number_to_string(flops)),
        line("fwd flops of model = fwd flops per GPU * mp_size: ", number_to_string(flops * facts.model_parallel)),
        line("fwd latency: ", duration_to_string(latency)),
        line("fwd FLOPS per GPU = fwd flops per GPU / fwd latency: ", flops_to_string(_over(flops, latency))),
    ]
    if facts.backward_s is not None and facts.step_s is not None:
        lines += _iteration(flops, latency, facts.backward_s, facts.step_s, 2 + recompute_fwd_factor, facts)
    return "\n".join(lines)


def _params_of_model(model: Any, facts: EngineFacts) -> list[str]:
    dense = model.__params__ * facts.model_parallel
    experts = model.__model_expert_params__ * facts.expert_tensor_parallel
    if not experts:
        return [line("params of model = params per GPU * mp_size: ", params_to_string(dense))]
    return [
        line("params of model: ", params_to_string(dense + experts)),
        line("   non-expert params of model: ", params_to_string(dense)),
        line("   expert params of model: ", params_to_string(experts)),
    ]


def _iteration(
    flops: int, forward: float, backward: float, step: float, factor: float, facts: EngineFacts
) -> list[str]:
    whole = forward + backward + step
    both = factor + 1
    names = (
        f"bwd FLOPS per GPU = {factor:g} * fwd flops per GPU / bwd latency: ",
        f"fwd+bwd FLOPS per GPU = {both:g} * fwd flops per GPU / (fwd+bwd latency): ",
        f"FLOPS per GPU = {both:g} * fwd flops per GPU / iter latency: ",
    )
    return [
        line("bwd latency: ", duration_to_string(backward)),
        line(names[0], flops_to_string(_over(factor * flops, backward))),
        line(names[1], flops_to_string(_over(both * flops, forward + backward))),
        line("step latency: ", duration_to_string(step)),
        line("iter latency: ", duration_to_string(whole)),
        line(names[2], flops_to_string(_over(both * flops, whole))),
        line("samples/second: ", round(_over(facts.samples, whole), DEFAULT_PRECISION)),
    ]


def aggregated(model: Any, module_depth: int = -1, top_modules: int = 1) -> str:
    """The second part: the classes that hold most parameters, MACs and latency at each depth, the deepest included."""
    depths: list[defaultdict[str, list[float]]] = []

    def walk(module: Any, depth: int) -> None:
        if depth == len(depths):
            depths.append(defaultdict(lambda: [0, 0, 0.0]))
        sums = depths[depth][type(module).__name__]
        sums[0] += module.__params__ + module.__expert_params__
        sums[1] += get_module_macs(module)
        sums[2] += get_module_duration(module)
        for child in module.children():
            walk(child, depth + 1)

    walk(model, 0)
    shown = len(depths) if module_depth == -1 else min(module_depth + 1, len(depths))
    lines = [f"Top {top_modules} modules in terms of params, MACs or fwd latency at different model depths:"]
    for depth, sums in enumerate(depths[:shown]):
        lines += [
            f"depth {depth}:",
            f"    params      - {_top(sums, 0, top_modules, params_to_string)}",
            f"    MACs        - {_top(sums, 1, top_modules, macs_to_string)}",
            f"    fwd latency - {_top(sums, 2, top_modules, duration_to_string)}",
        ]
    return "\n".join(lines)


def _top(sums: dict[str, list[float]], place: int, most: int, text: Callable[[float], str]) -> dict[str, str]:
    ordered = sorted(sums.items(), key=lambda item: item[1][place], reverse=True)
    return {name: text(values[place]) for name, values in ordered[:most]}


def detailed(model: Any) -> str:
    """The third part: the model as it prints itself, each module with its share. The model is not touched."""
    totals = (
        model.__params__ + model.__expert_params__,
        get_module_macs(model),
        get_module_duration(model),
    )
    return f"{ORDER}\n{NOTES}\n{_module_text(model, totals)}"


def _module_text(module: Any, totals: tuple[int, int, float]) -> str:
    extra = _facts(module, totals)
    own = module.extra_repr()
    first = f"{extra}, {own}" if own else extra
    children = [f"({name}): {_indented(_module_text(child, totals))}" for name, child in _children(module)]
    inner = [*first.split("\n"), *children]
    if len(inner) == 1 and not children:
        return f"{module._get_name()}({inner[0]})"  # noqa: SLF001 - the name that a module prints
    return f"{module._get_name()}(\n  " + "\n  ".join(inner) + "\n)"  # noqa: SLF001 - likewise


def _children(module: Any) -> list[tuple[str, Any]]:
    """The children by name, aliases included, as ``print(model)`` shows them."""
    return [(name, child) for name, child in module._modules.items() if child is not None]  # noqa: SLF001 - likewise


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")


def _facts(module: Any, totals: tuple[int, int, float]) -> str:
    parameters, macs, duration = (
        module.__params__ + module.__expert_params__,
        get_module_macs(module),
        get_module_duration(module),
    )
    return ", ".join(
        [
            f"{params_to_string(parameters)} = {_percent(parameters, totals[0]):g}% Params",
            f"{macs_to_string(macs)} = {_percent(macs, totals[1]):g}% MACs",
            f"{duration_to_string(duration)} = {_percent(duration, totals[2]):g}% latency",
            flops_to_string(round(_over(get_module_flops(module), duration), DEFAULT_PRECISION)),
        ]
    )


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, DEFAULT_PRECISION) if whole else 0


def _over(amount: float, seconds: float) -> float:
    return amount / seconds if seconds else 0
