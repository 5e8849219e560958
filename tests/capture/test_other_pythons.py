"""A Python in which whystall is not installed runs as it does without it, and finds nothing of ours."""

from __future__ import annotations

import os
import sys

import pytest
from tests.capture.conftest import Jobs
from tests.capture.test_slow_imports import pythons

from whystall.capture.config import CaptureConfig
from whystall.capture.launch import watched_environment, why_blind

ASKS = """
import sys
print([entry for entry in sys.path], len(sys.path_hooks))
print([getattr(finder, '__name__', type(finder).__name__) for finder in sys.meta_path])
print(sorted(set(sys.modules) - {"sitecustomize"}))
for name in ("whystall", "msgspec", "numpy", "polars", "torch", "isal"):
    try:
        __import__(name)
        print(name)
    except BaseException as error:
        print(type(error).__name__, error)
"""
SHADOWS = """
import sys
import msgspec, statistics, queue
print(msgspec.OURS, statistics.OURS, queue.OURS, [entry for entry in sys.path], "whystall" in str(sys.path_hooks))
"""


def others() -> list[str]:
    """Pythons of this machine in which whystall is not installed."""
    here = os.path.realpath(sys.prefix)
    return [path for path in [*pythons(), "/usr/bin/python3"] if not os.path.realpath(path).startswith(here)]


@pytest.mark.parametrize("python", others(), ids=lambda path: path.replace(os.sep, " ").strip())
def test_a_python_without_whystall_is_as_it_is(jobs: Jobs, python: str) -> None:
    (jobs.home / "asks.py").write_text(ASKS)
    environment = watched_environment(CaptureConfig(folder=str(jobs.folder)), jobs.environment())
    plain, watched = (jobs.command(python, "asks.py", **more) for more in ({}, environment))
    assert (watched.code, watched.stdout, watched.stderr) == (plain.code, plain.stdout, plain.stderr)
    assert "ModuleNotFoundError No module named 'whystall'" in watched.stdout
    assert "not installed in" in (why_blind([python, "asks.py"]) or "")


def test_a_file_of_the_users_is_not_hidden_by_what_we_import(jobs: Jobs) -> None:
    """Before torch is imported nothing of ours is."""
    (jobs.home / "shadows.py").write_text(SHADOWS)
    for name in ("msgspec", "statistics", "queue"):
        (jobs.home / f"{name}.py").write_text("OURS = 'the user has this one'\n")
    plain, watched = jobs.command(sys.executable, "shadows.py"), jobs.watched("shadows.py")
    assert (watched.code, watched.stdout, watched.stderr) == (plain.code, plain.stdout, plain.stderr)
    assert why_blind([sys.executable, "shadows.py"]) is None


HALF_THERE = """
import sys
import package
print(package.VALUE, package.statistics.OURS)
"""
# Each is imported by the capture, and by the job later, or never.
NAMES = ("msgspec", "statistics", "resource", "tracemalloc", "tomllib")


def test_no_file_of_the_users_is_run_or_hidden_by_what_we_import_within_its_imports(jobs: Jobs) -> None:
    (jobs.home / "job.py").write_text(HALF_THERE)
    (jobs.home / "package").mkdir()
    (jobs.home / "package" / "__init__.py").write_text("import torch\nVALUE = 1\nimport statistics\n")
    for name in NAMES:
        text = f"import package\nOURS = {name!r}\nprint(OURS, package.VALUE)\n"
        (jobs.home / f"{name}.py").write_text(text)
    jobs.folder.mkdir()
    plain, watched = jobs.command(sys.executable, "job.py"), jobs.watched("job.py")
    assert plain.stdout == "statistics 1\n1 statistics\n"
    assert (watched.code, watched.stdout, watched.stderr) == (plain.code, plain.stdout, plain.stderr)


SEES_NO_OTHERS = """
import sys

class Hears:
    asked = []
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        cls.asked.append(name)

sys.meta_path.insert(0, Hears)
import torch
print(sorted(name for name in Hears.asked if name.startswith(("whystall", "msgspec"))), sys.meta_path[0] is Hears)
"""


def test_a_finder_of_the_users_is_not_asked_for_what_we_import(jobs: Jobs) -> None:
    (jobs.home / "job.py").write_text(SEES_NO_OTHERS)
    ran = jobs.watched("job.py")
    assert (ran.code, ran.stdout) == (0, "[] True\n"), ran.stderr


FAILS = """
import sys, traceback
try:
    import torch
except ImportError:
    print(traceback.format_exc())
print([type(finder).__name__ for finder in sys.meta_path], "torch" in sys.modules)
"""


def test_a_torch_whose_import_fails_fails_as_ever(jobs: Jobs) -> None:
    (jobs.home / "fails.py").write_text(FAILS)
    (jobs.home / "torch.py").write_text("import no_such_module\n")
    plain, watched = jobs.command(sys.executable, "fails.py"), jobs.watched("fails.py")
    assert (watched.code, watched.stdout, watched.stderr) == (plain.code, plain.stdout, plain.stderr)


LOADED = """
import importlib.util, sys
found = importlib.util.find_spec("torch")  # as libraries ask, which do not import it
print(type(found.loader).__name__, found.origin, found.name)
import torch
spec = torch.__spec__
print(type(spec), type(spec.loader), spec.loader is torch.__loader__, sorted(vars(spec)), spec._initializing)
print([type(finder).__name__ for finder in sys.meta_path], sys.path)
"""


def test_torch_has_its_own_loader_and_spec(jobs: Jobs) -> None:
    (jobs.home / "loaded.py").write_text(LOADED)
    plain, watched = jobs.command(sys.executable, "loaded.py"), jobs.watched("loaded.py")
    assert (watched.code, watched.stdout) == (plain.code, plain.stdout)
