"""Every verb, in the order in which ``whystall --help`` lists them.

A table of words, so that the help is printed without one verb's module; only the requested one is imported.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing takes half as long as starting Python
if TYPE_CHECKING:
    from whystall.cli.command import Command


class Verb:
    """A verb's name and help, and where it is: class ``made_by`` of ``whystall.cli.<name>``."""

    __slots__ = ("help", "made_by", "name")

    def __init__(self, name: str, made_by: str, help_line: str) -> None:
        self.name = name
        self.made_by = made_by
        self.help = help_line  # the verb's own, word for word: a test compares them

    @property
    def module(self) -> str:
        """The module that holds the verb."""
        return f"whystall.cli.{self.name}"

    def load(self) -> Command:
        """The verb itself, whose module is imported now."""
        from importlib import import_module

        command: Command = getattr(import_module(self.module), self.made_by)()
        return command


VERBS: tuple[Verb, ...] = (
    Verb("run", "Run", "watch a training or inference job, record a few steps, and report"),
    Verb("watch", "Watch", "a job that is running: its pace, what slowed it, the verdict so far; as metrics, too"),
    Verb(
        "capture", "Capture", "record a few steps of a job that runs under `whystall run`, now, and say what they show"
    ),
    Verb("attach", "Attach", "a running process that whystall did not start: what class of cause its time goes to"),
    Verb("analyze", "Analyze", "read traces and say where the time of a step went"),
    Verb("report", "Report", "write the report as one self-contained HTML file"),
    Verb("view", "View", "the report in the browser, and Perfetto's timeline opened at each finding"),
    Verb("compare", "Compare", "what changed between two runs, and which cause went away"),
    Verb("fix", "Fix", "make the change: edits of your program, tried in a copy, each kept or rejected by measurement"),
    Verb("verify", "Verify", "prove that a change helps: interleaved runs of before and after"),
    Verb(
        "tune",
        "Tune",
        "find settings by measurement: loader workers, threads, optimizer, allocator, one argument of yours",
    ),
    Verb("explain", "Explain", "what a cause means, how it is measured, how to fix it"),
    Verb("export", "Export", "write the report, the tables or the timeline for other tools"),
    Verb(
        "compile", "Compile", "what torch.compile took, broke and compiled again, from its structured log (TORCH_TRACE)"
    ),
    Verb("hang", "Hang", "which rank keeps a job waiting, from dumps of PyTorch's flight recorder"),
    Verb("ranks", "Ranks", "what slow ranks, stages and links cost, from logs or collectives"),
    Verb("roles", "Roles", "who waits for whom in a job of several roles: trainers, rollout servers, rewards"),
    Verb(
        "serve",
        "Serve",
        "why a language-model server is slow: each request and engine step, from logs, metrics and client files",
    ),
    Verb("mcp", "Mcp", "serve reports, findings and events to an agent over stdio (Model Context Protocol)"),
    Verb("skill", "Skill", "print a skill for agents: how to find the cause, change the code and prove it"),
    Verb(
        "memory", "Memory", "who holds device memory at the peak, from a snapshot of torch's allocator or from traces"
    ),
    Verb("model", "Model", "count and time a model: parameters, FLOPs, bytes and latency of each module"),
    Verb("probe", "Probe", "measure this machine: matrix products, memory, launches, collectives, a data loader"),
    Verb("demo", "Demo", "analyse a small recording that ships with whystall and open the report"),
    Verb("doctor", "Doctor", "say whether this machine can capture and analyse"),
)
