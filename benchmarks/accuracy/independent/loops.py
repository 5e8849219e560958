"""Jobs in outline: training loops, and what the cases are written in."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass

from .devices import DEVICES, Device
from .layers import Layer, batch_norm, block, conv, linear
from .ops import backward, forward, item, load, optimizer, reduce_gradients
from .program import Prog

Build = Callable[[random.Random, int, bool], list[Prog]]


@dataclass(frozen=True)
class Case:
    """A job with a cause in it (or none): what a good answer may name first, and why, written before the tool ran."""

    name: str
    accept: tuple[str, ...]
    why: str
    build: Build
    kind: str = "planted"
    first: int = 2
    steps: int = 8
    files: int = 0
    lost: str = ""
    """What the recording dropped: ``device``, ``calls`` or ``graphs``."""
    together: bool = False
    """All ranks are in one file."""


CASES: list[Case] = []


def case(
    accept: str,
    why: str,
    kind: str = "planted",
    first: int = 2,
    steps: int = 8,
    files: int = 0,
    *,
    lost: str = "",
    together: bool = False,
) -> Callable[[Build], Build]:
    """Register a case under its function's name."""

    def add(build: Build) -> Build:
        CASES.append(Case(build.__name__, tuple(accept.split()), why, build, kind, first, steps, files, lost, together))
        return build

    return add


def ranks(device: str, seed: int, n: int, **more: object) -> list[Prog]:
    """Programs of n ranks."""
    return [Prog(DEVICES[device], seed, rank, n, **more) for rank in range(n)]  # type: ignore[arg-type]


def loop(p: Prog, body: Callable[[int], None], steps: int = 8, name: str | Callable[[int], str] = "") -> None:
    """Steps, each in its ProfilerStep; then the profiler's own synchronisation."""
    for i in range(steps):
        p.step_begin(name(i) if callable(name) else name or f"ProfilerStep#{i + 10}")
        with p.py("train.py(88): train_step"):
            p.cpu(30)
            body(i)
    p.step_begin("")
    p.sync("Device")


def step(
    p: Prog,
    layers: list[Layer],
    *,
    opt: str = "fused",
    name: str = "AdamW",
    next_us: float = 120,
    group: list[int] | None = None,
    busbw: float = 0.0,
    bucket: float = 25e6,
    read: bool = False,
    workers: bool = True,
    skip_load: bool = False,
    dtype: str = "bf16",
) -> None:
    """An ordinary step of training."""
    if not skip_load:
        load(p, next_us, workers)
    ddp = p.note("DistributedDataParallel.forward") if group else contextlib.nullcontext()
    with ddp, p.py("model.py(141): forward"):
        numbers = forward(p, layers)
    hook = reduce_gradients(p, group, busbw or p.device.link * 0.8, bucket, dtype) if group else None
    backward(p, layers, numbers, hook)
    if group:
        p.order(20, 7)
    optimizer(p, layers, opt, name)
    if read:
        item(p)


def transformer(
    d: Device,
    layers: int = 6,
    b: int = 8,
    s: int = 1024,
    h: int = 1024,
    *,
    vocab: int = 0,
    compiled: bool = True,
    attention: str = "flash",
    dtype: str = "bf16",
    tp: int = 1,
    how: str = "",
) -> list[Layer]:
    """A transformer of some layers, with a head where `vocab` is given."""
    out = []
    for i in range(layers):
        out += block(d, b, s, h, 3 * i, dtype, attention, compiled, tp, how)
    if vocab:
        out.append(linear(d, b * s, h, vocab, dtype, how))
    return out


def cnn(
    d: Device, b: int = 64, dtype: str = "fp16", blocks: int = 5, *, nchw: bool = False, slow: float = 1.0
) -> list[Layer]:
    """A convolutional network in stages."""
    out = []
    for c, hw in ((128, 56), (256, 28), (512, 14)):
        for _ in range(blocks):
            out += [conv(d, b, c, c, hw, dtype, nchw=nchw, slow=slow), batch_norm(d, b, c, hw, dtype)]
    return out
