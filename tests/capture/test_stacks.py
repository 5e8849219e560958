"""What a look at the stepping thread counts: Python that held the interpreter's lock is not missed for its end."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, Final, cast

import pytest

from whystall.capture import stacks
from whystall.capture.samples import Stopwatch
from whystall.capture.stacks import Loop, StackSampler, _episode_below, is_library
from whystall.run_folder.samples import BEFORE, CALLED

torch = pytest.importorskip("torch")
STEPPING, OURS, OTHER = 1, 2, 3
MS = 1_000_000


@pytest.fixture(autouse=True)
def switching(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What samplers of the test ask of the interpreter's lock, and the interpreter does not hear of."""
    asked: list[str] = []
    heard = SimpleNamespace(
        shorten=lambda: asked.append("short"),
        give_back=lambda: asked.append("usual"),
        in_force_s=sys.getswitchinterval,
    )
    monkeypatch.setattr("whystall.capture.stacks.Switching", lambda: heard)
    return asked


def frame_in(name: str, file: str = "<library>") -> FrameType:
    """The frame of a function of this name."""
    scope: dict[str, Any] = {"sys": sys}
    exec(compile(f"def {name}():\n    return sys._getframe()", file, "exec"), scope)  # noqa: S102 - a frame has the name of its function
    return cast("FrameType", scope[name]())


def looked(
    monkeypatch: pytest.MonkeyPatch, late_ns: int, *, queued_ns: int = 0, file: str = "<library>", **others: str
) -> str:
    """The innermost function that one look counted."""
    sampler = sampler_after(monkeypatch, late_ns, queued_ns=queued_ns, file=file, others=others)
    [(place, count)] = sampler._counts._open.items()
    assert count == 1
    return place[4].partition(":")[2] or place[4]


def sampler_after(
    monkeypatch: pytest.MonkeyPatch,
    late_ns: int,
    *,
    queued_ns: int = 0,
    file: str = "<library>",
    recording: bool = False,
    others: Mapping[str, str] = {},
    **more: str,
) -> StackSampler:
    """A sampler that has looked once, while other threads were in functions of these names."""
    session: Any = SimpleNamespace(
        part_of_step=lambda _at: "other", stepping_thread=STEPPING, steps=5, recording=recording
    )
    frames = {
        STEPPING: frame_in("zero_grad", file),
        OURS: frame_in("run"),
        **{OTHER + at: frame_in(name) for at, name in enumerate({**others, **more}.values())},
    }
    monkeypatch.setattr(sys, "_current_frames", lambda: dict(frames))
    monkeypatch.setattr("whystall.capture.stacks.threading.get_ident", lambda: OURS)
    monkeypatch.setattr(StackSampler, "_queued_ns", lambda _sampler: 7 * MS + queued_ns)
    sampler = StackSampler(session)
    sampler._look(0, late_ns, 7 * MS)
    return sampler


@pytest.mark.parametrize(
    ("late_ns", "found"),
    [
        (200_000, "zero_grad"),  # waking up takes as long
        (2 * MS, BEFORE),  # Python held the lock and gave it up by itself: this line comes after it
        (6 * MS, "zero_grad"),  # the lock was taken from it: it is still where it was
    ],
)
def test_a_look_that_waited_for_the_lock_found_python(
    monkeypatch: pytest.MonkeyPatch, late_ns: int, found: str
) -> None:
    assert looked(monkeypatch, late_ns) == found


@pytest.mark.parametrize(
    ("late_ns", "found"),
    [
        (200_000, CALLED),  # the lock was free: the line is in a call that does without
        (2 * MS, BEFORE),
        (6 * MS, "zero_grad"),  # the line itself ran
    ],
)
def test_a_line_of_the_users_own_that_holds_no_lock_is_in_a_call(
    monkeypatch: pytest.MonkeyPatch, late_ns: int, found: str
) -> None:
    assert looked(monkeypatch, late_ns, file="/home/me/train.py") == found


def test_what_the_kernel_kept_a_look_waiting_is_not_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looked(monkeypatch, 3 * MS, queued_ns=3 * MS) == "zero_grad"
    assert looked(monkeypatch, 3 * MS, queued_ns=1 * MS) == BEFORE


