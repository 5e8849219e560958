"""The process in which batches really run: its end, from any cause, is an answer.

It reads an order from standard input and writes its answers, one JSON a line, to the file descriptor it is given.
Output of the user's factory goes to standard error.
"""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from whystall.errors import WhystallError
from whystall.hardware import find
from whystall.json_text import parse_json
from whystall.model.prediction import blocks, checkpointing, parallel
from whystall.model.prediction.optimizers import make_optimizer
from whystall.model.prediction.request import Request
from whystall.model.profile import differentiable
from whystall.model.target import DTYPES, load_target
from whystall.probe.batch.held import most_held_bytes
from whystall.probe.batch.results import Answer, BatchRun, Order

_WARM_UPS = 2  # the second has the optimizer's state and the outputs of the first
_FEWEST, _MOST, _LONGEST_NS = 3, 50, 2_000_000_000
_LONGEST = 300
_WORDS_OF_A_FULL_CPU = ("can't allocate memory", "not enough memory")  # c10/core/impl/alloc_cpu.cpp


def main() -> None:
    """Answers one order."""
    answers = os.fdopen(int(sys.argv[1]), "wb")
    os.dup2(2, 1)
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as `python -m` does for the user's own modules
    with contextlib.suppress(OSError):  # where memory runs out, Linux is to end this process before any other
        Path("/proc/self/oom_score_adj").write_text("1000", "ascii")
    order = parse_json(sys.stdin.buffer.read(), type=Order)
    if len(sys.argv) > 2:
        join(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    serve(order, answers)


def join(rank: int, ranks: int, store: str) -> None:
    """Makes this process a rank, and counts its allocator's memory on all threads.

    Otherwise the profiler sees frees of one thread only, and communication frees on others.
    """
    import ctypes  # noqa: PLC0415 - of ranks alone

    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    ctypes.c_bool.in_dll(library, "FLAGS_caffe2_report_cpu_memory_usage").value = True
    distributed.init_process_group("gloo", store=distributed.FileStore(store, ranks), rank=rank, world_size=ranks)


def _agreed_most(value: float) -> float:
    """The largest of all ranks' values; a single rank's own."""
    if not distributed.is_initialized():
        return value
    told = torch.tensor(value, dtype=torch.float64)
    distributed.all_reduce(told, distributed.ReduceOp.MAX)
    return float(told)


def serve(order: Order, answers: BinaryIO) -> None:
    """Writes an answer for each batch until one does not fit, or time is up."""
    for answer in _answers(order):
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()


def _answers(order: Order) -> Iterator[Answer]:
    request = order.request
    device = _device(request)
    if device is None:
        yield Answer(absent=f"this machine has no {request.device}")
        return
    began = time.monotonic()
    for batch in order.batches:
        try:
            ran = run_batch(request, batch, device)
        except (MemoryError, RuntimeError) as error:
            full = isinstance(error, (MemoryError, torch.OutOfMemoryError))
            full = full or any(words in str(error) for words in _WORDS_OF_A_FULL_CPU)
            yield Answer(out_of_memory=_sentence(error)) if full else Answer(failed=_sentence(error))
            return
        except WhystallError as error:
            yield Answer(failed=str(error))
            return
        except Exception as error:  # noqa: BLE001 - the user's own code failed: that is the answer
            yield Answer(failed=_sentence(error))
            return
        yield Answer(ran=ran)
        over = request.limit_bytes is not None and ran.held_bytes > request.limit_bytes
        if _agreed_most(over or time.monotonic() - began > order.curve_s):
            return


def _device(request: Request) -> torch.device | None:
    """The device that a request means; ``None`` where it is not here. A limit is made the allocator's own."""
    if request.on_cpu:
        return torch.device("cpu")
    for number in range(torch.cuda.device_count()):
        if find(torch.cuda.get_device_name(number)) == find(request.device):
            whole = torch.cuda.get_device_properties(number).total_memory
            if request.limit_bytes is not None:
                torch.cuda.set_per_process_memory_fraction(min(request.limit_bytes / whole, 1.0), number)
            return torch.device("cuda", number)
    return None


def run_batch(request: Request, batch: int, device: torch.device) -> BatchRun:
    """Some steps of one batch: first measured for memory, then timed."""
    step, held = most_held_bytes(lambda: make_step(request, batch, device), device, calls=_WARM_UPS)
    times: list[int] = []
    while len(times) < _FEWEST or (_agreed_most(sum(times)) < _LONGEST_NS and len(times) < _MOST):
        began = time.perf_counter_ns()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter_ns() - began)
    del step
    gc.collect()
    return BatchRun(
        batch=batch,
        held_bytes=held,
        steps=len(times),
        step_ns=round(statistics.median(times)),
        fastest_ns=min(times),
        slowest_ns=max(times),
    )


def make_step(request: Request, batch: int, device: torch.device) -> Callable[[], None]:
    """The step that was predicted, for a real model."""
    target = load_target(
        request.target, batch=batch, device=str(device), dtype=request.dtype, input_shape=request.input_shape
    )
    model = target.model.train(request.backward)
    repeated = blocks.repeated(model)
    if repeated is not None and request.checkpoint != "none":
        checkpointing.apply(repeated.modules, request.checkpoint)
    checkpointing.apply_to(model, blocks.names_of(model), request.recompute)
    called = _shared(request, model, repeated)
    optimizers = []
    if request.backward and request.optimizer is not None:
        optimizers = make_optimizer(request.optimizer, model, request.kernels, on_cpu=request.on_cpu)
    keeps = msgspec.structs.replace(request, batch=batch).accumulated > 1
    latest: list[Any] = []  # a script's outputs live until the next step's replace them

    def step() -> None:
        if not keeps:
            for weight in model.parameters():
                weight.grad = None
        cast = nullcontext() if request.autocast is None else torch.autocast(device.type, DTYPES[request.autocast])
        with torch.set_grad_enabled(request.backward), cast:
            latest[:] = [called(*target.args, **target.kwargs)]
        start = differentiable(latest[0]) if request.backward else None
        if start is not None:
            torch.autograd.backward([start], [torch.ones_like(start)])
        for optimizer in optimizers:
            optimizer.step()

    return step


def _shared(request: Request, model: torch.nn.Module, repeated: blocks.Blocks | None) -> torch.nn.Module:
    """The model as one of several ranks calls it."""
    if request.ranks == 1:
        return model
    if request.strategy == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    shard, ranks = request.fsdp.shard, request.ranks
    if shard is None:
        mesh = init_device_mesh("cpu", (ranks,))
    else:
        mesh = init_device_mesh("cpu", (ranks // shard, shard), mesh_dim_names=("replicate", "shard"))
    parallel.distribute(request, model, repeated, mesh)
    return model


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:_LONGEST]}"


if __name__ == "__main__":
    main()
