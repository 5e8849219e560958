"""``whystall run``: watches a job without a change of its code, then shows where its time went."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whystall._version import __version__
from whystall.cli import inputs, launching, output
from whystall.cli.rendering import render
from whystall.disk.writing import Over
from whystall.errors import InputError, UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from whystall.analysis.price import Rate
    from whystall.analysis.throughput import Workload
    from whystall.capture.config import CaptureConfig, Schedule
    from whystall.capture.launch import Launch
    from whystall.cli.console import Console
    from whystall.report.schema import Report
    from whystall.run_folder.contents import RunFolder
    from whystall.run_folder.description import RunDescription

_WAIT_FOR_RANKS_S = 20.0


_COMPILER_LOG = "TORCH_TRACE"
"""The variable by which torch writes its compiler's structured log into a folder."""


class Run:
    """The verb ``run``."""

    name = "run"
    help = "watch a training or inference job, record a few steps, and report"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.usage = "whystall run [options] SCRIPT [ARGS...] | -m MODULE [ARGS...] | -- COMMAND..."
        parser.add_argument("-o", "--output", metavar="DIR", help="the run folder (default: whystall-runs/TIME-NAME)")
        parser.add_argument("--wait", type=int, default=1, metavar="N", help="steady steps to let pass first (1)")
        parser.add_argument("--warmup", type=int, default=1, metavar="N", help="profiled but unrecorded steps (1)")
        parser.add_argument(
            "--active",
            type=int,
            metavar="N",
            help="steps to record (3; in a job of one rank up to 8 where steps are short or differ)",
        )
        parser.add_argument("--repeat", type=int, default=1, metavar="N", help="how many windows to record (1)")
        parser.add_argument("--on-slow", metavar="1.5x", help="record again after a step that slow (times the median)")
        parser.add_argument(
            "--always",
            action="store_true",
            help="in production: record nothing but when asked for (`whystall capture`) or when the job slows down, "
            "and keep the latest MiB of samples and four windows of each rank",
        )
        parser.add_argument("--no-shapes", action="store_true", help="do not record operators' shapes")
        parser.add_argument("--stacks", action="store_true", help="record Python stacks (slower)")
        parser.add_argument("--modules", action="store_true", help="record the module tree (slower)")
        parser.add_argument(
            "--memory", action="store_true", help="record memory events, on CUDA who holds memory, too (slower)"
        )
        parser.add_argument(
            "--values",
            action="store_true",
            help="with several ranks, or on a device: record which tensors the operators of three more steps get, "
            "to find work that is done again or for nothing",
        )
        parser.add_argument(
            "--looks",
            choices=("none", "few", "all"),
            default="all",
            help="in jobs on CPUs, how closely some steps are examined: not at all; for padding and repeated calls "
            "of modules; or for each operator, too, in a dispatch mode of torch's (the default)",
        )
        parser.add_argument(
            "--compile",
            action="store_true",
            help="keep torch's log of its compiler (TORCH_TRACE) in the run folder: `whystall compile` explains it",
        )
        parser.add_argument(
            "--experiments",
            action="store_true",
            help="afterwards run the command again for some steps, from its start, with one thing changed "
            "at a time, where that decides between causes: the same batch again, "
            "no garbage collection, no logging, another number of threads",
        )
        parser.add_argument(
            "--until-verdict",
            action="store_true",
            help="end the job (SIGTERM) once its first window has a verdict that names a cause with 80%% and more",
        )
        inputs.add_workload(parser)
        inputs.add_price(parser)
        output.add_force(parser)
        launching.add_command(parser)

    def run(self, options: Namespace, console: Console) -> int:
        """The exit code of the job, after its report; ``-signal`` where a signal ended it."""
        import msgspec

        from whystall.capture.config import MOST_SAMPLE_BYTES, CaptureConfig
        from whystall.capture.launch import run_watched, why_blind
        from whystall.cli.ending import SIGNALLED
        from whystall.run_folder import layout
        from whystall.run_folder.alive import this_process
        from whystall.run_folder.description import RunDescription, encode

        launch = launching.launch_of_words(options)
        schedule = _schedule(options)
        folder = _folder(launch, options)
        running = RunDescription(
            whystall=__version__,
            kind=launch.kind,
            command=launch.what,
            exit_code=None,
            began_unix_ns=time.time_ns(),
            schedule=schedule,
            arguments=launch.arguments,
            process=this_process(),
        )
        workload, rate = inputs.workload(options), inputs.rate(options)
        _claim(folder, options, encode(running))
        config = CaptureConfig(
            folder=str(folder.resolve()),
            schedule=schedule,
            shapes=not options.no_shapes,
            stacks=options.stacks,
            modules=options.modules,
            memory=options.memory,
            values=options.values,
            looks=options.looks,
            most_sample_bytes=MOST_SAMPLE_BYTES if options.always else None,
        )
        if schedule.repeat > 0 and _reports_here():
            console.note(f"whystall: {_beforehand(launch, config)}")
        so_far = _SoFarOf(folder, console, records=schedule.repeat > 0, until_verdict=options.until_verdict)
        told = so_far if _reports_here() else contextlib.nullcontext
        with _compiler_logged(folder) if options.compile else contextlib.nullcontext():
            ended = run_watched(launch, config, (folder / layout.CAPTURE_NOW).touch, told)
        running = msgspec.structs.replace(running, ended_unix_ns=time.time_ns())
        ended = 0 if so_far.ended else ended
        code = ended if ended >= 0 else SIGNALLED - ended
        if not _reports_here():
            return ended
        try:
            found = _described(folder, running, code)
            _report(found, launch, code, workload, rate, console, experiments=options.experiments)
        except Exception as error:  # noqa: BLE001 - the job is done; its exit code must not become ours
            console.error(
                f"the job was not affected, but its report could not be made ({type(error).__name__}: {error})"
            )
        blind = why_blind(launch.command)
        if blind is not None:
            console.error(blind)
        return ended


