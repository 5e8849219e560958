"""Frames of Python code as recordings name them, and whose code they are."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from typing import Final, Literal, NamedTuple

Owner = Literal["user", "library", "nobody"]

# Kineto writes "train.py(88): main", both for calls of functions and for the stacks of operators.
_FRAME: Final = re.compile(r"^(?P<file>.+?\.py)\((?P<line>\d+)\): (?P<symbol>.+)$")
_INSTALLED: Final = re.compile(r"^.*[/\\](?:site-packages|dist-packages|lib[/\\]python\d[\d.]*)[/\\]")
# Generated code, and code without a file.
_GENERATED: Final = re.compile(
    r"torchinductor_|[/\\]inductor_cache[/\\]|(^|[/\\])[a-z_]\w*(\.[a-z_]\w*){2,}_\w{8}\.py$|^<"
)
# Packages that every job calls, and that users do not change: the calling function is more useful.
_BENEATH: Final = frozenset({"torch", "triton", "numpy", "functorch", "whystall", "_pytest"})
# Kineto leaves out the folder in which packages are installed, so that they look like the user's own code.
_LIBRARIES: Final = frozenset(
    {
        "accelerate", "batchgenerators", "batchgeneratorsv2", "datasets", "deepspeed", "diffusers", "fairscale", "ffcv",
        "flash_attn", "flashinfer", "lightning", "lightning_fabric", "PIL", "pandas", "peft", "pytorch_lightning",
        "ray", "sklearn", "tensorboard", "timm", "tokenizers", "torchaudio", "torchdata", "torchmetrics",
        "torchvision", "tqdm", "transformers", "trl", "wandb", "webdataset", "xformers",
    }
)  # fmt: skip
# A script may bear the name of a module of the standard library: these are never called for their own sake.
_PLUMBING: Final = sys.stdlib_module_names - {"code", "profile", "test", "token", "select", "statistics", "random"}
_PROFILER: Final = re.compile(r"(^|[/\\])torch[/\\](autograd[/\\])?profiler")


class Frame(NamedTuple):
    """A file, a line in it and the function."""

    file: str
    line: int
    symbol: str


def frame_of(name: str) -> Frame | None:
    """The frame that a name describes, if it does.

    >>> frame_of("train.py(88): main"), frame_of("<built-in method mm>")
    (Frame(file='train.py', line=88, symbol='main'), None)
    """
    found = _FRAME.match(name)
    return Frame(found["file"], int(found["line"]), found["symbol"]) if found is not None else None


@lru_cache(maxsize=1 << 16)
def owner(file: str) -> Owner:
    """The owner of a file: the user, a library of models and loops, or neither.

    >>> [owner(file) for file in ("train.py", "/venv/lib/python3.11/site-packages/transformers/trainer.py", "enum.py")]
    ['user', 'library', 'nobody']
    """
    if _GENERATED.search(file):
        return "nobody"
    installed = _INSTALLED.match(file)
    within = file[installed.end() :] if installed is not None else file
    package = re.split(r"[/\\]", within, maxsplit=1)[0].removesuffix(".py")
    if package in _BENEATH or package in _PLUMBING or "/torch/" in within:
        return "nobody"
    return "library" if installed is not None or package in _LIBRARIES else "user"


def is_profiler(name: str) -> bool:
    """Whether a frame is torch's profiler: its calls are no part of the job."""
    return _PROFILER.search(name) is not None