def test_what_a_library_does_for_the_capture_is_no_work_of_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that a look at a batch interrupts is not where the time goes, and numpy is not the job's."""
    found: list[bool] = []
    sampler = sampler_after(monkeypatch, 0)
    scope: dict[str, Any] = {"sys": sys, "seen": lambda frame: found.append(sampler._is_at_ours(frame))}
    for name, file, body in (
        ("unique", "site-packages/numpy/lib/arraysetops.py", "seen(sys._getframe())"),
        ("look", str(Path(stacks.__file__).parent / "padding.py"), "unique()"),
        ("main", "train.py", "look(); unique()"),
    ):
        exec(compile(f"def {name}():\n    {body}", file, "exec"), scope)  # noqa: S102 - a frame has its function's file
    scope["main"]()
    assert found == [True, False]


def test_another_thread_may_have_held_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looked(monkeypatch, 2 * MS, other="decode") == "zero_grad"
    assert looked(monkeypatch, 2 * MS, other="wait") == BEFORE


@pytest.mark.parametrize(("other", "asked"), [("wait", "short"), ("decode", "usual")])
@pytest.mark.parametrize("recording", [True, False])
def test_the_lock_is_taken_sooner_only_where_no_other_thread_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, switching: list[str], other: str, asked: str, *, recording: bool
) -> None:
    sampler = sampler_after(monkeypatch, 0, recording=recording, other=other)
    assert switching == [asked]
    sampler.forget()
    assert switching == [asked, "usual"]


def test_threads_beside_are_counted_unless_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = sampler_after(monkeypatch, 0, others={"first": "decode", "second": "wait", "third": "select"})
    [(place, count)] = sampler._threads._open.items()
    assert (place[0], place[4].rpartition(":")[2], count) == ("thread", "decode", 1)


@pytest.mark.parametrize(
    ("name", "module", "part"),
    [
        ("save_model", "train", "checkpoint"),
        ("checkpoint", "torch.utils.checkpoint", None),  # activation checkpointing
        ("log_metrics", "train", "logging"),
        ("log_prob", "policy", None),
        ("evaluate", "transformers.trainer", "evaluation"),
        ("evaluate_actions", "policy", None),  # in each step of a policy's training
        ("add_histogram", "writer", "logging"),
        ("add_histogram", "torch.utils.tensorboard.writer", None),  # found at the line that calls it
        ("forward", "train", None),
    ],
)
def test_functions_stand_for_what_they_do(name: str, module: str, part: str | None) -> None:
    scope: dict[str, Any] = {"sys": sys, "__name__": module}
    exec(compile(f"def {name}():\n    return sys._getframe()", "train.py", "exec"), scope)  # noqa: S102 - as above
    assert Loop().episode(SimpleNamespace(f_code=scope[name]().f_code, f_globals=scope, f_back=None)) == part  # type: ignore[arg-type]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python tells no class of a running function")
@pytest.mark.parametrize(
    ("owner", "name", "part"),
    [
        ("EpochAUC", "compute", "metric"),
        ("ConfusionMatrix", "update", "metric"),
        ("EpochAUC", "forward", None),  # whatever else it does
        ("AUCLoss", "compute", None),
        ("Router", "compute", None),
        ("MetricLearner", "update", None),
    ],
)
def test_methods_of_a_metric_stand_for_it(owner: str, name: str, part: str | None) -> None:
    scope: dict[str, Any] = {"sys": sys, "__name__": "train"}
    lines = f"class {owner}:\n    def {name}(self):\n        return sys._getframe()\n"
    exec(compile(lines, "train.py", "exec"), scope)  # noqa: S102 - as above
    code = getattr(scope[owner](), name)().f_code
    assert Loop().episode(SimpleNamespace(f_code=code, f_globals=scope, f_back=None)) == part  # type: ignore[arg-type]


def called(*frames: tuple[str, str]) -> Any:
    """The innermost of some frames, given from the outermost by file and function."""
    inner = None
    for file, name in frames:
        code = SimpleNamespace(co_name=name, co_filename=file, co_firstlineno=1)
        module = file.partition("site-packages/")[2].removesuffix(".py").replace("/", ".") or "a_module"
        inner = SimpleNamespace(f_code=code, f_globals={"__name__": module}, f_back=inner)
    return inner


WANDB: Final = "/x/site-packages/wandb/integration/torch.py"
TRAINER: Final = "/usr/lib/python3.11/site-packages/transformers/trainer.py"


