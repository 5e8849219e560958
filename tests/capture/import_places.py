"""Jobs that import for long, each in another place: the files of each by name, ``job.py`` what runs.

Every job makes steps, and ends by saying what was seen of anybody else while it imported.
"""

from __future__ import annotations

from typing import Final

SLOWLY: Final = '''
"""Takes long, mostly asleep, and sees what happens meanwhile: to be called while a module is imported."""
import functools, io, os, sys, time

SECONDS = float(os.environ["SLOW_S"])
PROFILED = []  # moments in which a profiler ran
NEW = set()  # modules that somebody else has imported
CALLED = set()  # functions of whystall's that this thread was made to call

def looks():
    torch = sys.modules.get("torch")
    if torch is not None and not torch.__spec__._initializing and torch.autograd.profiler._is_profiler_enabled:
        PROFILED.append(time.monotonic())

def take(share=1.0, alone=True):
    until = time.monotonic() + share * SECONDS
    before = set(sys.modules)
    heard = io.StringIO()
    sys.setprofile(functools.partial(print, file=heard))  # no Python, in which a call could come unheard
    while time.monotonic() < until:
        tuple(map(str, range(2000)))
        time.sleep(0.02)
        looks()
    sys.setprofile(None)
    for line in heard.getvalue().splitlines():
        if "/whystall/" in line and " call " in line and "/samples.py" not in line:  # its entry in gc.callbacks
            CALLED.add(line.split("code ")[1].split(">")[0])
    if alone:  # no other thread of the job's imports
        NEW.update(set(sys.modules) - before)

def says():
    print("profiled", len(PROFILED), "new", sorted(NEW), "called", sorted(CALLED), flush=True)
'''
STEPS: Final = '''
"""Makes steps, once torch is there."""
import time, slowly

def steps(count=60, each=lambda: None):
    import torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(count):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).sum()
        loss.backward()
        optimizer.step()
        each()
        time.sleep(0.005)
    print("loss", loss.item().hex(), flush=True)
'''
ENDS: Final = "import slowly, steps\nsteps.steps()\nslowly.says()\n"
LONG: Final = "import slowly\nslowly.take()\nTHERE = True\n"
LATE: Final = "import torch\n" + LONG

