"""Small jobs that end, fail and start others in one way each: run plain and watched, and compared from outside.

Each is the source of a program; ``LEARNS`` comes first, and makes a model, an optimizer and some steps.
"""

from __future__ import annotations

from typing import Final

LEARNS: Final = """
import os, sys, time, signal, threading
import torch
watched = 'whystall.capture' in sys.modules
def looked_for(seconds):
    # the end of the time in which a watched job waits for whystall's looks: nothing looks at a plain one
    return time.monotonic() + (seconds if watched else .1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    optimizer.step()
    return loss.item()
for _ in range(20):
    last = step()
print("learned", last.hex(), flush=True)
"""

PROGRAMS: Final[dict[str, str]] = {
    "ends": "torch.save(model, 'model.pt')",
    "exits with a code": "sys.exit(3)",
    "exits with a word": "sys.exit('a word')",
    "exits at once": "print('unflushed'); sys.stdout.flush(); os._exit(5)",
    "exits at once on a thread": "threading.Thread(target=lambda: os._exit(6)).start(); time.sleep(60)",
    "fails in forward": "model(torch.ones(3))",
    "fails in backward": "torch.ones(2, requires_grad=True).backward()",
    "fails in an optimizer": "optimizer.param_groups[0]['lr'] = None\nstep()",
    "fails in saving": "torch.save(lambda: 0, 'model.pt')",
    "fails in data": (
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, at): raise KeyError(at)\n"
        "for batch in torch.utils.data.DataLoader(Data()): pass"
    ),
    "fails on a thread": (
        "thread = threading.Thread(target=lambda: model(torch.ones(3)), name='users')\nthread.start(); thread.join()"
    ),
    "is interrupted": "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)",
    "is terminated": "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
    "hangs up": "os.kill(os.getpid(), signal.SIGHUP); time.sleep(60)",
    "gets a signal of the user's": "os.kill(os.getpid(), signal.SIGUSR2); time.sleep(60)",
    "handles its end": (
        "def ends(number, frame):\n    print('saves', number); sys.exit(7)\n"
        "print(signal.signal(signal.SIGTERM, ends)); os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)"
    ),
    "ignores its end": (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); os.kill(os.getpid(), signal.SIGTERM); print('goes on')"
    ),
    "aborts": "os.abort()",
    "is at a wrong address": (
        "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.kill(os.getpid(), signal.SIGSEGV)"
    ),
    "has last words": "import atexit; atexit.register(lambda: print('last')); print('before')",
    "leaves a thread": "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "spawns": (
        "import multiprocessing\nif __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=os._exit, args=(4,))\n"
        "    child.start(); child.join(); print(child.exitcode)"
    ),
    "forks": (
        "pid = os.fork()\nif not pid: print('child', step(), flush=True); os._exit(2)\n"
        "print(os.waitpid(pid, 0)[1] >> 8)"
    ),
    "starts another": (
        "import subprocess\ncode = 'import sys; print(sys.argv); sys.exit(9)'\n"
        "print(subprocess.run([sys.executable, '-c', code, 'x'], capture_output=True, text=True))"
    ),
    "becomes another": "os.execv(sys.executable, [sys.executable, '-c', 'print(\"another\")'])",
    "loads with workers": (
        "data = torch.utils.data.TensorDataset(torch.arange(12.0))\nif __name__ == '__main__':\n"
        "    for batch in torch.utils.data.DataLoader(data, batch_size=4, num_workers=2): print(batch)"
    ),
    "goes elsewhere": (
        "import tempfile, shutil\nfolder = tempfile.mkdtemp(); os.chdir(folder); shutil.rmtree(folder)\n"
        "for _ in range(20): step()\nprint('no folder')"
    ),
    "closes its streams": "sys.stdout.close(); sys.stderr.close(); os._exit(8) if False else None",
    "reads its input": "print(sys.stdin.read())",
    "asks for the interval": "seen = {sys.getswitchinterval() for _ in range(2000) if not step() * 0}\nprint(seen)",
    "sets the interval": (
        "sys.setswitchinterval(0.001); print(sys.getswitchinterval()); time.sleep(0.3)\nprint(sys.getswitchinterval())"
    ),
    "collects": "import gc\nprint(gc.collect() >= 0, gc.garbage, gc.isenabled())\nfor _ in range(3): gc.collect()",
    "compiles": (
        "compiled = torch.compile(model, backend='eager', fullgraph=True)\nprint(compiled(torch.ones(2, 4)))\n"
        "print(torch._dynamo.utils.counters['stats'])\n"
        "made = torch.compile(lambda x: x * len(torch.optim.SGD([x], lr=0.1).param_groups), backend='eager')\n"
        "print(made(torch.ones(2, requires_grad=True)))"
    ),
    "is scripted": (
        "torch.jit.script(model).save('scripted.pt'); print(torch.jit.load('scripted.pt')(torch.ones(1, 4)))"
    ),
    "waits for every thread": (
        "threading.Thread(target=lambda: print('worker')).start()\n"
        "for each in threading.enumerate():\n    if each is not threading.main_thread(): each.join()\n"
        "print(threading.active_count())"
    ),
    "profiles its threads": (
        "seen = []\nthreading.setprofile(lambda frame, event, given: seen.append(frame.f_code.co_filename))\n"
        "torch.optim.SGD(model.parameters()); time.sleep(1.5); print(len(seen))"
    ),
    "closes what it inherited": (
        "os.closerange(3, 256)\nfiles = [open(f'{n}.txt', 'w') for n in range(3)]\n"
        "for n in range(300):\n    step()\n    for file in files: file.write(f'step {n}\\n')\n"
        "    if n == 100: os.closerange(files[-1].fileno() + 1, 256); files.append(open('data.bin', 'w'))\n"
        "    time.sleep(.004)\nprint(files[-1].fileno())"
    ),
    "has time limits": (
        "caught = raised = 0\ndef over(number, frame):\n    global raised\n    raised += 1\n    raise TimeoutError\n"
        "signal.signal(signal.SIGALRM, over)\nfor n in range(200):\n    try:\n"
        "        signal.setitimer(signal.ITIMER_REAL, .0005 + n % 50 * .0002)\n"
        "        while raised <= n: step()\n"
        "    except TimeoutError: caught += 1\n    raised = n + 1; torch.set_grad_enabled(True)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\nprint(caught)"
    ),
    "mocks the clock": (
        "import itertools\nfrom unittest import mock\n"
        "for name in ('time', 'time_ns', 'monotonic', 'perf_counter', 'perf_counter_ns', 'thread_time_ns'):\n"
        "    count = itertools.count()\n    with mock.patch('time.' + name, side_effect=lambda: next(count)):\n"
        "        for _ in range(60): step()\n        print(name, getattr(time, name)())"
    ),
    "hears torch's functions": (
        "import collections\nfrom torch.overrides import TorchFunctionMode\nseen = collections.Counter()\n"
        "class Counts(TorchFunctionMode):\n    def __torch_function__(self, function, types, args=(), kwargs=None):\n"
        "        seen[getattr(function, '__name__', '?')] += 1\n        return function(*args, **(kwargs or {}))\n"
        "with Counts():\n    for _ in range(250): step()\nprint(sorted(seen.items()))"
    ),
    "hears torch's functions as it computes again": (
        "import collections, contextlib\nfrom torch.overrides import TorchFunctionMode\n"
        "from torch.utils.checkpoint import checkpoint\nseen = collections.Counter()\n"
        "class Counts(TorchFunctionMode):\n    def __torch_function__(self, function, types, args=(), kwargs=None):\n"
        "        seen[getattr(function, '__name__', '?')] += 1\n        return function(*args, **(kwargs or {}))\n"
        "class Own(torch.Tensor):\n    @classmethod\n"
        "    def __torch_function__(cls, function, types, args=(), kwargs=None):\n"
        "        seen['own ' + getattr(function, '__name__', '?')] += 1\n"
        "        return super().__torch_function__(function, types, args, kwargs or {})\n"
        "for number in range(250):\n    with Counts() if number % 2 else contextlib.nullcontext():\n"
        "        x = torch.ones(2, 4); x = x.as_subclass(Own) if number % 3 == 0 else x\n"
        "        out = checkpoint(model, x, use_reentrant=bool(number % 2)) if number % 5 == 0 else model(x)\n"
        "        optimizer.zero_grad(); out.sum().backward() if out.requires_grad else None; optimizer.step()\n"
        "print(sorted(seen.items()))"
    ),
    "learns what fills a mask": (
        "fills = [torch.nn.Parameter(torch.tensor(.5)) for _ in range(12)]\nx = torch.randn(100, 100)\n"
        "masks = [torch.rand(100, 100) < .3 for _ in fills]\nlayer = torch.nn.Linear(100, 100)\n"
        "other = torch.optim.SGD([*fills, *layer.parameters()], lr=0.)\nseen, end = set(), looked_for(6)\n"
        "while time.monotonic() < end:\n    other.zero_grad()\n"
        "    sum(torch.tanh(layer(x)).masked_fill(m, t) for m, t in zip(masks, fills)).pow(2).mean().backward()\n"
        "    other.step(); optimizer.step(); seen.add(tuple(t.grad.item() for t in fills))\nprint(len(seen))"
    ),
    **{
        f"{what} as its operators are followed": (
            "layers = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(3)])\n"
            "other = torch.optim.SGD(layers.parameters(), lr=.01)\n"
            "fixed, aux = torch.randn(512, 256), torch.nn.Linear(8, 8)\n"
            "part, hooks = torch.randn(12, 12)[:, :8], torch.nn.modules.module._global_forward_hooks\n"
            "modes = torch._C._len_torch_dispatch_stack\n"
            "def learns():\n    layers(fixed).square().mean().backward(); other.step(); other.zero_grad()\n"
            f"def does():\n    {does}\n"
            "end, n = looked_for(14), 0\nwhile n < 2:\n    learns()\n"
            f"    if {now} or time.monotonic() > end: does(); n += 1\nfor _ in range(20): learns()"
        )
        for what, now, does in (
            # the steps in which whystall follows operators, or modules; none in a plain run
            ("exports", "modes()", "print(torch.export.export(aux, (part,)).graph)"),
            ("exports strictly", "hooks", "print(torch.export.export(aux, (part,), strict=True).graph)"),
            ("compiles whole", "hooks", "print(torch.compile(aux, fullgraph=True, backend='eager')(part).shape)"),
            (
                "branches",
                "modes()",
                "print(torch.cond(torch.tensor(True), torch.sin, torch.cos, (torch.ones(2),)))",
            ),
            (
                "profiles",
                "modes()",
                "with torch.profiler.profile() as p: learns()\n    print(str(p.events()).count('aten::addmm'))",
            ),
        )
    },
    "hands its tensors out once": (
        "class Once(dict):\n    def values(self):\n        found = list(super().values()); self.clear(); return found\n"
        "class Data(torch.utils.data.IterableDataset):\n    def __iter__(self):\n"
        "        for n in range(200): yield Once(ids=torch.full((2, 4), n), x=torch.ones(2, 4))\n"
        "class Counts(torch.nn.Sequential):\n    def parameters(self, recurse=True):\n"
        "        print('asked'); return super().parameters(recurse)\n"
        "net = Counts(torch.nn.Linear(4, 1)); other = torch.optim.SGD(net.parameters(), lr=.1)\n"
        "for batch in torch.utils.data.DataLoader(Data(), batch_size=None):\n    ids, x = batch.values()\n"
        "    net(x).sum().backward(); other.step(); other.zero_grad()\nprint(len(batch))"
    ),
    "holds a file that was cut short": (
        "import numpy as np\nopen('big.bin', 'wb').write(bytes(1 << 20))\n"
        "rows = torch.from_numpy(np.memmap('big.bin', np.int64, 'r+', shape=(128, 1024)))\nos.truncate('big.bin', 0)\n"
        "class Net(torch.nn.Module):\n    def __init__(self):\n"
        "        super().__init__(); self.layer = torch.nn.Linear(256, 256)\n"
        "    def forward(self, x, unread): return self.layer(x)\n"
        "class Data(torch.utils.data.IterableDataset):\n    def __iter__(self):\n"
        "        while time.monotonic() < end: yield {'input_ids': rows, 'x': torch.ones(512, 256)}\n"
        "net = Net(); other = torch.optim.SGD(net.parameters(), lr=.1); end = looked_for(9)\n"
        "for batch in torch.utils.data.DataLoader(Data(), batch_size=None):\n"
        "    net(batch['x'], batch['input_ids']).sum().backward(); other.step(); other.zero_grad()\nprint('lives')"
    ),
    "limits its files to little": (
        "import resource\nsignal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\nfor _ in range(400): step()"
    ),
    "limits its files": (
        "import resource\nsignal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\nfor _ in range(400): step()"
    ),
}  # fmt: skip

OFTEN: Final = (
    "ends",
    "exits at once",
    "exits at once on a thread",
    "fails in forward",
    "fails in backward",
    "fails in an optimizer",
    "fails in data",
    "fails on a thread",
    "is interrupted",
    "is terminated",
    "gets a signal of the user's",
    "handles its end",
    "has last words",
    "spawns",
    "forks",
    "starts another",
    "loads with workers",
    "goes elsewhere",
    "asks for the interval",
    "compiles",
    "waits for every thread",
    "profiles its threads",
    "closes what it inherited",
    "has time limits",
    "mocks the clock",
    "hears torch's functions",
    "hears torch's functions as it computes again",
    "learns what fills a mask",
    "limits its files",
    "limits its files to little",
    "exports as its operators are followed",
    "exports strictly as its operators are followed",
    "compiles whole as its operators are followed",
    "hands its tensors out once",
    "holds a file that was cut short",
)
"""Those that every run of the tests runs; the others where the whole battery is asked for."""