@pytest.mark.parametrize(
    ("frames", "part"),
    [
        ((("train.py", "main"), ("/usr/lib/python3.11/logging/__init__.py", "_log"), ("train.py", "emit")), "logging"),
        ((("train.py", "main"), (TRAINER, "train"), (TRAINER, "evaluate"), (TRAINER, "prediction_step")), "evaluation"),
        ((("train.py", "main"), (TRAINER, "train"), (TRAINER, "_save_checkpoint")), "checkpoint"),
        ((("train.py", "main"), (TRAINER, "train"), (TRAINER, "training_step")), None),
        # names of libraries that are not known stand for nothing
        ((("train.py", "main"), ("/x/site-packages/pydantic/main.py", "validate_python")), None),
        ((("train.py", "main"), (TRAINER, "_maybe_log_save_evaluate"), (TRAINER, "log")), None),
        ((("train.py", "validate_model"), (TRAINER, "prediction_step")), "evaluation"),
        # a package that keeps records logs, whatever it calls
        ((("train.py", "main"), (WANDB, "_hook"), ("/usr/lib/python3.11/asyncio/events.py", "call_soon")), "logging"),
        ((("train.py", "main"), ("/x/site-packages/torch/utils/tensorboard/writer.py", "flush")), "logging"),
        ((("train.py", "main"), (WANDB, "agent"), ("train.py", "train"), (TRAINER, "training_step")), None),
        ((("train.py", "main"), ("/x/site-packages/wandbox/run.py", "_hook")), None),
    ],
)
def test_what_a_library_does_for_the_users_line_is_known_by_its_own_functions(
    frames: tuple[tuple[str, str], ...], part: str | None
) -> None:
    leaf = called(*frames)
    own = leaf
    while own.f_code.co_filename != "train.py":
        own = own.f_back
    assert (Loop().episode(own) or _episode_below(leaf, own)) == part


