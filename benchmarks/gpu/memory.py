"""What training runs really hold on a CUDA device, by torch's own counters, beside what was predicted.

python -m benchmarks.gpu.memory OUT.json            # on the device
python -m benchmarks.gpu.memory OUT.json --against  # anywhere: predicts the same
"""

from __future__ import annotations

import gc
import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from whystall import predict
from whystall.errors import InputError

BENCHMARKS = Path(__file__).parents[1]
STEPS = 4
OPTIMIZERS: dict[str, Any] = {
    "adamw": torch.optim.AdamW,
    "adamw-fused": lambda weights: torch.optim.AdamW(weights, fused=True),
    "adamw-single": lambda weights: torch.optim.AdamW(weights, foreach=False),
    "sgd-momentum": lambda weights: torch.optim.SGD(weights, lr=0.01, momentum=0.9),
}
# File and function, optimizer, dtype of weights, autocast.
CASES: tuple[tuple[str, str, str, str], ...] = (
    *((f"gpu.models.{name}", "adamw", dtype, autocast) for name in
      ("gpt_medium", "gpt_medium_again", "llama_small", "vit_base", "resnet_like", "unet_like", "bert_base", "lstm")
      for dtype, autocast in (("fp32", ""), ("fp32", "bf16"), ("bf16", ""))),
    *(("gpu.models.gpt_medium", stepper, "bf16", "") for stepper in ("adamw-fused", "adamw-single", "sgd-momentum")),
    *((f"memory.jobs.{name}", "adamw", dtype, "") for name in
      ("gpt", "gpt_dropout", "gpt_checkpointed", "lora", "experts", "mixtral", "convolution", "depthwise", "residual",
       "perceptron", "llama", "gpt2", "bert", "vit", "t5", "hourglass", "encoder", "penalty", "distilled")
      for dtype in ("fp32", "bf16")),
    *((f"memory.fresh.{name}", "adamw", "fp32", "") for name in
      ("albert", "deberta", "opt", "bloom", "gemma", "bart", "resnet", "convnext", "swin", "segformer", "mobilenet")),
)  # fmt: skip


def _moved(value: Any, half: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.cuda()
    return value.to(torch.bfloat16) if half and value.is_floating_point() else value


def measured(case: tuple[str, str, str, str]) -> dict[str, Any]:
    """Peaks of the phases of a settled step, in bytes, and the step's time."""
    path, optimizer, dtype, autocast = case
    module, _, name = path.rpartition(".")
    cuda = torch.cuda
    torch.manual_seed(0)
    before = cuda.memory_allocated()
    with torch.device("cuda"):  # made there, which is sooner
        made = list(getattr(import_module(f"benchmarks.{module}"), name)())
    model = made.pop(0)
    model = model.cuda()
    if dtype == "bf16":
        model = model.to(torch.bfloat16)
    kwargs = made.pop() if isinstance(made[-1], dict) else {}
    args = [_moved(one, dtype == "bf16") for one in made]
    kwargs = {key: _moved(one, dtype == "bf16") for key, one in kwargs.items()}
    stepper = OPTIMIZERS[optimizer](model.parameters())
    told: dict[str, Any] = {"case": list(case), "before": before}
    cuda.reset_peak_memory_stats()
    times = []
    for step in range(STEPS):
        cuda.synchronize()
        began = time.perf_counter()
        phases = {}
        cuda.reset_peak_memory_stats()
        stepper.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=bool(autocast)):
            output = model(*args, **kwargs)
            loss = output if isinstance(output, torch.Tensor) else output.loss
        phases["forward"] = cuda.max_memory_allocated()
        cuda.reset_peak_memory_stats()
        loss.backward()
        phases["backward"] = cuda.max_memory_allocated()
        cuda.reset_peak_memory_stats()
        stepper.step()
        cuda.synchronize()
        phases["optimizer"] = cuda.max_memory_allocated()
        times.append(time.perf_counter() - began)
        told["step0" if step == 0 else "phases"] = phases
    told.update(
        peak=max(*told["step0"].values(), *told["phases"].values()), reserved=cuda.max_memory_reserved(), times_s=times
    )
    told["held"] = cuda.memory_allocated()
    del model, args, kwargs, made, stepper, output, loss
    gc.collect()
    cuda.empty_cache()
    told["after"] = cuda.memory_allocated()
    return told


def measure(path: Path) -> None:
    """All cases on this device."""
    torch.backends.cuda.matmul.allow_tf32 = False
    found = []
    for case in CASES:
        try:
            found.append(measured(case))
        except Exception as error:  # noqa: BLE001 - the other cases are to go on
            found.append({"case": list(case), "error": f"{type(error).__name__}: {error}"[:500]})
            gc.collect()
            torch.cuda.empty_cache()
        path.write_text(
            json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cases": found})
        )


def compare(path: Path) -> None:
    """What was measured, without what was held before the model was made, and what is predicted of that device."""
    found = json.loads(path.read_text())
    errors = []
    for told in found["cases"]:
        where, optimizer, dtype, autocast = told["case"]
        if "error" in told:
            print(where, optimizer, dtype, autocast, told["error"])
            continue
        file, _, name = where.rpartition(".")
        optimizer, _, kernels = optimizer.partition("-") if optimizer.startswith("adamw-") else (optimizer, "", "")
        options: dict[str, Any] = {"autocast": autocast} if autocast else {}
        target = f"{BENCHMARKS / file.replace('.', '/')}.py:{name}"
        try:
            guess = predict(target, device=found["device"], optimizer=optimizer, kernels=kernels or "default",
                            dtype=None if dtype == "fp32" else dtype, **options).peak_bytes  # fmt: skip
        except InputError as error:
            print(f"{where:32} {told['case'][1]:14} {dtype} {autocast:5} not predicted: {str(error)[:120]}", flush=True)
            continue
        truth = told["peak"] - told["before"]
        errors.append(guess / truth - 1)
        print(
            f"{where:32} {told['case'][1]:14} {dtype} {autocast:5} {truth:15,} {guess:15,} {errors[-1]:+8.2%}",
            flush=True,
        )
    sizes = sorted(abs(one) for one in errors)
    print(f"{len(sizes)} cases on {found['device']}: median {sizes[len(sizes) // 2]:.2%}, most {sizes[-1]:.2%}")


def main() -> None:
    """Measures, or compares."""
    (compare if "--against" in sys.argv else measure)(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
