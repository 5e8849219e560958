"""Owner of a frame's code, by the root of its package; words in a path do not count."""

from __future__ import annotations

import re
import sys
from enum import IntEnum
from functools import lru_cache
from typing import Final

__all__ = ["Owner", "is_entry", "is_python", "owner_of", "without_root"]


class Owner(IntEnum):
    """Owner of the code, the most useful to a reader first."""

    USER = 0
    LIBRARY = 1
    TORCH = 2
    PLUMBING = 3
    NATIVE = 4


# Extensions of compiled code, and of its stand-ins when its source is unknown.
_COMPILED: Final = re.compile(
    r"(^|[/\\])[^/\\]*\.(c|cc|cpp|cxx|cu|cuh|h|hh|hpp|s|o|a|so(\.[\d.]+)?|dll|pyd|dylib|rs)$", re.IGNORECASE
)
_INTERPRETER: Final = re.compile(r"(^|[/\\])(python|pypy|uwsgi)[\d.]*[a-z]*(-bin)?(\.exe)?$")
_COMPILED_NAME: Final = re.compile(
    r"::|\(|^_?Py[A-Z_]|^_Z|^\?+$|^<unwind |^0x|^(main|_start|__libc_start\w*|_?_?clone3?|start_thread)$"
)
_NO_FILE: Final = frozenset({"", "??", "?"})
# Interactive code has no file; IPython writes one below the folder for temporary files.
_INTERACTIVE: Final = re.compile(r"^<(ipython-input-|stdin>|string>|doctest )|(^|/)ipykernel_\d+/|\.ipynb$")
_GENERATED: Final = re.compile(
    r"(^|/)torchinductor_[^/]+/|(^|/)inductor_cache/|(^|/)[a-z2-7]{2}/c[a-z2-7]{40,}\.py$|^<"
)
# Roots of installed packages: lib/python3.12/site-packages, Lib/site-packages of Windows, Debian's dist-packages.
_ROOT: Final = re.compile(
    r"(^|.*/)(lib(64)?/(python[\d.]*(/lib/python)?/)?|python[\d.]*/)(site|dist)-packages/", re.IGNORECASE
)
_BARE_ROOT: Final = re.compile(r"(^|.*/)(site|dist)-packages/")
_STANDARD: Final = re.compile(r"^.*/lib(64)?/(python\d[\d.]*/)?([^/]+)", re.IGNORECASE)
# Files that distinguish a checkout of torch from any other folder of that name.
_CHECKOUT: Final = re.compile(
    r"(^|.*/)torch/(nn/(modules|functional|parallel|utils|parameter|init|attention|quantized|intrinsic)\b"
    r"|optim/(optimizer|_functional|_multi_tensor|lr_scheduler|swa_utils|adamw?|sgd|adagrad|adadelta|adamax|nadam|radam|"
    r"rmsprop|rprop|asgd|lbfgs|_adafactor|_muon|sparse_adam)\.py$"
    r"|autograd/(__init__|function|graph|grad_mode|functional|forward_ad|profiler)\b"
    r"|utils/(data/(dataloader|dataset|sampler|_utils)|checkpoint|_contextlib|_pytree|_python_dispatch|_foreach_utils|hooks)\b"
    r"|distributed/(fsdp|tensor|_composable|algorithms|checkpoint|elastic|pipelining|distributed_c10d|"
    r"_functional_collectives|_tensor|optim|rpc|run)\b"
    r"|(_dynamo|_inductor|_functorch|_subclasses|_higher_order_ops|_prims|_refs|_decomp|_library|_export)/"
    r"|cuda/(memory|graphs|streams|__init__|amp)\b|amp/(autocast_mode|grad_scaler)\b|fx/(interpreter|graph_module|graph)\b"
    r"|jit/_\w+\.py$|(_tensor|_ops|_compile|_utils|_jit_internal|functional|overrides|serialization|storage|random)\.py$)"
)
_OF_TORCH: Final = frozenset(
    {"torch", "functorch", "triton", "torchgen", "pytorch_triton", "numpy", "whystall", "_pytest"}
)
# Packages beside each other in a folder that is put on the path as it is (Bazel, containers) are known by these.
_KNOWN: Final = frozenset(
    {
        "accelerate", "datasets", "deepspeed", "diffusers", "einops", "fairscale", "flash_attn", "lightning",
        "lightning_fabric", "megatron", "peft", "pytorch_lightning", "ray", "tensorboard", "timm", "tokenizers",
        "torchaudio", "torchdata", "torchmetrics", "torchtitan", "torchvision", "tqdm", "transformers", "trl", "vllm",
        "wandb", "xformers",
    }
)  # fmt: skip
_ENTRIES: Final = frozenset(
    {"<module>", "_run_module_as_main", "_run_module_code", "_run_code", "run_path", "_bootstrap", "_bootstrap_inner",
     "main_loop", "spawn_main"}
)  # fmt: skip