PLACES: Final[dict[str, dict[str, str]]] = {
    "before torch": {"long.py": LONG, "job.py": "import long, torch\nprint(long.THERE)\n" + ENDS},
    "in what imports torch": {
        "library/__init__.py": "from library.core import THERE\nimport slowly\nslowly.take(0.3)\n",
        "library/core.py": "import torch\nimport slowly\nslowly.take(0.7)\nTHERE = True\n",
        "job.py": "import library\nprint(library.THERE)\n" + ENDS,
    },
    "before torch's compiler": {
        "long.py": LATE + "import torch._dynamo\nslowly.take(0.1)\nCOMPILE = torch._dynamo.optimize\n",
        "job.py": "import torch, long\nprint(long.THERE, callable(long.COMPILE))\n" + ENDS,
    },
    "in the third forward pass": {
        "long.py": LATE,
        "job.py": """
import torch, slowly, steps

class Lazy(torch.nn.Linear):
    passes = 0
    def forward(self, given):
        Lazy.passes += 1
        if Lazy.passes == 3:
            import long
            print(long.THERE)
        return super().forward(given)

torch.nn.Linear = Lazy
steps.steps()
slowly.says()
""",
    },
    "in a worker of a loader": {
        "long.py": LATE,
        "data.py": """
import torch

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, at):
        import long, slowly
        return torch.tensor([len(slowly.PROFILED), len(slowly.NEW), len(slowly.CALLED), long.THERE])
""",
        "job.py": """
import torch, slowly, steps
from data import Data
if __name__ == "__main__":
    for batch in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=1, multiprocessing_context="spawn"):
        print(batch)
    steps.steps()
    slowly.says()
""",
    },
    "on a thread while the main thread steps": {
        "long.py": "import torch, slowly\nslowly.take(alone=False)\nTHERE = True\n",
        "job.py": """
import importlib, threading, time, torch, slowly, steps
steps.steps(3)  # what the first of them import is there
thread = threading.Thread(target=importlib.import_module, args=("long",))
thread.start()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while thread.is_alive():
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
thread.join()
steps.steps()
slowly.says()
""",
    },
    "torch's compiler on a thread while the main thread steps": {
        "job.py": """
import sys, threading, time, torch, slowly, steps
made, begun = [], threading.Event()

class Waits:
    '''Finds nothing, and does so once the main thread has made a hundred steps: it is not to wait for this thread.'''
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch._inductor.config":
            begun.set()
            slowly.take(alone=False)
            until, first = time.monotonic() + 60.0, len(made)
            while len(made) < first + 100 and time.monotonic() < until:
                time.sleep(0.02)
            print("steps went on", len(made) >= first + 100)
        return None

def imports():
    import torch._inductor.config
    print(torch._inductor.config.triton.cudagraphs)

assert "torch._inductor" not in sys.modules
sys.meta_path.insert(0, Waits)
thread = threading.Thread(target=imports)
thread.start()
begun.wait()
weight = torch.ones(64, requires_grad=True)
while thread.is_alive():  # without an optimizer, which would import the compiler here
    (weight * 2).sum().backward()
    made.append(None)
    time.sleep(0.005)
steps.steps()
slowly.says()
""",
    },
    "in a package that tries another way": {
        "package/__init__.py": """
try:
    from package import fast as way
except ImportError as error:
    print(error)
    from package import plain as way
""",
        "package/fast.py": "import torch, slowly\nslowly.take(0.5)\nraise ImportError('not built')\n",
        "package/plain.py": "import slowly\nslowly.take(0.5)\nTHERE = True\n",
        "job.py": """
import sys, package
print(package.way.THERE, sorted(name for name in sys.modules if name.startswith("package")))
""" + ENDS,
    },
    "in a circle": {
        "one.py": "import torch\nEARLY = 1\nimport two\nLATER = 2\n",
        "two.py": """
import one, slowly
slowly.take(0.5)
print(one.EARLY, hasattr(one, "LATER"))
try:
    from one import LATER
except ImportError as error:
    print(type(error).__name__, error.name)
slowly.take(0.5)
from one import EARLY
""",
        "job.py": "import one\nfrom two import EARLY\nprint(one.LATER, EARLY)\n" + ENDS,
    },
    "in a plugin that main loads": {
        "plugins/long.py": LATE,
        "job.py": """
import importlib, torch, slowly, steps

def main():
    model = torch.nn.Linear(2, 2)
    print(importlib.import_module("plugins.long").THERE, model(torch.zeros(1, 2)).shape)
    steps.steps()
    slowly.says()

main()
""",
    },
    "in a finder of modules": {
        "found.py": "THERE = True\n",
        "job.py": """
import sys, torch, slowly, steps
asked = []

class Slow:
    @staticmethod
    def find_spec(name, path=None, target=None):
        asked.append(name)
        if name == "found":
            slowly.take()
        return None

sys.meta_path.insert(0, Slow)
import found
print(found.THERE, asked)
steps.steps()
slowly.says()
""",
    },
    "in an import that trains": {
        "trains.py": """
import torch, slowly, steps
slowly.take(0.5)
steps.steps(each=slowly.looks)
slowly.take(0.5)
""",
        "job.py": "import trains\n" + ENDS,
    },
    "in an import that fails": {
        "bad.py": LATE + "raise ValueError('no such device')\n",
        "job.py": """
import sys
try:
    import bad
except ValueError as error:
    print(error, "bad" in sys.modules, "torch" in sys.modules)
""" + ENDS,
    },
    "in a program that runpy runs": {
        "long.py": LATE,
        "program/__main__.py": "import torch\nfrom long import THERE\nprint(__name__, THERE)\n" + ENDS,
        "job.py": "import runpy\nrunpy.run_module('program', run_name='__main__', alter_sys=True)\n",
    },
    "before the program begins": {
        "sitecustomize.py": """
import os
if os.environ.get("SLOW_S"):
    import torch, slowly
    slowly.take()
""",
        "job.py": "import sys\nprint('torch' in sys.modules, sys.argv)\n" + ENDS,
    },
    "in a lazy library": {
        "job.py": """
import sys, time, torch, transformers, slowly

class Slow:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "transformers.models.bert.modeling_bert":
            slowly.take()
        return None

sys.meta_path.insert(0, Slow)
from transformers import BertConfig, BertModel
config = BertConfig(
    hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=16,
    max_position_embeddings=8,
)
torch.manual_seed(0)
model = BertModel(config)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    loss = model(torch.zeros(1, 4, dtype=torch.long)).last_hidden_state.sum()
    loss.backward()
    optimizer.step()
print("loss", loss.item().hex())
slowly.says()
""",
    },
}  # fmt: skip
SELDOM: Final = (
    "before torch's compiler",
    "in a plugin that main loads",
    "in a program that runpy runs",
    "in a lazy library",
)
"""Those that run where the whole battery is asked for."""
