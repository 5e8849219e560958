"""How long ``import whystall`` and ``whystall --help`` take, beside a Python that does nothing.

Medians of starts that take turns, and the least of each, in an environment that holds the package as a wheel puts it
there: an editable install has an import hook of its own, which loads importlib.util.

python benchmarks/startup.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
import venv
from pathlib import Path

import whystall

STARTS = 61
PROGRAMS = {
    "python -c pass": "pass",
    "import whystall": "import whystall",
    "whystall --help": "import sys; from whystall.cli import main; sys.exit(main(['--help']))",
}


def wall_ms(python: Path, program: str) -> float:
    """How long one start of ``program`` took, in milliseconds."""
    started = time.perf_counter()
    subprocess.run([python, "-c", program], check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - started) * 1e3


def installed(folder: Path) -> Path:
    """The Python of a new environment in ``folder`` that has whystall and nothing else."""
    venv.create(folder, symlinks=os.name != "nt")
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "whystall").symlink_to(Path(whystall.__file__).parent)
    return folder / "bin" / "python"


def main() -> None:
    """Prints one line per program: its median, its least, and both as ratios to a start that does nothing."""
    with tempfile.TemporaryDirectory() as folder:
        python = installed(Path(folder))
        times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
        for _ in range(STARTS):
            for name, program in PROGRAMS.items():
                times[name].append(wall_ms(python, program))
    bare = times["python -c pass"]
    for name, taken in times.items():
        median, least = statistics.median(taken), min(taken)
        of_bare = f"{median / statistics.median(bare):.2f} x, least {least / min(bare):.2f} x"
        print(f"{name:16} {median:6.1f} ms, least {least:6.1f} ms: {of_bare}")


if __name__ == "__main__":
    main()
