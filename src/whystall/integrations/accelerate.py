"""Accelerate: one run folder for all processes of an ``Accelerator``.

    with watch(accelerator, output="runs/first") as watched:
        for batch in loader:
            ...
            watched.step()

Tested against the real package (tests/integrations).
"""

from __future__ import annotations

from typing import Any

from whystall.capture.profile import profile


def watch(accelerator: Any, *, output: str, **options: Any) -> profile:
    """`whystall.profile` into one folder for all processes, which the main one makes first."""
    with accelerator.main_process_first():
        return profile(output=output, **options)
