"""Predicted against measured peaks of small training runs on this CPU, and how often "it fits" would have been wrong.

python -m benchmarks.memory [--markdown] [--fresh] [JOB …]
"""

from __future__ import annotations

import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from whystall.model.prediction.predict import predict
from whystall.model.prediction.simulator import Simulator

HERE = Path(__file__).parent
PATIENCE_S = 300
RANKS = 2
MARGINS = [one / 100 for one in range(80, 121)]  # devices whose memory is so much of what a run really holds


class Run(NamedTuple):
    """One training run: a job, its optimizer, dtype and strategy; ``known`` names a miss that is understood."""

    job: str
    optimizer: str = "adamw"
    dtype: str = "fp32"
    strategy: str = "none"
    known: str = ""
    file: str = "jobs"


RUNS = (
    Run("gpt"),
    Run("gpt", "adamw", "bf16"),
    Run("gpt", "sgd-momentum"),
    Run("gpt", "adamw-foreach"),
    Run("deep_gpt"),
    Run("gpt_dropout", "sgd"),
    Run("gpt_checkpointed"),
    Run("gpt_checkpointed", "adamw", "bf16"),
    Run("lora"),
    Run("lora", "sgd", "bf16"),
    Run("experts"),
    Run("experts", "sgd-momentum", "bf16"),
    Run("mixtral"),
    Run("mixtral", "adamw", "bf16"),
    Run("convolution"),
    Run("convolution", "sgd-momentum", "bf16"),
    Run("depthwise", "adamw"),
    Run("residual", "sgd-momentum"),
    Run("residual", "adamw", "bf16"),
    Run("perceptron", "adagrad"),
    Run("llama"),
    Run("llama", "sgd-momentum", "bf16"),
    Run("gpt2"),
    Run("bert", "adamw"),
    Run("vit", "sgd"),
    Run("t5"),
    Run("hourglass"),
    Run("hourglass", "sgd-momentum", "bf16"),
    Run("encoder"),
    Run("encoder", "adagrad", "bf16"),
    Run("penalty"),
    Run("distilled"),
    Run("gpt", strategy="ddp"),
    Run("convolution", "sgd-momentum", strategy="ddp"),
    Run("gpt", strategy="fsdp2"),
    Run("deep_gpt", strategy="fsdp2"),
    Run("recurrent", known="oneDNN's LSTM keeps a workspace"),
)


FRESH = tuple(
    Run(job, dtype=dtype, file="fresh")
    for job, dtype in (
        ("albert", "fp32"), ("deberta", "fp32"), ("opt", "fp32"), ("opt", "bf16"), ("bloom", "fp32"),
        ("qwen_experts", "fp32"), ("gemma", "bf16"), ("bart", "fp32"), ("resnet", "fp32"), ("resnet", "bf16"),
        ("convnext", "fp32"), ("swin", "fp32"), ("segformer", "fp32"), ("mobilenet", "fp32"),
    )
)  # fmt: skip


def measured(run: Run, library: Path) -> int:
    """The most that a real run held; of several ranks the largest."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.memory.truth",
        f"{run.file}.{run.job}",
        run.optimizer,
        run.dtype,
        run.strategy,
    ]
    ranks = 1 if run.strategy == "none" else RANKS
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = []
    for rank in range(ranks):
        settings = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        preload = {} if ranks == 1 else {"LD_PRELOAD": str(library)}
        started.append(
            subprocess.Popen(command, env={**os.environ, **settings, **preload}, stdout=subprocess.PIPE, text=True,
                             stderr=subprocess.DEVNULL)
        )  # fmt: skip
    said = [one.communicate(timeout=PATIENCE_S)[0] for one in started]
    return max(int(found) for text in said for found in re.findall(r"^peak (\d+)$", text, re.MULTILINE))


def predicted(run: Run, simulator: Simulator) -> int:
    """What whystall says of it."""
    name, _, kernels = run.optimizer.partition("-foreach")
    options: dict[str, Any] = {} if run.strategy == "none" else {"ranks": RANKS, "strategy": run.strategy}
    if run.optimizer != name or kernels:
        options["kernels"] = "foreach"
    dtype = None if run.dtype == "fp32" else run.dtype
    return predict(
        f"{HERE / run.file}.py:{run.job}", simulator=simulator, optimizer=name, dtype=dtype, **options
    ).peak_bytes


def rows(runs: Sequence[Run]) -> Iterator[tuple[Run, int, int]]:
    """Each run with its measured and its predicted peak."""
    with tempfile.TemporaryDirectory() as folder, Simulator() as simulator:
        library = Path(folder) / "hook.so"
        subprocess.run(
            ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(HERE / "hook.c"), "-ldl", "-lpthread"], check=True
        )
        for run in runs:
            yield run, measured(run, library), predicted(run, simulator)


def wrong_fits(found: Sequence[tuple[int, int]]) -> float:
    """The share of runs and devices where the prediction fits and the run does not."""
    wrong = sum(guess <= truth * margin < truth for truth, guess in found for margin in MARGINS)
    return wrong / (len(found) * len(MARGINS))


def main() -> None:
    """Prints the table and its summary."""
    wanted = [one for one in sys.argv[1:] if not one.startswith("-")]
    bar = " | " if "--markdown" in sys.argv else "  "
    print(bar.join(("run", "measured", "predicted", "error")))
    known: list[tuple[int, int]] = []
    for run, truth, guess in rows(
        [one for one in (FRESH if "--fresh" in sys.argv else RUNS) if not wanted or one.job in wanted]
    ):
        strategy = "" if run.strategy == "none" else f", {run.strategy} on {RANKS} ranks"
        name = f"{run.job}, {run.optimizer}, {run.dtype}{strategy}" + (f" ({run.known})" if run.known else "")
        print(bar.join((name, f"{truth:,}", f"{guess:,}", f"{(guess / truth - 1) * 100:+.2f} %")), flush=True)
        if not run.known:
            known.append((truth, guess))
    if known:
        errors = sorted(abs(guess / truth - 1) * 100 for truth, guess in known)
        tail = errors[min(round(0.95 * len(errors)), len(errors) - 1)]
        print(f"{len(errors)} runs: median {statistics.median(errors):.2f} %, 95th percentile {tail:.2f} %, "
              f"most {errors[-1]:.2f} %, wrong fits {wrong_fits(known) * 100:.2f} %")  # fmt: skip


if __name__ == "__main__":
    main()