@contextlib.contextmanager
def _compiler_logged(folder: Path) -> Iterator[None]:
    """Keeps the log of torch's compiler in the run folder, unless the user has one written elsewhere."""
    from whystall.run_folder.layout import COMPILE_LOGS, compile_logs

    if os.environ.get(_COMPILER_LOG):
        yield
        return
    if _world_size() == 1:
        for old in compile_logs(folder):  # of the run that was here before
            old.unlink(missing_ok=True)
    logs = folder.resolve() / COMPILE_LOGS
    logs.mkdir(mode=0o700, exist_ok=True)  # they hold the model's code
    os.environ[_COMPILER_LOG] = str(logs)
    try:
        yield
    finally:
        del os.environ[_COMPILER_LOG]


def _tell_of_compiler(folder: Path, console: Console) -> None:
    """The compile account in a sentence, where the compiler's log lies in the run folder."""
    from whystall.run_folder.layout import COMPILE_LOGS, compile_logs

    if not compile_logs(folder):
        return
    from whystall.compilation.read import read_account
    from whystall.report.compile_text import summarize

    try:
        told = summarize(read_account([folder / COMPILE_LOGS], None))
    except InputError as error:
        console.note(f"whystall: {error}")
        return
    command = f"whystall compile {inputs.shell_quote([str(folder / COMPILE_LOGS)])}"
    console.note(f"whystall: {told} (`{command}` tells more)")


def _folder(launch: Launch, options: Namespace) -> Path:
    """The run folder; without ``-o`` one of its own, also of runs that begin in the same second."""
    from whystall.run_folder.layout import folder_for

    while True:
        folder = folder_for(launch.name, options.output, now=time.localtime(), environment=dict(os.environ))
        if options.output is not None or _world_size() > 1:
            return folder
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder.parent} cannot be written: {error.strerror}") from None
        try:
            folder.mkdir()
        except FileExistsError:
            if folder.is_symlink():  # a link to nothing counts as free, and is not
                raise UsageError(f"{folder} is a link to nothing: remove it, or choose a folder with -o") from None
            continue
        except OSError as error:
            raise UsageError(f"{folder} cannot be written: {error.strerror}") from None
        return folder


def _schedule(options: Namespace) -> Schedule:
    """The schedule of the options."""
    import msgspec

    from whystall.capture.config import ALWAYS, Schedule

    given = Schedule(
        wait=_count(options.wait, "--wait", 0),
        warmup=_count(options.warmup, "--warmup", 1),
        active=None if options.active is None else _count(options.active, "--active", 1),
        repeat=_count(options.repeat, "--repeat", 0),
        on_slow=_ratio(options.on_slow),
    )
    if not options.always:
        return given
    if options.until_verdict:
        raise UsageError("--until-verdict ends a job, and --always watches one that goes on: choose one of them")
    return msgspec.structs.replace(ALWAYS, warmup=given.warmup, active=given.active, on_slow=given.on_slow)