def test_what_comes_after_the_last_step_is_of_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly every script evaluates, saves or prints once its loop is done: that happens within no step."""
    written: list[dict[str, Any]] = []
    sampler = sampler_after(monkeypatch, 0)
    session: Any = sampler._session
    session.write_line = written.append
    sampler._write()
    assert written == []  # the step has not ended
    session.steps += 1
    for _ in range(9):
        sampler._look(0, 0, 7 * MS)
    sampler._write()
    sampler._write()
    [line] = written
    assert sum(row[-1] for row in line["stacks"]) == 1


def test_the_part_is_that_of_the_moment_at_which_the_look_was_wanted() -> None:
    watch = Stopwatch()
    before = time.perf_counter_ns()
    assert not watch.ran_at(before)
    watch.begin()
    within = time.perf_counter_ns()
    assert watch.ran_at(within)
    assert not watch.ran_at(before)
    watch.end()
    after = time.perf_counter_ns()
    assert watch.ran_at(within)
    assert not watch.ran_at(after)


def test_a_look_in_a_window_is_kept_with_its_time_and_counts_for_no_share(monkeypatch: pytest.MonkeyPatch) -> None:
    before = time.time_ns()
    sampler = sampler_after(monkeypatch, 200_000, file="/home/me/train.py", recording=True)
    assert sampler._counts._open == {}
    (place,) = sampler.in_windows.told()
    assert (place.line, place.function) == (2, "zero_grad")
    (at,) = place.at_unix_ns
    assert before <= at <= time.time_ns()


@pytest.mark.parametrize("recording", [True, False])
def test_no_look_keeps_what_a_function_of_the_users_held(recording: bool) -> None:
    """Its tensors would stay until Python collects garbage: gigabytes, in a job that has the collection off."""
    holds, may_end = threading.Event(), threading.Event()
    held: list[weakref.ref[Any]] = []

    def step() -> None:
        activations = threading.Event()  # stands for a tensor
        held.append(weakref.ref(activations))
        holds.set()
        may_end.wait()

    thread = threading.Thread(target=step)
    thread.start()
    holds.wait()
    session: Any = SimpleNamespace(
        part_of_step=lambda _at: "other", stepping_thread=thread.ident, steps=5, recording=recording
    )
    sampler = StackSampler(session)
    gc.collect()
    gc.disable()
    try:
        sampler._look(0, 0, 0)
    finally:
        may_end.set()
        thread.join()
        gone = held[0]() is None
        gc.enable()
    assert gone
    assert len(sampler.in_windows.told()) == recording


def test_a_function_that_steps_end_in_is_no_episode_whatever_it_is_called() -> None:
    def frame(name: str, line: int, back: Any = None) -> Any:
        code = SimpleNamespace(co_name=name, co_filename="train.py", co_firstlineno=line)
        return SimpleNamespace(f_code=code, f_globals={"__name__": "__main__"}, f_back=back)

    main = frame("checkpoints", 10)
    trains, saves = frame("train", 20, main), frame("save_state", 30, main)
    loop = Loop()
    assert loop.episode(trains) == "checkpoint"  # nobody knows yet
    assert loop.asks
    loop.step_ends(trains)
    assert not loop.asks
    assert (loop.episode(trains), loop.asks) == (None, False)
    assert loop.episode(saves) == "checkpoint"


def test_after_a_window_a_long_run_is_looked_at_as_often_as_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = sampler_after(monkeypatch, 0)
    first = sampler.pause_s
    sampler._looks = 100_000
    assert sampler.pause_s > 10 * first
    sampler.look_often()
    assert sampler.pause_s == first


@pytest.mark.parametrize(
    ("file", "library"),
    [
        ("/tmp/torchinductor_me/7c/c7c3uyqe44ufyh7wvsoyqh4hvd6bbofpct3xcrjxx5eeyccridf2.py", True),  # noqa: S108
        ("/scratch/compiled/7c/c7c3uyqe44ufyh7wvsoyqh4hvd6bbofpct3xcrjxx5eeyccridf2.py", True),
        ("/scratch/compiled/7c/cells.py", False),
        ("/home/me/torchinductor_tests.py", False),
        ("/tmp/torch_geometric.nn.conv.sage_conv_SAGEConv_propagate_6qo6y31s.py", True),  # noqa: S108
        ("/home/me/train.v2.py", False),
    ],
)
def test_what_the_compiler_wrote_is_nobodys_own_code(file: str, *, library: bool) -> None:
    assert is_library(file) is library


def test_compiling_a_backward_pass_is_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    inductor = "/usr/lib/python3.11/site-packages/torch/_inductor/compile_fx.py"
    written = "/tmp/torchinductor_me/7c/c7c3uyqe44ufyh7wvsoyqh4hvd6bbofpct3xcrjxx5eeyccridf2.py"  # noqa: S108
    leaf = called(
        ("train.py", "main"),
        (inductor, "compile_fx_inner"),
        (written, "<module>"),
        ("/usr/lib/python3.11/threading.py", "wait"),
    )
    for frame in (leaf, leaf.f_back, leaf.f_back.f_back, leaf.f_back.f_back.f_back):
        frame.f_lineno = 3
    sampler = sampler_after(monkeypatch, 0)
    assert sampler._place("backward", leaf) == ("compile", "train.py", 3, "main", "a_module:wait")


class Looks(torch.nn.Module):  # type: ignore[name-defined]
    """Holds the frame of its forward pass."""

    frame: Any = None

    def forward(self, given: Any) -> Any:
        Looks.frame = sys._getframe()
        return given + 1


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("makes", ["jit.trace", "export.export", "fx.symbolic_trace", "as it is"])
def test_a_model_that_a_program_is_made_of_is_compiled(makes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's line is the one that asks for the program, not that of the model which is called for it."""
    model, example = Looks(), torch.ones(2)
    line = sys._getframe().f_lineno
    if makes == "as it is":
        model(example)
    elif makes == "jit.trace":
        torch.jit.trace(model, example)
    elif makes == "fx.symbolic_trace":
        torch.fx.symbolic_trace(model)
    else:
        torch.export.export(model, (example,))
    part, file, at, function, _ = sampler_after(monkeypatch, 0)._place("forward", Looks.frame)
    assert file == __file__
    if makes == "as it is":
        assert (part, function) == ("forward", "forward")
    else:
        assert (part, function) == ("compile", "test_a_model_that_a_program_is_made_of_is_compiled")
        assert line < at < line + 10


def test_a_users_own_function_that_is_called_like_one_of_torchs_compiles_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaf = called(
        ("train.py", "main"), ("backbone.py", "freeze"), ("/x/site-packages/torch/nn/modules/module.py", "to")
    )
    for frame in (leaf, leaf.f_back, leaf.f_back.f_back):
        frame.f_lineno = 3
    assert sampler_after(monkeypatch, 0)._place("other", leaf)[0] == "other"
