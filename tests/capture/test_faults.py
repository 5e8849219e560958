"""A failure in each part of the capture leaves the job as it is, and is named once at the end."""

from __future__ import annotations

import os
import sys

import pytest
from tests.capture.conftest import JOBS, Jobs

TRAIN = str(JOBS / "train.py")

# The user's own sitecustomize, which runs after ours, breaks one part of the capture.
BREAKS = {
    "hooks": "from whystall.capture.torch_hooks import TorchHooks as it; it.install = broken",
    "stacks thread": "from whystall.capture.stacks import StackSampler as it; it.start = broken",
    "a look at the stack": "from whystall.capture.stacks import StackSampler as it; it._look = broken",
    "sampler thread": "from whystall.capture.machine import MachineSampler as it; it.start = broken",
    "garbage collections": "from whystall.capture.samples import GarbageCollections as it; it.install = broken",
    "samples": "from whystall.capture.samples import SampleWriter as it; it.write = broken",
    "full disk for samples": "from whystall.capture.samples import SampleWriter as it; it.write = full",
    "file of samples": "from whystall.capture.samples import SampleWriter as it; it.open = full",
    "profiler start": "from whystall.capture.recorder import Recorder as it; it.start = broken",
    "profiler step": "from whystall.capture.recorder import Recorder as it; it.mark = broken",
    "full disk for the trace": "from whystall.capture.recorder import Recorder as it; it._write = full",
    "description": "from whystall.capture.session import Session as it; it._describe = broken",
    "module times": "from whystall.capture.torch_hooks import TorchHooks as it; it.watch = broken",
    "steps": "from whystall.capture.windows import Windows as it; it.step_ended = broken",
    "import of the session": "import sys; sys.modules['whystall.capture.session'] = None",
    "session": "from whystall.capture.session import Session as it; it.open = broken",
}
PRELUDE = """
import errno
def broken(*args, **kwargs):
    raise RuntimeError("broken on purpose")
def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")
"""


@pytest.mark.parametrize("part", BREAKS)
def test_failure_stays_ours(jobs: Jobs, part: str) -> None:
    without = jobs.command(sys.executable, TRAIN, "--end", "exit-3")
    site = jobs.home / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(PRELUDE + BREAKS[part] + "\n")
    ran = jobs.whystall(TRAIN, "--end", "exit-3", PYTHONPATH=str(site))
    assert ran.code == 3
    assert ran.stdout == without.stdout
    assert "Traceback" not in ran.stderr
    said = [line for line in ran.stderr.splitlines() if line.startswith("whystall: the job was not affected")]
    assert len(said) == 1, ran.stderr
    assert any(reason in said[0] for reason in ("broken on purpose", "No space left", "import of whystall"))


def test_failing_import_is_named(jobs: Jobs) -> None:
    package = jobs.home / "shadow" / "msgspec"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('no msgspec here')\n")
    ran = jobs.whystall("--", "env", f"PYTHONPATH={package.parent}", sys.executable, "-c", "print('on its own')")
    assert (ran.code, ran.stdout) == (0, "on its own\n")


def test_the_users_sitecustomize_still_runs(jobs: Jobs) -> None:
    site = jobs.home / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import builtins\nbuiltins.greeting = 'hello from the user'\n")
    (jobs.home / "job.py").write_text("print(greeting)\n")
    ran = jobs.whystall("job.py", PYTHONPATH=str(site))
    assert (ran.code, ran.stdout) == (0, "hello from the user\n")


def test_report_that_fails_keeps_the_exit_code(jobs: Jobs) -> None:
    if os.getuid() != 0:
        pytest.skip("the folder is taken away in a way that only root can")
    ran = jobs.whystall("--", "sh", "-c", f"{sys.executable} {TRAIN} --steps 16; rm -rf {jobs.folder}; exit 6")
    assert ran.code == 6
    assert "Traceback" not in ran.stderr