def is_python(file: str, line: int | None, function: str = "<module>") -> bool:
    """Whether a frame is of Python: compiled code has no line, or a file of another language.

    A symbolizer without sources writes the library or the program as a file, and as a line an offset in it.

    >>> is_python("/job/train.py", 3), is_python("ceval.c", 5041), is_python("??", None), is_python("/bin/torchrun", 8)
    (True, False, False, True)
    >>> is_python("/usr/bin/python3.11", 1290817, "_PyEval_EvalFrameDefault")
    False
    """
    if file.endswith((".py", ".pyw", ".ipynb")) or (file.startswith("<") and not _COMPILED_NAME.search(function)):
        return True
    if file in _NO_FILE or line is None or _COMPILED.search(file) or _INTERPRETER.search(file):
        return False
    return _COMPILED_NAME.search(function) is None


def is_entry(function: str) -> bool:
    """Whether a program or a thread begins with a function: a stack with another root was called by compiled code."""
    return function in _ENTRIES


@lru_cache(maxsize=1 << 16)
def owner_of(file: str) -> Owner:
    """Owner of a Python file.

    >>> [owner_of(file).name for file in ("/home/me/torch/train.py", "/venv/lib/python3.12/site-packages/peft/a.py")]
    ['USER', 'LIBRARY']
    >>> [owner_of(file).name for file in ("/src/pytorch/torch/nn/modules/module.py", "<frozen runpy>", "/tmp/x/net.py")]
    ['TORCH', 'PLUMBING', 'USER']
    """
    path = file.replace("\\", "/")
    if _INTERACTIVE.search(path):
        return Owner.USER
    if _GENERATED.search(path):
        return Owner.PLUMBING
    installed = _installed(path)
    if installed is not None:
        return Owner.TORCH if _package(installed) in _OF_TORCH else Owner.LIBRARY
    return Owner.TORCH if _CHECKOUT.match(path) else _of_others(path)


def _of_others(path: str) -> Owner:
    """Owner of a file below no root of packages; recordings of other tools leave the root out."""
    if _is_standard(path):
        return Owner.PLUMBING
    return Owner.LIBRARY if not _is_absolute(path) and "/" in path and _package(path) in _KNOWN else Owner.USER


def without_root(file: str) -> str:
    """The path from the package on, where the file is installed; else the path, without steps up in it."""
    path = file.replace("\\", "/")
    installed = _installed(path)
    if installed is not None:
        return installed
    checkout = _CHECKOUT.match(path)
    if checkout is not None:
        return path[checkout.end(1) :]
    standard = _STANDARD.match(path)
    return path[standard.start(3) :] if standard is not None and _is_standard(path) else _straight(path)


def _installed(path: str) -> str | None:
    """The path from the package on, if it lies below a root of installed packages."""
    found = _ROOT.match(path)
    if found is not None:
        return path[found.end() :]
    bare = _BARE_ROOT.match(path)
    if bare is not None and _package(path[bare.end() :]) in _OF_TORCH | _KNOWN:
        return path[bare.end() :]
    return None


def _package(within: str) -> str:
    return within.split("/", 1)[0].removesuffix(".py")


def _is_standard(path: str) -> bool:
    found = _STANDARD.match(path)
    if found is None:
        return False
    return (found[2] is not None or ":/" in path) and found[3].removesuffix(".py") in sys.stdlib_module_names


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or path[1:3] == ":/"


def _straight(path: str) -> str:
    """The path without ``folder/..`` and ``./`` in it."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and parts and parts[-1] not in ("", ".."):
            parts.pop()
        elif part != "." or not parts:
            parts.append(part)
    return "/".join(parts)
