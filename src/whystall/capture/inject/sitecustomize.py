"""Put on PYTHONPATH by ``whystall run``: watches a Python in which whystall is installed, and no other.

It imports nothing and puts nothing on the path. The capture is imported once the job has imported torch; a Python that
has no whystall of its own runs as if this file were not there.
"""

import _frozen_importlib
import _frozen_importlib_external
import os
import sys

_VARIABLE = "WHYSTALL_CAPTURE"


def _begin() -> None:
    """Starts the capture; a failure is named on standard error and stays ours."""
    try:
        from whystall.capture import startup

        startup.begin()
    except Exception as error:  # noqa: BLE001 - whatever it is, the user's program goes on
        print(f"whystall: nothing is recorded in this process ({type(error).__name__}: {error})", file=sys.stderr)  # noqa: T201


class _HeardSpec(_frozen_importlib.ModuleSpec):
    """The spec of torch while it is imported: the import system says on it that it begins and ends.

    So torch has its own loader throughout, and there is no frame of ours in a traceback if its import fails.
    """

    @property
    def _initializing(self) -> bool:
        return bool(self.__dict__.get("_initializing"))

    @_initializing.setter
    def _initializing(self, begins: bool) -> None:
        self.__dict__["_initializing"] = begins
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _TorchFinder)]
        if not begins:
            self.__class__ = _frozen_importlib.ModuleSpec  # type: ignore[assignment]
            module = sys.modules.get("torch")
            if module is not None and module.__spec__ is self:
                _begin()


class _TorchFinder:
    """Finds torch as everybody else does.

    It may be asked long before: libraries look for torch without importing it.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> "_frozen_importlib.ModuleSpec | None":
        """The spec of torch, of which is heard when its import ends; ``None`` for all else."""
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


# Children find it in the environment; here it has been found.
_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _here]
if os.environ.get(_VARIABLE) and _frozen_importlib._find_spec("whystall", None) is not None:  # type: ignore[attr-defined] # noqa: SLF001
    if "torch" in sys.modules:
        _begin()
    else:
        sys.meta_path.insert(0, _TorchFinder())
_run_next()
