"""A job that trains for a while, then says all that a program can see of itself: run plain and watched, and compared.

Prints one line of JSON: of each aspect what was seen, as text; bytes as their digest.
"""

from __future__ import annotations

import collections
import copy
import functools
import gc
import hashlib
import inspect
import io
import json
import logging
import os
import pickle
import random
import resource
import signal
import sys
import tempfile
import threading
import time
import typing
import warnings
import weakref
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

STARTED: dict[str, Any] = {
    "path": list(sys.path),
    "argv": list(sys.argv),
    "modules": sorted(name for name in sys.modules if name.startswith(("msgspec", "numpy", "torch", "psutil"))),
    "finders": len(sys.path_hooks),
    "environment": {key: value for key, value in os.environ.items() if not key.startswith(("WHYSTALL", "KINETO"))},
    "descriptors": len(list(Path("/proc/self/fd").iterdir())),
}

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

STEPS = 160


class Net(nn.Module):
    """A model of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.BatchNorm1d(16))
        self.last = nn.Linear(16, 1)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """What comes out."""
        return self.last(self.inner(self.embed(given).mean(1)))


class Numbers(TensorDataset):
    """Data of the user's."""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def saved(what: object, **how: Any) -> str:
    file = io.BytesIO()
    torch.save(what, file, **how)
    return digest(file.getvalue())


def in_folder(write: Callable[[Path], object]) -> list[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        return [
            (str(path.relative_to(folder)), digest(path.read_bytes()))
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        ]


class Job:
    """Trains, and is asked afterwards."""

    def __init__(self) -> None:
        random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 10)
        self.scaler = torch.amp.GradScaler("cpu", enabled=False)
        data = Numbers(torch.randint(0, 16, (STEPS * 4, 6)), torch.randn(STEPS * 4, 1))
        self.loader = DataLoader(data, batch_size=4, shuffle=True)
        self.losses: list[str] = []
        self.given = torch.randint(0, 16, (4, 6))

    def train(self) -> None:
        for given, wanted in self.loader:
            time.sleep(0.005)  # of shorter steps forward passes are not timed
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(given), wanted)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            self.losses.append(float(loss).hex())
            if len(self.losses) % 16 == 0:
                torch.save(self.model.state_dict(), io.BytesIO())


job = Job()
FUNCTIONS = {
    "torch.save": torch.save,
    "os._exit": os._exit,
    "Module.__init__": nn.Module.__init__,
    "Module.__setstate__": nn.Module.__setstate__,
    "Module.__call__": nn.Module.__call__,
    "Optimizer.__init__": torch.optim.Optimizer.__init__,
    "DataLoader.__iter__": DataLoader.__iter__,
    "_BaseDataLoaderIter.__next__": torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
    "GradScaler.step": torch.amp.GradScaler.step,
    "jit.script": torch.jit.script,
    "autograd.backward": torch.autograd.backward,
    "_engine_run_backward": torch.autograd._engine_run_backward,
    "profile._prepare_trace": torch.autograd.profiler.profile._prepare_trace,
    "Tensor.numpy": torch.Tensor.numpy,
    "Tensor.tolist": torch.Tensor.tolist,
    "Tensor.backward": torch.Tensor.backward,
    "AdamW.step": torch.optim.AdamW.step,
    "signal.signal": signal.signal,
    "sys.getswitchinterval": sys.getswitchinterval,
    "Net.forward": Net.forward,
}


def of_function(function: Any) -> list[str]:
    def tried(ask: Callable[[Any], object]) -> str:
        try:
            return str(ask(function))
        except (TypeError, ValueError, NameError, OSError, pickle.PicklingError, AttributeError) as error:
            return type(error).__name__

    asks: tuple[Callable[[Any], object], ...] = (
        pickle.dumps,
        lambda one: pickle.loads(pickle.dumps(one)) is one,  # noqa: S301
        lambda one: copy.deepcopy(one) is one,
        lambda one: copy.copy(one) is one,
        lambda one: weakref.ref(one)() is one,
        typing.get_type_hints,
        inspect.signature,
        inspect.getsource,
        lambda one: (inspect.isfunction(one), inspect.isbuiltin(one), inspect.isroutine(one), callable(one)),
        lambda one: (one.__name__, one.__qualname__, one.__module__, one.__doc__),
        lambda one: (type(one), sorted(vars(one)), one.__defaults__, one.__kwdefaults__, len(one.__closure__ or ())),
        lambda one: (one.__code__.co_filename, one.__code__.co_firstlineno, one.__code__.co_flags),
    )
    return [tried(ask) for ask in asks]