def _beforehand(launch: Launch, config: CaptureConfig) -> str:
    """The effect of watching on the job, printed before it starts."""
    active = config.schedule.active
    steps = "3 to 8 steps" if active is None else "1 step" if active == 1 else f"{active} steps"
    asked = [name for name in ("stacks", "modules", "memory") if getattr(config, name)]
    longer = f", for longer with --{' and --'.join(asked)}" if asked else ""
    return (
        f"watching {launch.what}; once its steps are steady {steps} will be recorded, and it stands still while "
        f"their trace is written{longer}"
    )


class _SoFarOf:
    """Output while the job runs: its steps, and the first verdict; ``ended`` is true if this ended the job."""

    def __init__(self, folder: Path, console: Console, *, records: bool, until_verdict: bool) -> None:
        self._folder = folder
        self._console = console
        self._records = records
        self._until_verdict = until_verdict
        self.ended = False

    @contextlib.contextmanager
    def __call__(self, end: Callable[[], None]) -> Iterator[None]:
        """Prints it, and ends the job after the verdict if requested."""
        with contextlib.ExitStack() as running:
            if not self._console.quiet:
                running.enter_context(self._steps())
            if self._records:
                running.enter_context(self._verdict(end))
            yield

    def _steps(self) -> AbstractContextManager[object]:
        from whystall.cli.steps_so_far import StepsSoFar, waits

        return StepsSoFar(self._folder, self._say, waits(terminal=self._console.shows_progress))

    def _verdict(self, end: Callable[[], None]) -> AbstractContextManager[object]:
        from whystall.cli.so_far import SOON_S, STILL_RUNS_AFTER_S, SoFar

        def enough() -> None:
            self.ended = True
            end()

        return SoFar(
            self._folder,
            self._say,
            enough if self._until_verdict else None,
            after_s=SOON_S if self._until_verdict else STILL_RUNS_AFTER_S,
        )

    def _say(self, text: str) -> None:
        self._console.note(f"whystall: {text}")


def _count(value: int, option: str, least: int) -> int:
    if value < least:
        raise UsageError(f"{option} must be at least {least}, not {value}")
    return value


