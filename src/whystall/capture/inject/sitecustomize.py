"""Put on PYTHONPATH by ``whystall run``: starts the capture, then hands on to the user's own sitecustomize."""

import importlib.machinery
import importlib.util
import os
import sys


def _start_capture() -> None:
    """Starts the capture; a failure is named on standard error and stays ours."""
    try:
        root = os.environ.get("WHYSTALL_ROOT")
        if root and root not in sys.path:
            sys.path.append(root)
        from whystall.capture import startup

        startup.begin()
    except Exception as error:  # noqa: BLE001 - whatever it is, the user's program starts
        print(f"whystall: nothing is recorded in this process ({type(error).__name__}: {error})", file=sys.stderr)  # noqa: T201


def _run_next() -> None:
    """Runs the sitecustomize that this one hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    paths = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_start_capture()
_run_next()
