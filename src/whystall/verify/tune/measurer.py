"""Runs a command with settings, as a further process that is watched, and keeps every outcome to go on from."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from whystall.analysis.run_results import RunSummary
from whystall.capture.config import CaptureConfig, Schedule, TrialSetup
from whystall.diagnosis.causes import Statistic
from whystall.disk import reading
from whystall.disk.writing import OccupiedError, Over, write
from whystall.errors import InputError, UsageError
from whystall.json_text import parse_json
from whystall.run_folder.contents import read_run_folder
from whystall.run_folder.layout import TUNE_DEEPSPEED, TUNE_JSON
from whystall.trace.samples import read_samples
from whystall.verify.measure import Variant, run_command, steady_steps
from whystall.verify.tune.candidates import Knob
from whystall.verify.tune.deepspeed import Config, changes, config_of, with_config
from whystall.verify.tune.of_cores import CORES
from whystall.verify.tune.results import Outcome, Run, Seen, Settings, Tuning

STATE: Final = "whystall.tune-state/1"
_FEWEST_STEPS: Final = 5
_PATIENCE: Final = 5.0  # times as long as the command as given, and a minute
_SLOWER: Final = 4.0
_SHORTEST_S: Final = 5.0
_LONGEST_S: Final = 30.0
# An exception's line: by its name, or by torch's compiler, whose own end in other words (BackendCompilerFailed).
_RAISED: Final = re.compile(r"([\w.]*(Error|Exception|Interrupt)\b|torch\._(dynamo|inductor)\.exc\.\w+)")
_FAULT_NS: Final = 500  # of the kernel, for a page of 4 KiB that is filled with zeros
_ALLOCATORS: Final = {
    "expandable_segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    # glibc hands large blocks back to the system each time they are freed, and gets them back page by page.
    "keep_memory": {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296"},
}


class State(msgspec.Struct, kw_only=True):
    """The stored state of a search: its command (as a digest: arguments may be secret), its runs, and its end."""

    schema: str = STATE
    command: str
    runs: list[Run] = []
    result: Tuning | None = None


def environment_of(settings: Settings) -> dict[str, str]:
    """The environment variables that settings stand for."""
    found = dict(_ALLOCATORS.get(str(settings.get("allocator")), {}))
    if "threads" in settings:
        found["OMP_NUM_THREADS"] = str(settings["threads"])
    if settings.get("affinity") == CORES:
        found |= {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}
    return found


def command_of(command: Sequence[str], settings: Settings, knob: Knob | None) -> list[str]:
    """The command with the settings' value of the knob.

    >>> command_of(["python", "t.py", "--batch", "8"], {"--batch": "16"}, Knob("--batch", ("16",), "8"))
    ['python', 't.py', '--batch', '16']
    """
    if knob is None or knob.option not in settings:
        return list(command)
    value, words = str(settings[knob.option]), list(command)
    for place, word in enumerate(words):
        if word.startswith(f"{knob.option}="):
            return [*words[:place], f"{knob.option}={value}", *words[place + 1 :]]
        if word == knob.option and place + 1 < len(words):
            return [*words[: place + 1], value, *words[place + 2 :]]
    return [*words, f"{knob.option}={value}"]


def knob_of(text: str, command: Sequence[str]) -> Knob:
    """The knob that ``--batch-size=8,16,32`` names. Raises `UsageError` for another form.

    >>> knob_of("--batch-size=8,16", ["python", "t.py", "--batch-size=8"])
    Knob(option='--batch-size', values=('8', '16'), current='8')
    """
    option, equals, values = text.partition("=")
    option = option if option.startswith("-") or not option else f"--{option}"
    parts = tuple(filter(None, values.split(",")))
    if not equals or not option or not parts:
        raise UsageError(f"--knob takes an argument of the command with its values, --batch-size=8,16,32, not {text!r}")
    current = None
    for word, after in zip(command, [*command[1:], ""], strict=True):
        if word.startswith(f"{option}="):
            current = word.partition("=")[2]
        elif word == option:
            current = after
    found = Knob(option, parts, current)
    if "batch" in option.lower() and current is None:
        raise UsageError(f"give the command its {option}, so that it is known how much more a step does with another")
    return found


@dataclass(slots=True)
class Measurer:
    """Runs a command with settings; runs that a former search of the same command made are not made again."""

    command: tuple[str, ...]
    folder: Path
    knob: Knob | None = None
    loss: re.Pattern[str] | None = None
    steps: int = 60
    statistic: Statistic = "mean"
    timeout_s: float | None = None
    progress: Callable[[str], None] = lambda _text: None
    _state: State = field(init=False)
    _config: Config | None = field(init=False)
    _at: int = 0
    _longest_s: float = 0.0

    def __post_init__(self) -> None:
        self._config = config_of(self.command)
        self._state = State(command=self.digest)

    @property
    def digest(self) -> str:
        """The identity of this search: the command and the measurement."""
        told = [
            self.command,
            None if self.loss is None else self.loss.pattern,
            self.steps,
            self.statistic,
            repr(self.knob),
            *([] if self._config is None else [self._config.document]),
        ]
        return hashlib.sha256(msgspec.json.encode(told)).hexdigest()

    def open(self, *, force: bool) -> int:
        """Makes the folder, or continues in one where the same search ended early; returns the number of known runs.

        Raises `UsageError` for a folder that holds something else.
        """
        path = self.folder / TUNE_JSON
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if path.exists() and not force:
                found = _read(path)
                if found is None or found.command != self.digest:
                    raise UsageError(f"{path} is of another search: name another folder with -o, or add --force")
                self._state.runs = found.runs
            elif not path.exists() and any(self.folder.iterdir()):
                raise UsageError(f"{self.folder} holds other files: name another folder with -o")
            self._write()
        except OccupiedError as error:
            raise UsageError(f"{path} {error.strerror}: name another folder with -o") from None
        except OSError as error:
            raise UsageError(f"{self.folder} cannot be written: {error.strerror}") from None
        return len(self._state.runs)

    def __call__(self, settings: Settings) -> Outcome:
        """The outcome of one run."""
        known = self._state.runs
        if self._at < len(known) and known[self._at].settings == settings:
            outcome = known[self._at].outcome
        else:
            del known[self._at :]
            outcome = self._run(settings)
            known.append(Run(settings=settings, outcome=outcome))
            self._write()
        self._at += 1
        return outcome

    def _cores(self, seen: Seen) -> int:
        """The cores that the job may use: those of the first run, since in others its threads may be bound."""
        first = next((run.outcome.seen for run in self._state.runs if run.outcome.seen is not None), seen)
        return first.cores

    @property
    def zero(self) -> dict[str, Any] | None:
        """ZeRO's settings in the command's DeepSpeed configuration, if it names one."""
        return None if self._config is None else self._config.seen()

    def end(self, result: Tuning) -> None:
        """Keeps the result; for a DeepSpeed configuration a copy with the winning settings."""
        self._state.result = result
        self._write()
        if self._config is not None and changes(result.settings):
            text = self._config.copy(result.settings).encode()
            write(self.folder / TUNE_DEEPSPEED, lambda stream: stream.write(text), over=Over.OUR_OWN)

    def to_keep(self, settings: Settings) -> list[str]:
        """The command with its own winning arguments; the copy of the configuration is one that is kept."""
        words = with_config(self.command, self._config, settings, self.folder / TUNE_DEEPSPEED)
        return command_of(words, settings, self.knob)

    def _write(self) -> None:
        text = msgspec.json.format(msgspec.json.encode(self._state), indent=1)
        write(self.folder / TUNE_JSON, lambda stream: stream.write(text), over=Over.OUR_OWN, is_ours=_is_state)

    def _enough_s(self) -> float:
        """The time after which a run ends with fewer steps: one much slower than another needs no more of them."""
        quickest = min((run.outcome.step_s or _LONGEST_S for run in self._state.runs), default=_LONGEST_S)
        return min(max(_SLOWER * quickest * self.steps, _SHORTEST_S), _LONGEST_S)

    def _run(self, settings: Settings) -> Outcome:
        folder = Path(tempfile.mkdtemp(prefix="whystall-tune-"))
        inside = {name: value for name, value in settings.items() if not name.startswith("-")}
        trial = TrialSetup(settings=inside, steps=self.steps, longest_s=self._enough_s())
        config = CaptureConfig(folder=str(folder), schedule=Schedule(repeat=0), trial=trial)
        command = with_config(self.command, self._config, settings, folder / TUNE_DEEPSPEED)
        if self._config is not None and changes(settings):
            (folder / TUNE_DEEPSPEED).write_text(self._config.copy(settings))
        command = command_of(command, settings, self.knob)
        variant = Variant(tuple(command), tuple(environment_of(settings).items()))
        began = time.monotonic()
        patience = self.timeout_s or (_PATIENCE * self._longest_s + 60 if self._longest_s else None)
        try:
            code, output = run_command(variant, config, patience)
            if not self._longest_s:
                self._longest_s = time.monotonic() - began
            outcome = outcome_of(folder, code, output, loss=self.loss, statistic=self.statistic)
            if outcome.seen is not None:
                seen = msgspec.structs.replace(outcome.seen, cores=self._cores(outcome.seen), zero=self.zero)
                outcome = msgspec.structs.replace(outcome, seen=seen)
        except UsageError as error:
            if not self._longest_s:
                raise
            outcome = Outcome(step_s=None, failed_because=str(error).removeprefix(f"{' '.join(command)}: "))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        told = outcome.failed_because if outcome.step_s is None else f"a step takes {outcome.step_s * 1e3:.4g} ms"
        self.progress(f"run {self._at + 1}: {', '.join(f'{a}={b}' for a, b in settings.items()) or 'as given'}: {told}")
        return outcome


def _is_state(head: bytes) -> bool:
    return STATE.encode() in head


def _read(path: Path) -> State | None:
    try:
        return parse_json(reading.content(path), type=State)
    except (OSError, ValueError):
        return None


def outcome_of(folder: Path, code: int, output: str, *, loss: re.Pattern[str] | None, statistic: Statistic) -> Outcome:
    """The outcome of a trial from its run folder, its exit code and its output."""
    if code != 0:
        return Outcome(step_s=None, failed_because=_why_failed(code, output))
    found = steady_steps(folder)
    if found is None or found.measured < _FEWEST_STEPS:
        seen = 0 if found is None else found.measured
        return Outcome(step_s=None, failed_because=f"{seen} steady steps were seen, {_FEWEST_STEPS} are needed")
    run = read_run_folder(folder)
    rank = next((one for one in run.ranks if one.get("rank") == found.rank), {})
    for name, because in ((rank.get("trial") or {}).get("refused") or {}).items():
        return Outcome(step_s=None, failed_because=f"{name} could not be set: {because}")
    steps = [_steps_in(path) for path in run.samples]
    return Outcome(
        step_s=(found.mean_ns if statistic == "mean" else found.median_ns) / 1e9,
        losses=_numbers(loss, output),
        step_losses=_step_losses(run.ranks),
        seen=_seen(rank, found, max(map(_fault_share, steps), default=0.0)),
        other_cores=found.other_cores,
        memory_kib=max(map(_memory_kib, steps), default=0) or None,
    )


def _step_losses(ranks: Sequence[dict[str, Any]]) -> list[float | str | None]:
    """Those of the first rank, which sees the same part of the data in every run."""
    first = min(ranks, key=lambda one: int(one.get("rank") or 0), default={})
    return list((first.get("trial") or {}).get("losses") or [])


def _seen(rank: dict[str, Any], found: RunSummary, faults: float) -> Seen:
    trial = rank.get("trial") or {}
    return Seen(
        shares=found.shares,
        input_ns=round(found.shares.get("input", 0.0) * found.mean_ns),
        worker_cpu_share=found.worker_cpu_share,
        fault_share=faults,
        loaders=trial.get("loaders", []),
        optimizers=trial.get("optimizers", []),
        models=trial.get("models", []),
        wrapped=trial.get("wrapped", []),
        affinity=trial.get("affinity"),
        autocast=trial.get("autocast", False),
        compiled=trial.get("compiled", False),
        bf16=trial.get("bf16", False),
        threads=trial.get("threads"),
        cores=(rank.get("facts") or {}).get("cores_allowed") or 1,
        devices=trial.get("devices", 0),
        epochs=max((int(one.get("epochs", 1)) for one in rank.get("loaders") or []), default=1),
    )


def _steps_in(path: Path) -> pl.DataFrame:
    """The steps of a rank's samples; none where these cannot be read."""
    try:
        return read_samples(path).steps
    except InputError:
        return pl.DataFrame({"duration_us": []}, schema={"duration_us": pl.Int64})


