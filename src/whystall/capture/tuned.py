"""The settings of one run of ``tune`` in a watched process: loaders, optimizers, models and threads, as made.

Constructors of torch's own are wrapped: the arguments of the user's code are noted with their place, and replaced by
the trial's. Nothing else is changed, and no file.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Final, Protocol

from whystall.capture import clock
from whystall.capture.affinity import affinity_seen, bind
from whystall.capture.config import CaptureConfig, TrialSetup
from whystall.capture.experiments import Injected, end_after_enough
from whystall.capture.losses import LossesSeen
from whystall.capture.tuned_model import TunedModel, has_compiled

_BUCKET_MB: Final = 25  # torch.nn.parallel.DistributedDataParallel's own default
LOADER_SETTINGS: Final = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory")
_MOST_SEEN: Final = 16


class Change(Protocol):
    """The change of a further run of a command."""

    note: str | None

    @property
    def seen(self) -> dict[str, Any] | None:
        """The facts of the run, for the next trials."""

    def install(self) -> None:
        """Changes before the user's code makes anything."""

    def first_step(self) -> None:
        """Changes once the model exists."""

    def step_ended(self, steps: int) -> None:
        """Ends the process after enough steps."""


def change_for(torch: Any, config: CaptureConfig) -> Change | None:
    """The change that a capture makes, if any."""
    if config.trial is not None:
        return Tuned(torch, config.trial)
    return Injected(torch, config.experiment) if config.experiment is not None else None