def exported() -> list[str]:
    program = torch.export.export(copy.deepcopy(job.model).eval(), (job.given,))
    return [str(program.graph), str(program.graph_signature)]


def compiled() -> list[Any]:
    torch._dynamo.reset()
    graphs: list[str] = []

    def backend(module: Any, _given: Any) -> Any:
        graphs.append(module.code)
        return module.forward

    model = copy.deepcopy(job.model).eval()
    one = torch.compile(model, backend=backend)
    for size in (4, 4, 5):
        one(torch.zeros(size, 6, dtype=torch.long))
    whole = torch.compile(job.model.eval(), backend=backend, fullgraph=True)
    whole(job.given)
    return [graphs, dict(torch._dynamo.utils.counters["stats"])]


def compiled_in_place() -> list[str]:
    torch._dynamo.reset()
    graphs: list[str] = []

    def backend(module: Any, _given: Any) -> Any:
        graphs.append(module.code)
        return module.forward

    model = copy.deepcopy(job.model).eval()
    model.compile(backend=backend)
    model(job.given)
    model(job.given)
    return graphs


def package(folder: Path) -> None:
    with torch.package.PackageExporter(str(folder / "model.pt")) as exporter:
        exporter.extern("**")
        exporter.save_pickle("model", "model.pkl", job.model.inner)


def pretrained(folder: Path) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=16,
        max_position_embeddings=8,
    )  # fmt: skip
    torch.manual_seed(2)
    model = BertModel(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.zeros(1, 4, dtype=torch.long)).last_hidden_state.sum().backward()
    optimizer.step()
    model.save_pretrained(folder)
    BertModel.from_pretrained(folder).save_pretrained(folder / "again")


def safe(folder: Path) -> None:
    from safetensors.torch import save_model

    save_model(job.model, str(folder / "model.safetensors"))


def lightning(folder: Path) -> None:
    import lightning

    class Trained(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 1)

        def training_step(self, batch: Any, _number: int) -> Any:
            return self.net(batch[0]).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = lightning.Trainer(
        max_steps=3, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, accelerator="cpu",
    )  # fmt: skip
    torch.manual_seed(3)
    trainer.fit(Trained(), DataLoader(TensorDataset(torch.ones(16, 4)), batch_size=4))
    trainer.save_checkpoint(folder / "checkpoint.ckpt")


def accelerated() -> list[str]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(copy.deepcopy(job.model), torch.optim.SGD(job.model.parameters(), lr=0.1))
    return [saved(accelerator.unwrap_model(model)), saved(optimizer.state_dict()), str(sorted(vars(model)))]


def forked() -> str:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, saved(job.model).encode())
        os._exit(3)
    os.close(writing)
    with os.fdopen(reading) as file:
        told = file.read()
    return f"{told} {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}"


def sent(context: str) -> str:
    from torch import multiprocessing

    queue = multiprocessing.get_context(context).Queue()
    queue.put((copy.deepcopy(job.model.last), "model"))
    model, word = queue.get(timeout=60)
    return f"{saved(model.state_dict())} {word} {sorted(vars(model))}"


RAISED = "raised"
"""The key of what an aspect raised that was not to raise."""


def raised(how: Callable[[], object]) -> str:
    import traceback

    try:
        how()
    except Exception:  # noqa: BLE001 - whatever it is, it is compared
        return traceback.format_exc()
    return "nothing"


class Failing(torch.utils.data.Dataset[Any]):
    """Data that cannot be read."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, at: int) -> Any:
        raise KeyError("no such sample")


class Unstepped(torch.optim.SGD):
    """Refuses to step."""

    def step(self, closure: Any = None) -> Any:
        raise RuntimeError("does not step")


class Unmade(nn.Module):
    """Cannot be made."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(2, 2)
        raise RuntimeError("not made")