def _fault_share(steps: pl.DataFrame) -> float:
    """The share of the steps that the kernel may spend on pages that the process touches for the first time."""
    if "minor_faults" not in steps.columns:
        return 0.0
    whole_us, faults = float(steps["duration_us"].sum() or 0), float(steps["minor_faults"].sum() or 0)
    return min(faults * _FAULT_NS / 1e3 / whole_us, 0.9) if whole_us else 0.0


def _memory_kib(steps: pl.DataFrame) -> int:
    """The largest resident memory of a rank's process; 0 where it was not read."""
    found = steps["rss_kib"].max() if "rss_kib" in steps.columns else None
    return found if isinstance(found, int) else 0


def _numbers(pattern: re.Pattern[str] | None, text: str) -> list[float]:
    found = []
    for match in pattern.findall(text) if pattern is not None else []:
        try:
            found.append(float(match))
        except ValueError:
            continue
    return found


def _why_failed(code: int, output: str) -> str:
    """How a run ended, and the last line it printed, where that is an exception's."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if _RAISED.match(line)), "")
    memory = code in (-9, 137) or "out of memory" in last.lower() or "OutOfMemory" in last or "MemoryError" in last
    how = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{'out of memory, ' if memory else ''}{how}{': ' + last[:160] if last else ''}"


def python_of(command: Sequence[str]) -> str:
    """The interpreter of a command as one types it."""
    return "python" if command and command[0] == sys.executable else (command[0] if command else "")
