"""Put on PYTHONPATH by ``whystall run``: watches a Python in which whystall is installed, and no other.

It imports nothing and puts nothing on the path. The capture is imported once the job has imported torch; a Python that
has no whystall of its own runs as if this file were not there.
"""

import _frozen_importlib
import _frozen_importlib_external
import _thread
import os
import sys
import time

_VARIABLE = "WHYSTALL_CAPTURE"


def _begin() -> None:
    """Starts the capture; a failure is named on standard error and stays ours."""
    finder = _OwnFinder()
    sys.meta_path.insert(0, finder)
    try:
        try:
            from whystall.capture import startup

            startup.begin((_ready_ns, _torch_ns[0], _torch_ns[1]))
        finally:
            sys.meta_path[:] = [each for each in sys.meta_path if each is not finder]
            finder.leave_names()
    except Exception as error:  # noqa: BLE001 - whatever it is, the user's program goes on
        if sys.stderr is not None:
            print(f"whystall: nothing is recorded in this process ({type(error).__name__}: {error})", file=sys.stderr)  # noqa: T201


class _OwnFinder:
    """Finds the capture's imports where Python looked before the job began, with the finders of that time.

    The job may have its own ``statistics.py``: that runs when the job imports it, and not before.
    """

    def __init__(self) -> None:
        self._thread = _thread.get_ident()
        self._found: dict[str, str] = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> "_frozen_importlib.ModuleSpec | None":
        """The spec of a module that this thread imports; ``None`` on other threads, and if it was not there."""
        for finder in _finders if _thread.get_ident() == self._thread else ():
            where = _path if path is None and finder is _PathFinder else path
            spec = finder.find_spec(name, where, target)  # type: ignore[arg-type] # they are handed on
            if spec is not None:
                if path is None and spec.has_location and spec.origin:
                    self._found[name] = spec.origin
                return spec
        return None

    def leave_names(self) -> None:
        """Forgets each module for whose name the job has a file: the job will import its own."""
        for name, origin in self._found.items():
            own = _PathFinder.find_spec(name, sys.path)
            if own is None or not own.origin or name == "whystall":
                continue
            if os.path.realpath(own.origin) != os.path.realpath(origin):
                for known in [each for each in sys.modules if each == name or each.startswith(name + ".")]:
                    sys.modules.pop(known, None)


class _HeardSpec(_frozen_importlib.ModuleSpec):
    """The spec of torch while it is imported: the import system marks its begin and end on it.

    So torch has its own loader throughout, and there is no frame of ours in a traceback if its import fails.
    """

    @property
    def _initializing(self) -> bool:
        return bool(self.__dict__.get("_initializing"))

    @_initializing.setter
    def _initializing(self, begins: bool) -> None:
        self.__dict__["_initializing"] = begins
        _torch_ns[:] = (time.time_ns(), None) if begins else (_torch_ns[0], time.time_ns())
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _TorchFinder)]
        if not begins:
            self.__class__ = _frozen_importlib.ModuleSpec  # type: ignore[assignment]
            module = sys.modules.get("torch")
            if module is not None and module.__spec__ is self:
                _begin()


class _TorchFinder:
    """Finds torch as any other finder does.

    It may run long before: libraries look for torch without importing it.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> "_frozen_importlib.ModuleSpec | None":
        """The spec of torch, which reports the end of its import; ``None`` for all else."""
        if name != "torch":
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if type(spec) is _frozen_importlib.ModuleSpec:
                spec.__class__ = _HeardSpec
            if isinstance(spec, _frozen_importlib.ModuleSpec):
                return spec
        return None


def _run_next() -> None:
    """Runs the sitecustomize that this one hides, if there is one."""
    spec = _frozen_importlib_external.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = _frozen_importlib.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_PathFinder = _frozen_importlib_external.PathFinder
_ready_ns = time.time_ns()
_torch_ns: "list[int | None]" = [None, None]
# Children find it in the environment; here it has been found.
_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _here]
_path, _finders = list(sys.path), [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
if os.environ.get(_VARIABLE) and _frozen_importlib._find_spec("whystall", None) is not None:  # type: ignore[attr-defined] # noqa: SLF001
    if "torch" in sys.modules:
        _begin()
    else:
        sys.meta_path.insert(0, _TorchFinder())
_run_next()