def dispositions() -> list[Any]:
    lines = Path("/proc/self/status").read_text().splitlines()
    masks = [line.split() for line in lines if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]
    # 32 and 33 are glibc's own: taken when a first thread starts
    return [
        [(name, int(mask, 16) & ~(0b11 << 31)) for name, mask in masks],
        [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        signal.set_wakeup_fd(-1),
        str(signal.getitimer(signal.ITIMER_REAL)),
    ]


def randoms() -> list[str]:
    return [
        digest(pickle.dumps(random.getstate())),
        digest(pickle.dumps(np.random.get_state())),  # noqa: NPY002
        digest(torch.get_rng_state().numpy().tobytes()),
    ]


def hooks_of(model: nn.Module) -> list[Any]:
    return [(name, len(value)) for name, value in sorted(vars(model).items()) if name.endswith("hooks")]


def loggers() -> list[Any]:
    ours = "whystall"
    named = sorted(name for name in logging.root.manager.loggerDict if not name.startswith(ours))
    return [logging.root.level, len(logging.root.handlers), [name for name in named if name.startswith("torch.optim")]]


def setting(ask: Callable[[], object]) -> Callable[[], str]:
    return lambda: str(ask())


ASPECTS: dict[str, Callable[[], object]] = {
    "start: path": lambda: STARTED["path"],
    "start: arguments": lambda: STARTED["argv"],
    "start: modules": lambda: STARTED["modules"],
    "start: hooks of the path": lambda: STARTED["finders"],
    "start: environment": lambda: {
        key: value for key, value in STARTED["environment"].items() if key not in {"PYTHONPATH", "_", "SHLVL"}
    },
    "start: descriptors": lambda: STARTED["descriptors"],
    "losses": lambda: job.losses,
    "random states after training": randoms,
    "signals": dispositions,
    "model saved whole": lambda: saved(job.model),
    "model saved in the old format": lambda: len(saved(job.model, _use_new_zipfile_serialization=False)),
    "model saved by another pickle protocol": lambda: saved(job.model, pickle_protocol=4),
    "state": lambda: saved(job.model.state_dict()),
    "optimizer": lambda: [saved(job.optimizer), saved(job.optimizer.state_dict()), sorted(vars(job.optimizer))],
    "scheduler": lambda: [saved(job.scheduler.state_dict()), sorted(vars(job.scheduler))],
    "scaler": lambda: saved(job.scaler),
    "loader": lambda: [saved(job.loader), sorted(vars(job.loader))],
    "gradients": lambda: saved([each.grad for each in job.model.parameters()]),
    "model copied": lambda: saved(copy.deepcopy(job.model)),
    "model copied flat": lambda: sorted(vars(copy.copy(job.model))),
    "optimizer copied": lambda: saved(copy.deepcopy(job.optimizer)),
    "model pickled": lambda: str(b"whystall" in pickle.dumps(job.model)),
    "model for another process": lambda: str(b"whystall" in bytes(ForkingPickler.dumps(job.model.last))),
    "weights alone": lambda: sorted(
        torch.load(io.BytesIO(_written(job.model.state_dict())), weights_only=True)
    ),
    "model loaded again": lambda: saved(torch.load(io.BytesIO(_written(job.model)), weights_only=False)),
    "scripted": lambda: torch.jit.script(copy.deepcopy(job.model)).code,
    "scripted itself": lambda: [torch.jit.script(job.model.inner).code, torch.jit.script(job.model).code],
    "traced": lambda: str(torch.jit.trace(copy.deepcopy(job.model).eval(), job.given).graph),
    "frozen": lambda: str(torch.jit.freeze(torch.jit.script(copy.deepcopy(job.model).eval())).graph),
    "symbolic": lambda: torch.fx.symbolic_trace(job.model).code,
    "exported": exported,
    "compiled": compiled,
    "compiled in place": compiled_in_place,
    "packaged": lambda: in_folder(package),
    "safetensors": lambda: in_folder(safe),
    "transformers": lambda: in_folder(pretrained),
    "lightning": lambda: in_folder(lightning),
    "accelerate": accelerated,
    "forked": forked,
    "sent by fork": lambda: sent("fork"),
    "sent by spawn": lambda: sent("spawn"),
    "numbers of hooks": lambda: [
        nn.Linear(1, 1).register_forward_hook(print).id,
        job.optimizer.register_step_post_hook(print).id,
        torch.ones(1, requires_grad=True).register_hook(print).id,
    ],
    "attributes": lambda: {name: sorted(vars(each)) for name, each in job.model.named_modules()},
    "hooks": lambda: {name: hooks_of(each) for name, each in job.model.named_modules()},
    "classes": lambda: [sorted(vars(kind)) for kind in (Net, Numbers, nn.Module, torch.optim.Optimizer, DataLoader)],
    "own names": lambda: sorted(name for name in globals() if not name.startswith("__")),
    "bound to the class": lambda: [type(job.model).__call__ is nn.Module.__call__, type(job.model).__mro__.__len__()],
    "error in backward": lambda: raised(lambda: torch.ones(2, requires_grad=True).backward()),
    "error in backward twice": lambda: raised(_twice),
    "error in forward": lambda: raised(lambda: job.model(torch.ones(3))),
    "error in data": lambda: raised(lambda: list(DataLoader(Failing()))),
    "error in saving": lambda: raised(lambda: torch.save(lambda: 0, io.BytesIO())),
    "error in a step": lambda: raised(lambda: Unstepped(job.model.parameters(), lr=1.0).step()),
    "error in a constructor": lambda: raised(Unmade),
    "error of arguments": lambda: raised(lambda: nn.Linear(2)),
    "error of an optimizer": lambda: raised(lambda: torch.optim.SGD([], lr=1.0)),
    "error of a scaler": lambda: raised(lambda: torch.amp.GradScaler("cpu").step(job.optimizer)),
    "error of an exit": lambda: raised(lambda: os._exit("no number")),  # type: ignore[arg-type]
    "profiler of its own": lambda: _profiled(),  # noqa: PLW0108 - it is defined below
    "grad mode": setting(torch.is_grad_enabled),
    "threads of torch": setting(lambda: (torch.get_num_threads(), torch.get_num_interop_threads())),
    "determinism": setting(lambda: (torch.are_deterministic_algorithms_enabled(), torch.get_default_dtype())),
    "garbage collector": setting(lambda: (gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.get_freeze_count())),
    "switch interval": setting(sys.getswitchinterval),
    "recursion": setting(sys.getrecursionlimit),
    "tracing": setting(lambda: (sys.gettrace(), sys.getprofile())),
    "hook of errors": setting(lambda: sys.excepthook is sys.__excepthook__),
    "hook of errors that nobody sees": setting(lambda: sys.unraisablehook is sys.__unraisablehook__),
    "display": setting(lambda: (sys.displayhook is sys.__displayhook__, sys.breakpointhook is sys.__breakpointhook__)),
    "streams": setting(lambda: (sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__)),
    "warnings": setting(lambda: [(each[0], str(each[2])) for each in warnings.filters][-4:]),
    "loggers": loggers,
    "limits": setting(lambda: [resource.getrlimit(each) for each in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS)]),
    "affinity": setting(lambda: sorted(os.sched_getaffinity(0))),
    "priority": setting(lambda: os.getpriority(os.PRIO_PROCESS, 0)),
    "mask of files": setting(lambda: os.umask(os.umask(0o022))),
    "loader of torch": setting(lambda: (type(torch.__spec__), type(torch.__loader__), torch.__spec__._initializing)),
    "finders": setting(lambda: [getattr(each, "__name__", type(each).__name__) for each in sys.meta_path]),
    "main thread": setting(lambda: threading.current_thread() is threading.main_thread()),
    "random states at the end": randoms,
    **{f"function {name}": functools.partial(of_function, function) for name, function in FUNCTIONS.items()},
}  # fmt: skip


def _written(what: object) -> bytes:
    file = io.BytesIO()
    torch.save(what, file)
    return file.getvalue()


def _twice() -> None:
    loss = job.model(job.given).sum()
    loss.backward()
    loss.backward()


def _profiled() -> list[Any]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.ones(4, 4) @ torch.ones(4, 4)
    counted = collections.Counter(event.key for event in profiler.events())
    return [counted["aten::mm"], len(profiler.events())]


def main() -> None:
    warnings.simplefilter("ignore")
    job.train()
    told: dict[str, object] = {}
    for name, ask in ASPECTS.items():
        try:
            told[name] = ask()
        except Exception as error:  # noqa: BLE001 - the others are asked all the same
            told[name] = {RAISED: f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(told, default=str) + "\n")


if __name__ == "__main__":
    main()
