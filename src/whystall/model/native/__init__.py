"""The part of counting that is compiled against the torch that is installed: ``whystall doctor --build-counter``.

whystall's wheel cannot call into torch, whose C++ interface changes with every release. This part is built once for one
torch, into the package's own folder, and is optional: without it Python alone counts the same.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import shutil
import subprocess
import sysconfig
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

from whystall.errors import WhystallError

SOURCE = Path(__file__).with_name("lane.cpp")


def built() -> Path:
    """The path of the part for this torch, this Python and this source; its name identifies them."""
    return SOURCE.with_name(f"_lane_{_mark(SOURCE)}{sysconfig.get_config_var('EXT_SUFFIX')}")


@cache
def _mark(source: Path) -> str:
    made_of = (torch.__version__, torch.version.git_version or "", source.read_text())
    return hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:16]


def load() -> ModuleType | None:
    """The part for this torch, or ``None`` where it was not built or does not load."""
    return _loaded(built())


@cache
def _loaded(path: Path) -> ModuleType | None:
    if not path.is_file():
        return None
    loader = importlib.machinery.ExtensionFileLoader("_lane", str(path))
    spec = importlib.util.spec_from_file_location("_lane", path, loader=loader)
    if spec is None:
        return None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError:
        return None
    return module


def build(*flags: str) -> Path:
    """Compiles the part for this torch, in some ten seconds, and returns its path; ``flags`` are the compiler's.

    Raises ``WhystallError`` where there is no compiler, the package's folder cannot be written, or this torch's C++
    interface is another than the one it was written for (2.13).
    """
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise WhystallError("no C++ compiler was found: install g++")
    root = Path(torch.__file__).parent
    path = built()
    scratch = path.with_suffix(".part")
    command = [
        compiler, "-O2", "-std=c++20", "-shared", "-fPIC", *flags, "-DTORCH_EXTENSION_NAME=_lane",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",  # noqa: SLF001 - as torch's own extensions ask
        *(part for folder in (root / "include", sysconfig.get_path("include")) for part in ("-isystem", str(folder))),
        str(SOURCE), "-o", str(scratch), f"-L{root / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a compiler on our own source
        if done.returncode:
            said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
            raise WhystallError(f"it does not compile against torch {torch.__version__}: {said}")
        scratch.replace(path)
    except OSError as error:
        raise WhystallError(f"cannot write {path.parent}: {error.strerror}") from error
    finally:
        scratch.unlink(missing_ok=True)
    _loaded.cache_clear()
    if load() is None:
        path.unlink(missing_ok=True)
        raise WhystallError(f"what was compiled against torch {torch.__version__} does not load")
    for other in path.parent.glob("_lane_*"):
        if other != path:  # of another torch, or an older source
            other.unlink(missing_ok=True)
    return path
