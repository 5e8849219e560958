"""The kind of a thread's activity in each sample of its stack: a class of cause, or a kind of work."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from whystall.live.observation import Stack
from whystall.vocabulary.frames import Frame, owner

LineOf = Callable[[Frame], str | None]
"""The text of a line of code, where its file can be read."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A class of cause: its description, its remedy, and the cause in a recording."""

    id: str
    words: str
    advice: str
    cause: str | None = None


WORK: Final = (
    Kind("forward", "computes its forward pass", ""),
    Kind("backward", "computes its backward pass", ""),
    Kind("optimizer", "updates its parameters", ""),
    Kind("operator", "is inside an operator or a library's native code", ""),
)
"""Kinds of useful work."""

LOSSES: Final = (
    Kind(
        "workers",
        "waits for its loader's workers",
        "give the loader more workers, or make what a worker does for an item cheaper",
        "input.too-few-workers",
    ),
    Kind(
        "batches",
        "makes its batches on the training thread",
        "give the loader workers (num_workers), one per free core",
        "input.synchronous-loader",
    ),
    Kind(
        "storage",
        "waits for storage",
        "read ahead in workers, in larger pieces, or from a faster disk",
        "input.storage-bound",
    ),
    Kind(
        "network",
        "waits for the network",
        "ask ahead, from a thread or from workers, or keep what was answered",
        None,
    ),
    Kind("python", "is in Python code", "make that code cheaper, or call it less often", "host.python"),
    Kind(
        "gc",
        "collects garbage",
        "do not call gc.collect() in the loop; freeze what stays (gc.freeze()) where automatic collections are long",
        "host.gc",
    ),
    Kind(
        "gil",
        "waits for another thread of the process to let go of Python's lock (GIL)",
        "move that thread's work into a process of its own",
        "host.gil",
    ),
    Kind(
        "checkpoint",
        "writes checkpoints",
        "save less often, or from a copy in the background",
        "episodic.checkpoint",
    ),
    Kind("logging", "writes logs", "log less often, and numbers instead of tensors", "episodic.logging"),
    Kind(
        "ranks",
        "waits for other ranks",
        "look at the rank that comes last: whystall attach its process, too",
        "communication.straggler",
    ),
    Kind("compiler", "compiles its model", "see why it compiles again: TORCH_LOGS=recompiles", "host.recompile"),
    Kind("start", "imports its modules", "attach again once it makes steps", None),
    Kind("waits", "waits in its own code", "look at what it waits for there", None),
)
"""Kinds of lost time."""

KINDS: Final = {kind.id: kind for kind in (*WORK, *LOSSES)}

# Patterns of frames' files and functions that give the kind of all frames above them; the innermost match decides.
_TELLS: Final = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("start", r"^<frozen importlib"),
        ("gc", r"/gc\.py:"),
        ("batches", r"torch/utils/data/_utils/fetch\.py:"),
        ("workers", r"torch/utils/data/dataloader\.py:.*\b_(try_)?get_data$"),
        ("checkpoint", r"torch/serialization\.py:_?(legacy_)?save|torch/distributed/checkpoint/|/safetensors/.*:save"),
        ("logging", r"/logging/(__init__|handlers)\.py:|/tensorboardX?/|/wandb/|/mlflow/|/summary_writer\.py:"),
        (
            "network",
            r"/(socket|ssl|socketserver)\.py:|/(http|urllib)/\w+\.py:|/(urllib3|requests|httpx|httpcore|botocore|aiohttp|grpc)/",
        ),
        ("compiler", r"torch/(_dynamo/(convert_frame|symbolic_convert|output_graph)|_inductor|_functorch/_aot)"),
        ("ranks", r"torch/distributed/(distributed_c10d|c10d_logger|_functional_collectives)\.py:"),
        ("backward", r"torch/(autograd/graph|autograd/__init__|_tensor)\.py:.*(_engine_run_backward|backward|grad)$"),
        ("optimizer", r"torch/optim/"),
    )
)
_IN_TORCH: Final = re.compile(r"[/\\]torch[/\\]")
_COLLECTS: Final = re.compile(r"\bgc\.collect\(")
_DDP: Final = re.compile(r"torch/(nn/parallel/distributed|distributed/)")
UNDECIDED: Final = "own"
"""The user's own code, or a call in it: Python, an operator or a wait, which only a sample of the lock separates."""


def kind_of(stack: Stack, line_of: LineOf) -> str:
    """The id of a thread's activity; `UNDECIDED` for code of the user's own."""
    for frame in reversed(stack):
        place = f"{frame.file.replace(chr(92), '/')}:{frame.symbol}"
        told = next((kind for kind, pattern in _TELLS if pattern.search(place)), None)
        if told is not None:
            return told
    if stack and owner(stack[-1].file) == "user" and _COLLECTS.search(line_of(stack[-1]) or ""):
        return "gc"
    return "forward" if stack and _IN_TORCH.search(stack[-1].file) else UNDECIDED


def own_frame(stack: Stack) -> Frame | None:
    """The innermost frame of the user's own code, or where there is none a library's."""
    for whose in ("user", "library"):
        found = next((frame for frame in reversed(stack) if owner(frame.file) == whose), None)
        if found is not None:
            return found
    return None


def places(stacks: Iterable[Stack]) -> Counter[Frame]:
    """How often each line of the user's own was found."""
    return Counter(frame for frame in map(own_frame, stacks) if frame is not None)


def is_distributed(stack: Stack) -> bool:
    """Whether data-parallel code of torch's is in a stack."""
    return any(_DDP.search(frame.file.replace(chr(92), "/")) for frame in stack)
