"""The engines by name."""

from __future__ import annotations

from typing import Final

from whystall.errors import UsageError
from whystall.fleet.engines.engine import Engine
from whystall.fleet.engines.local import LocalEngine

ENGINES: Final = ("local", "ray")


def engine_named(name: str | None, *, workers: int | None = None, address: str | None = None) -> Engine:
    """The engine of that name with at most ``workers`` at once; ``None`` is ``local`` unless Ray has an ``address``.

    Raises `UsageError` for another name, for fewer than one worker, and for Ray where it is not installed.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"at least one worker is needed, not {workers}")
    name = name or ("ray" if address else "local")
    if name == "local" and address is None:
        return LocalEngine(workers)
    if name == "local":
        raise UsageError("an address of Ray goes with the engine ray")
    if name != "ray":
        raise UsageError(f"there is no engine {name!r}: choose one of {', '.join(ENGINES)}")
    # Ray is optional, and importing it takes a second.
    from whystall.fleet.engines.ray import RayEngine  # noqa: PLC0415

    return RayEngine(workers, address)
