"""What runs when a watched Python starts: it waits for torch to be imported, and touches nothing before."""

from __future__ import annotations

import functools
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from whystall.capture.session import Session

from whystall.capture.config import VARIABLE, decode
from whystall.capture.faults import Faults

_session: Session | None = None
_forks_heard: list[ModuleType] = []


def begin() -> None:
    """Watches this process if it was launched by whystall and ever imports torch."""
    value = os.environ.get(VARIABLE)
    if not value:
        return
    if "torch" in sys.modules:
        _open(sys.modules["torch"])
    else:
        sys.meta_path.insert(0, _TorchFinder())


def session() -> Session | None:
    """The session of this process, if it is watched."""
    return _session


def _open(torch: ModuleType) -> None:
    global _session  # noqa: PLW0603 - a process has one session, as it has one torch
    faults = Faults()

    def opened() -> Session:
        from whystall.capture.session import Session  # noqa: PLC0415 - only processes that import torch need it

        created = Session(torch, decode(os.environ[VARIABLE]))
        created.open()
        return created

    _session = faults.guard("start of the capture", opened)()
    faults.report()
    if not _forks_heard:
        _forks_heard.append(torch)
        os.register_at_fork(after_in_child=lambda: _watch_if_it_joins(torch))


def _watch_if_it_joins(torch: ModuleType) -> None:
    """In a forked child, a loader's worker as a rule: it is watched once it joins others as a rank of its own."""
    distributed = getattr(torch, "distributed", None)
    join = getattr(distributed, "init_process_group", None)
    if join is None or getattr(join, "whystall", False):
        return

    @functools.wraps(join)
    def joined(*arguments: Any, **options: Any) -> Any:
        setattr(distributed, "init_process_group", join)  # noqa: B010 - a module's attribute, for the type checker
        found = join(*arguments, **options)
        _open(torch)
        return found

    setattr(joined, "whystall", True)  # noqa: B010 - a child of this one finds it so
    setattr(distributed, "init_process_group", joined)  # noqa: B010


class _TorchFinder(MetaPathFinder):
    """Finds torch as everybody else does, and hears when its import is done.

    It may be asked long before: libraries look for torch without importing it.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None) if finder is not self else None
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _TorchLoader(spec.loader, self)
                return spec
        return None


class _TorchLoader(Loader):
    """The real loader of torch, with a word to us at the end."""

    def __init__(self, real: Any, finder: _TorchFinder) -> None:
        self._real = real
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._real.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        module.__loader__ = self._real
        self._real.exec_module(module)
        _open(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
