"""Every verb, in the order in which ``whystall --help`` lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.cli.analyze import Analyze
from whystall.cli.attach import Attach
from whystall.cli.capture import Capture
from whystall.cli.compare import Compare
from whystall.cli.demo import Demo
from whystall.cli.doctor import Doctor
from whystall.cli.explain import Explain
from whystall.cli.export import Export
from whystall.cli.hang import Hang
from whystall.cli.mcp import Mcp
from whystall.cli.memory import Memory
from whystall.cli.model import Model
from whystall.cli.probe import Probe
from whystall.cli.ranks import Ranks
from whystall.cli.report import Report
from whystall.cli.roles import Roles
from whystall.cli.run import Run
from whystall.cli.tune import Tune
from whystall.cli.verify import Verify
from whystall.cli.view import View
from whystall.cli.watch import Watch

if TYPE_CHECKING:
    from whystall.cli.command import Command

COMMANDS: tuple[Command, ...] = (
    Run(),
    Watch(),
    Capture(),
    Attach(),
    Analyze(),
    Report(),
    View(),
    Compare(),
    Verify(),
    Tune(),
    Explain(),
    Export(),
    Hang(),
    Ranks(),
    Roles(),
    Mcp(),
    Memory(),
    Model(),
    Probe(),
    Demo(),
    Doctor(),
)