class Tuned:
    """The settings of one trial. Every method may raise: the session guards them."""

    def __init__(self, torch: Any, trial: TrialSetup) -> None:
        self._torch = torch
        self._trial = trial
        self._began_ns = 0
        self.note: str | None = None
        self._model = TunedModel(torch, trial.settings)
        self._losses = LossesSeen(torch)
        self._made: dict[str, list[dict[str, Any]]] = {"loaders": [], "optimizers": [], "wrapped": []}
        self._threads: int | None = None
        self._devices = 0
        self._affinity: dict[str, Any] = {}

    @property
    def seen(self) -> dict[str, Any]:
        """How things are made, with their places, and under ``refused`` which settings could not be made, and why."""
        return {
            **self._made,
            "models": self._model.models,
            "autocast": self._model.uses_autocast,
            "compiled": has_compiled(),
            "bf16": self._model.computes_bf16(),
            "threads": self._threads,
            "affinity": self._affinity,
            "devices": self._devices,
            "refused": self._refused(),
            "losses": self._losses.told(),
        }

    def install(self) -> None:
        """Wraps the constructors of loaders and optimizers; called before the user's code goes on."""
        from torch.utils.data import DataLoader  # noqa: PLC0415 - the user has imported torch

        cores = str(self._trial.settings.get("affinity", ""))
        if cores[:1].isdecimal():  # else variables set it
            bind(cores)
        under_way: set[int] = set()
        _wrap_constructor(DataLoader, self._loader, under_way)
        optim = self._torch.optim
        for name in ("Adam", "AdamW", "SGD", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"):
            kind = getattr(optim, name, None)
            if kind is not None and "foreach" in inspect.signature(kind.__init__).parameters:
                _wrap_constructor(kind, self._optimizer, under_way)
        if self._torch.distributed.is_available():
            _wrap_constructor(self._torch.nn.parallel.DistributedDataParallel, self._wrapped, under_way)
        self._losses.install()
        self._model.install()
        self._follow_optimizers(optim.Optimizer)
        if self._trial.settings.get("matmul_precision") is not None:
            self._torch.set_float32_matmul_precision(str(self._trial.settings["matmul_precision"]))

    def first_step(self) -> None:
        """Applies settings that the user's code may have changed since; the model exists."""
        self._began_ns = clock.monotonic_ns()
        self._losses.step_ended()
        cuda = self._torch.cuda
        self._affinity = affinity_seen(self._torch)
        threads = self._trial.settings.get("threads")
        self._threads = int(self._torch.get_num_threads())
        self._devices = cuda.device_count() if cuda.is_initialized() and cuda.is_available() else 0
        if threads is not None:
            self._torch.set_num_threads(int(threads))

    def step_ended(self, steps: int) -> None:
        """Ends the process after enough steps."""
        self._losses.step_ended()
        end_after_enough(steps, self._began_ns, self._trial)

    def _loader(self, arguments: dict[str, Any]) -> None:
        """Notes how a loader is made, and changes it. Iterable data sets stay: each worker would hand out all."""
        from torch.utils.data import IterableDataset  # noqa: PLC0415 - the user has imported torch

        iterable = isinstance(arguments.get("dataset"), IterableDataset)
        self._note("loaders", {name: arguments.get(name) for name in LOADER_SETTINGS} | {"iterable": iterable})
        if iterable:
            return
        wanted = {name: value for name, value in self._trial.settings.items() if name in LOADER_SETTINGS}
        arguments.update(wanted)
        if not arguments.get("num_workers"):
            arguments.update(prefetch_factor=None, persistent_workers=False, timeout=0, multiprocessing_context=None)

    def _optimizer(self, arguments: dict[str, Any]) -> None:
        how = [name for name in ("fused", "foreach") if name in arguments]
        kind = type(arguments["self"]).__name__
        self._note("optimizers", {"class": kind, "can": how} | {name: arguments[name] for name in how})
        wanted = self._trial.settings.get("optimizer")
        if wanted in how:
            arguments.update({name: name == wanted or None for name in how})

    def _wrapped(self, arguments: dict[str, Any]) -> None:
        """Notes the settings of data parallelism, and changes the size of its messages."""
        weights = [each for each in arguments["module"].parameters() if each.requires_grad]
        told = {
            "bucket_cap_mb": arguments.get("bucket_cap_mb") or _BUCKET_MB,
            "bytes": sum(each.numel() * each.element_size() for each in weights),
            "ranks": self._torch.distributed.get_world_size(arguments.get("process_group")),
        }
        self._note("wrapped", told)
        wanted = self._trial.settings.get("bucket_cap_mb")
        if wanted is not None:
            arguments["bucket_cap_mb"] = wanted

    def _refused(self) -> dict[str, str]:
        """Settings that could not be applied, with the reason."""
        found = self._model.refused()
        if "bucket_cap_mb" in self._trial.settings and not self._made["wrapped"]:
            found["bucket_cap_mb"] = "no DistributedDataParallel was made"
        return found

    def _follow_optimizers(self, kind: Any) -> None:
        """The model exists when its optimizer has been made, of any kind."""
        original = kind.__init__

        @functools.wraps(original)
        def __init__(own: Any, *given: Any, **named: Any) -> None:  # noqa: N807 - it takes the place of one
            original(own, *given, **named)
            found = self._model.optimizer_made(own)
            if found is not None:
                found.update(_place())

        kind.__init__ = __init__

    def _note(self, kind: str, found: dict[str, Any]) -> None:
        if len(self._made[kind]) < _MOST_SEEN:
            self._made[kind].append(found | _place())


def _wrap_constructor(kind: Any, change: Callable[[dict[str, Any]], None], under_way: set[int]) -> None:
    """Lets ``change`` see and change the arguments of a class's constructor by name; defaults are filled in."""
    original = kind.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(*given: Any, **named: Any) -> None:  # noqa: N807 - it takes the place of one
        try:
            bound = signature.bind(*given, **named)
        except TypeError:
            original(*given, **named)  # which reports the error
            return
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        made = id(given[0])
        if made in under_way:  # AdamW is made through Adam: once is enough
            original(*given, **named)
            return
        change(arguments)
        bound.arguments.update(arguments)
        under_way.add(made)
        try:
            original(*bound.args, **bound.kwargs)
        finally:
            under_way.discard(made)

    kind.__init__ = __init__


def _place() -> dict[str, Any]:
    """The innermost line outside of torch and of ours."""
    frame = sys._getframe(1)  # noqa: SLF001 - what `inspect.stack` reads files for
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] not in ("torch", "whystall", "functools"):
            break
        frame = frame.f_back
    return {"file": frame.f_code.co_filename, "line": frame.f_lineno}