def _ratio(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        ratio = float(text.rstrip("xX"))
    except ValueError:
        raise UsageError(f"--on-slow takes a ratio such as 1.5x, not {text!r}") from None
    if not ratio > 1:
        raise UsageError(f"--on-slow must be above 1, not {text}")
    return ratio


def _claim(folder: Path, options: Namespace, marker: bytes) -> None:
    """Makes the folder; one that holds a run already is kept unless ``--force`` was given."""
    from whystall.run_folder.claim import claim, started_s

    # Workers of one launch write into one folder: files older than their launcher are of another run.
    since_s = started_s(os.getppid()) if _world_size() > 1 else None
    claim(folder, force=options.force, since_s=since_s, marker=marker)


def _reports_here() -> bool:
    """Whether this launcher makes the report: among several under one torchrun, that of rank 0."""
    return os.environ.get("RANK", "0") == "0"


def _described(folder: Path, running: RunDescription, code: int) -> RunFolder:
    """The run folder once every rank has written its description; ``run.json`` then holds them all."""
    import msgspec

    from whystall.diagnosis.catalogue import causes
    from whystall.run_folder.description import encode
    from whystall.run_folder.layout import RUN_JSON
    from whystall.run_folder.settings import settings_of

    found = _when_all_ranks_are_there(folder)
    wanted = {name for cause in causes().values() for names in cause.settings.values() for name in names}
    whole = msgspec.structs.replace(
        running,
        exit_code=code,
        ranks=found.ranks,
        traces=[path.name for path in found.traces],
        samples=[path.name for path in found.samples],
        settings=settings_of(Path(), found.samples, wanted),
    )
    output.place(folder / RUN_JSON, lambda stream: stream.write(encode(whole)), over=Over.OUR_OWN)
    return found


def _report(
    found: RunFolder,
    launch: Launch,
    code: int,
    workload: Workload | None,
    rate: Rate | None,
    console: Console,
    *,
    experiments: bool,
) -> None:
    from whystall.run_folder.contents import overhead_sentences
    from whystall.run_folder.layout import REPORT_HTML, REPORT_JSON, journals, ran_out_of_memory

    folder = found.path
    _tell_of_compiler(folder, console)
    if ran_out_of_memory(folder):
        command = f"whystall memory {inputs.shell_quote([str(folder)])}"
        console.note(f"whystall: a device ran out of memory: `{command}` says who held it")
    if not found.samples and not found.traces:
        from whystall._inputs import stood_still

        for sentence in stood_still(folder, []):
            console.note(f"whystall: {sentence}")
        ended = f"the command ended with exit code {code}, and " if code else ""
        console.note(
            f"whystall: {ended}no training step was seen in this run (no optimizer step, no forward pass of a module, "
            f"no data loader){'' if journals(folder) else ': nothing to report'}"
        )
        if not journals(folder):
            return
    for sentence in overhead_sentences(found):
        console.note(f"whystall: {sentence}")
    import whystall
    from whystall.trace.fingerprint import fingerprint

    held = fingerprint(folder)
    try:
        report = whystall.analyze(folder, cache=False, workload=workload)
    except InputError as error:
        console.note(f"whystall: {error}")
        return
    if experiments and _experimented(folder, report, launch, code, console):
        held = fingerprint(folder)
        report = whystall.analyze(folder, cache=False, workload=workload)
    report = inputs.priced(report, rate)
    output.write_own(folder / REPORT_JSON, whystall.render(inputs.made_of(report, held), "json"))
    output.write_own(folder / REPORT_HTML, whystall.render(report, "html"))
    console.note(render(report, "terminal", whole=console.verbose).rstrip())  # stdout belongs to the job
    console.note(f"wrote {folder / REPORT_HTML}")
    console.next(_next(report, launch, folder))


def _next(report: Report, launch: Launch, folder: Path) -> str:
    """The next command: the edits where the script has one for a cause that was found, else the first cause's page."""
    from whystall.run_folder.layout import REPORT_HTML

    cause = report.verdict.cause
    if cause is None:
        return f"open {folder / REPORT_HTML} in a browser"
    on_device = any(device.kind != "cpu" for device in report.devices)
    if launch.kind == "script" and not launch.arguments and _has_edit(launch.what, report, on_device=on_device):
        return f"whystall fix {inputs.shell_quote([str(folder)])}"
    return f"whystall explain {cause}"


def _has_edit(script: str, report: Report, *, on_device: bool) -> bool:
    """Whether an edit for one of the report's causes, of those that are tried unasked, would change the script."""
    from whystall.disk import reading
    from whystall.remedies.chain import removable
    from whystall.remedies.edits import proposals
    from whystall.remedies.program import Program
    from whystall.remedies.source import LARGEST

    try:
        text = reading.content(Path(script), LARGEST)
    except OSError:
        return False
    program = Program({script: text}, ("python", script), on_device=on_device)
    return any(not one.edit.numerics for cause in removable(report.findings) for one in proposals(program, cause))


def _experimented(folder: Path, report: Report, launch: Launch, code: int, console: Console) -> bool:
    """Whether further runs of the command were made and their results were written to the run folder."""
    import msgspec

    from whystall.run_folder.layout import EXPERIMENTS_JSON
    from whystall.verify.experiments import run_experiments

    if "RANK" in os.environ:
        console.note("whystall: no experiments under a launcher: put `whystall run --experiments --` in front of it")
        return False
    if code != 0:
        console.note(f"whystall: no experiments, since the command ended with exit code {code}")
        return False
    outcomes = run_experiments(launch.command, report.findings, progress=lambda text: console.note(f"whystall: {text}"))
    if not outcomes:
        console.note("whystall: no experiments: none bears on what was found")
        return False
    text = msgspec.json.format(msgspec.json.encode(outcomes), indent=1) + b"\n"
    output.place(folder / EXPERIMENTS_JSON, lambda stream: stream.write(text), over=Over.OUR_OWN)
    return True


def _world_size() -> int:
    """The launcher's number of workers; 1 where it is unknown."""
    said = os.environ.get("WORLD_SIZE", "")
    return int(said) if said.isdecimal() else 1


def _has_said_all(rank: dict[str, Any]) -> bool:
    """Whether a rank has ended, or was killed here."""
    from whystall.run_folder.alive import is_gone

    return bool(rank.get("ended", True)) or is_gone(rank.get("process"))


def _when_all_ranks_are_there(folder: Path) -> RunFolder:
    """The run folder once every rank has written its description, or after a while."""
    from whystall.run_folder.contents import read_run_folder

    wanted = _world_size() if "RANK" in os.environ else 0
    deadline = time.monotonic() + _WAIT_FOR_RANKS_S
    found = read_run_folder(folder)
    while sum(_has_said_all(rank) for rank in found.ranks) < wanted and time.monotonic() < deadline:
        time.sleep(0.2)
        found = read_run_folder(folder)
    return found
