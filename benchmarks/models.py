"""What counters say of the forward pass of Transformers architectures, each built small from its configuration.

Our counts must cover every operator; the table shows them beside FlopCounterMode and, where they are installed, beside
DeepSpeed, fvcore and calflops (their multiply-accumulates doubled), as a ratio to ours. Each peer's failure is its own:
it runs in a process of its own, because several leave torch patched when they crash.

python benchmarks/models.py [--markdown]
"""

from __future__ import annotations

import io
import logging
import multiprocessing
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from whystall import FlopCounter
from whystall.model import native
from whystall.model.results import ModelProfile

LEAST = 30
PATIENCE_S = 120
SIZES: dict[str, int | bool] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "pad_token_id": 0,
    "use_cache": False,
}
ARCHITECTURES = {
    "albert": "AlbertModel",
    "bert": "BertModel",
    "big_bird": "BigBirdModel",
    "bloom": "BloomForCausalLM",
    "cohere": "CohereForCausalLM",
    "convbert": "ConvBertModel",
    "deberta-v2": "DebertaV2Model",
    "electra": "ElectraModel",
    "falcon": "FalconForCausalLM",
    "fnet": "FNetModel",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "glm": "GlmForCausalLM",
    "gpt_neo": "GPTNeoForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "granite": "GraniteForCausalLM",
    "longformer": "LongformerModel",
    "mamba": "MambaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "modernbert": "ModernBertModel",
    "mpnet": "MPNetModel",
    "nemotron": "NemotronForCausalLM",
    "nystromformer": "NystromformerModel",
    "olmo": "OlmoForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "opt": "OPTForCausalLM",
    "phi": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "roberta": "RobertaModel",
    "roformer": "RoFormerModel",
    "stablelm": "StableLmForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
}


def build(name: str) -> tuple[Any, dict[str, Any]]:
    """A small model of the architecture with random weights, and its input."""
    config = transformers.AutoConfig.for_model(name)
    for key, value in SIZES.items():
        if hasattr(config, key):
            setattr(config, key, value)
    torch.manual_seed(0)
    model = getattr(transformers, ARCHITECTURES[name])(config).eval()
    return model, {"input_ids": torch.randint(1, 255, (2, 16))}


def count(model: Any, inputs: dict[str, Any]) -> ModelProfile:
    """Our count of the forward pass."""
    with FlopCounter(model) as counter, torch.no_grad():
        model(**inputs)
    return counter.profile


def training(name: str) -> ModelProfile:
    """Our count of two steps of training with checkpoints where the architecture has them, and of inference."""
    model, inputs = build(name)
    if model.supports_gradient_checkpointing:
        model.train().gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters())
    counter = FlopCounter(model)
    for seed in range(2):
        torch.manual_seed(seed)
        with counter:
            model(**inputs)[0].float().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.inference_mode():
                model(**inputs)
    return counter.profile


def with_flop_counter_mode(model: Any, inputs: dict[str, Any]) -> int:
    """PyTorch's count."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**inputs)
    return int(counter.get_total_flops())


def with_deepspeed(model: Any, inputs: dict[str, Any]) -> int:
    """DeepSpeed's multiply-accumulates, doubled."""
    from deepspeed.profiling.flops_profiler import get_model_profile  # noqa: PLC0415 - where it is installed

    return 2 * int(get_model_profile(model, kwargs=inputs, print_profile=False, as_string=False)[1])


def with_fvcore(model: Any, inputs: dict[str, Any]) -> int:
    """What fvcore calls FLOPs, which are multiply-accumulates, doubled."""
    from fvcore.nn import FlopCountAnalysis  # noqa: PLC0415 - where it is installed

    counted = FlopCountAnalysis(model, tuple(inputs.values()))
    return 2 * int(counted.unsupported_ops_warnings(False).uncalled_modules_warnings(False).total())


def with_calflops(model: Any, inputs: dict[str, Any]) -> int:
    """The multiply-accumulates of calflops, doubled."""
    from calflops import calculate_flops  # noqa: PLC0415 - where it is installed

    found = calculate_flops(model, kwargs=inputs, print_results=False, output_as_string=False)
    return 2 * int(found[1])


PEERS: dict[str, tuple[str, Callable[[Any, dict[str, Any]], int]]] = {
    "FlopCounterMode": ("torch", with_flop_counter_mode),
    "DeepSpeed": ("deepspeed.profiling.flops_profiler", with_deepspeed),
    "fvcore": ("fvcore", with_fvcore),
    "calflops": ("calflops", with_calflops),
}


def of_peer(peer: str, name: str) -> int | None:
    """What a peer says of an architecture, in a process of its own; ``None`` where it fails."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, peer, name))
    process.start()
    sender.close()
    found: int | None = receiver.recv() if receiver.poll(PATIENCE_S) else None
    process.kill()
    process.join()
    return found


def _answer(sender: Connection, peer: str, name: str) -> None:
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            sender.send(PEERS[peer][1](*build(name)))
    except Exception:  # noqa: BLE001 - whatever ends a peer is its answer
        sender.send(None)


def main(arguments: list[str]) -> int:
    """Prints a row per architecture; 1 if fewer than 30 are covered in full, or Python alone counts otherwise."""
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(1)  # a process that has threads must not fork
    peers = [peer for peer, (package, _) in PEERS.items() if find_spec(package.partition(".")[0]) is not None]
    for peer in peers:
        import_module(PEERS[peer][0])  # once, for all the processes
    rows = [["architecture", "parameters", "modules", "FLOPs forward", "uncovered", *peers]]
    covered = alike = 0
    for name in ARCHITECTURES:
        profile = count(*build(name))
        covered += not profile.uncovered
        with mock.patch.object(native, "load", return_value=None):
            by_python = training(name)
        alike += training(name) == by_python
        theirs = [of_peer(peer, name) for peer in peers]
        rows.append(
            [
                name,
                f"{profile.parameters:,}",
                str(len(profile.modules)),
                f"{profile.forward.model_flops:,}",
                ", ".join(one.name for one in profile.uncovered) or "none",
                *["fails" if one is None else f"{one / profile.forward.model_flops:.3f}" for one in theirs],
            ]
        )
        print(f"{name}: {rows[-1][3]}", file=sys.stderr)
    print(as_table(rows, markdown="--markdown" in arguments))
    print(f"\n{covered} of {len(ARCHITECTURES)} architectures are covered in full")
    if native.load() is None:
        print("counted by Python alone: the compiled part was not built (whystall doctor --build-counter)")
    else:
        print(f"{alike} count the same in training, compiled and by Python alone")
    return int(covered < LEAST or alike < len(ARCHITECTURES))


def as_table(rows: list[list[str]], *, markdown: bool) -> str:
    """The rows in columns."""
    if markdown:
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
