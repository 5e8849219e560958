"""Windows by the clock one after another, and scopes that begin in one of them and end after it."""

import gc
import sys
from pathlib import Path

import torch
from torch.profiler import record_function

from whystall.capture.config import CaptureConfig
from whystall.capture.stepless import SteplessWindow

folder = Path(sys.argv[1])
data = torch.randn(8, 8)
for turn in range(20):
    window = SteplessWindow(torch, CaptureConfig(folder=str(folder)), folder, lambda work: work(), lambda: True)
    window._begin()
    scopes = [record_function(f"a scope whose name is on the heap, {turn} {number}") for number in range(2000)]
    for scope in scopes:
        scope.__enter__()
    for _ in range(20):
        data @ data
    window._end()
    window._begin()
    for _ in range(200):
        torch.add(data, data)
    for scope in reversed(scopes):
        scope.__exit__(None, None, None)
    del scope, scopes
    window.discard()
    gc.collect()
print("done")
