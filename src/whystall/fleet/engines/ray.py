"""The engine of a cluster: the same function as tasks of Ray, which puts them where there is room."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from whystall.errors import InputError, UsageError
from whystall.fleet.engines.engine import Done, Work
from whystall.fleet.engines.machine import cores

_MISSING: Final = "the engine ray needs the package ray: pip install 'whystall[ray]'"
_TRIES: Final = 3
_log: Final = logging.getLogger(__name__)
_MOST_WAITING: Final = 4  # tasks handed to Ray, for each core that it has
_MOST_MEMORY: Final = 0.9  # a larger task than the largest node's memory would wait for ever
# Ray would replace `print` in this process as well.
_QUIET: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TQDM_PATCH_PRINT": "0",
}


@dataclass
class RayEngine:
    """Tasks of Ray: on a cluster that runs at ``address``, else on processes of this machine that it starts.

    Ray tries a task again whose process or node is lost. Raises `UsageError` where the package is missing.
    """

    workers: int | None = None
    address: str | None = None
    name: str = field(default="ray", init=False)

    def __post_init__(self) -> None:
        _ray()

    def map(self, work: Sequence[Work]) -> Iterator[Done]:
        """A result for every item, in the order in which they end. Raises `InputError` for an address without Ray."""
        ray = _ray()
        if ray.is_initialized():
            yield from self._results(ray, work)
            return
        with _not_on_stdout(ray):
            self._start(ray)
            try:
                yield from self._results(ray, work)
            finally:
                ray.shutdown()

    def _start(self, ray: Any) -> None:
        options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        if self.address is None:
            options["num_cpus"] = self.workers or cores()
        try:
            ray.init(address=self.address or "local", **(options if self.address is None else _of_cluster(options)))
        except (ConnectionError, ValueError, RuntimeError) as error:
            where = f"no cluster of Ray answers at {self.address}" if self.address else "Ray cannot be started"
            raise InputError(
                f"{where} ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
            ) from None

    def _results(self, ray: Any, work: Sequence[Work]) -> Iterator[Done]:
        task = ray.remote(max_retries=_TRIES, num_cpus=1)(_answer)
        most = _MOST_MEMORY * max(node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"])
        at_once = self.workers or max(int(_MOST_WAITING * ray.cluster_resources().get("CPU", 1)), 1)
        waiting = iter(enumerate(work))
        running: dict[Any, int] = {}
        while True:
            while len(running) < at_once and (following := next(waiting, None)) is not None:
                place, one = following
                memory = min(one.memory_bytes, int(most))
                running[task.options(memory=memory).remote(one.function, one.item)] = place
            if not running:
                return
            ended, _ = ray.wait(list(running), num_returns=1)
            for reference in ended:
                yield _done(ray, reference, running.pop(reference))


def _done(ray: Any, reference: Any, place: int) -> Done:
    try:
        result, failure = ray.get(reference)
    except ray.exceptions.RayError as error:
        return Done(place, None, f"Ray gave it up ({type(error).__name__})")
    return Done(place, result, failure)


def _answer(function: str, item: bytes) -> tuple[bytes | None, str | None]:
    """Runs on the cluster. A process that is short of memory ends, so that Ray tries the item elsewhere."""
    from whystall.fleet.engines.worker import answer_to  # noqa: PLC0415 - where Ray runs it

    answer = answer_to(Work(function, item, 0))
    return answer.result, "memory ran out" if answer.again else answer.failure


@contextlib.contextmanager
def _not_on_stdout(ray: Any) -> Iterator[None]:
    """Makes Ray log its messages on a process that died: it prints them, despite its settings, into our report.

    It uses a private name of Ray; where that is missing, Ray prints.
    """
    home, name = getattr(getattr(ray, "_private", None), "worker", None), "print_to_stdstream"
    prints = getattr(home, name, None)
    if prints is None:
        yield
        return

    def logs(data: Any, *_: Any, **__: Any) -> None:
        _log.debug("Ray: %s", data)

    setattr(home, name, logs)
    try:
        yield
    finally:
        setattr(home, name, prints)


def _of_cluster(options: dict[str, Any]) -> dict[str, Any]:
    """The options that a cluster takes which others started."""
    return {name: value for name, value in options.items() if name != "include_dashboard"}


def _ray() -> Any:
    """Ray itself, set before its import to report no usage."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray  # noqa: PLC0415 - optional
        import ray.exceptions  # noqa: PLC0415 - likewise
    except ImportError:
        raise UsageError(_MISSING) from None
    return ray
