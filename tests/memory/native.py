"""Stacks as torch writes them with C++ frames (``stacks="all"``): a few functions around each Python call."""

from __future__ import annotations

from collections.abc import Sequence

from tests.memory.program import TORCH, Frames

# What every record of CUDA's allocator begins with; where no symbol is found, its file is "??" or empty.
UNWIND: Frames = (
    ("torch::unwind::unwind()", "??", 0),
    ("torch::CapturedTraceback::gather(bool, bool, bool)", "??", 0),
    ("torch::cuda::(anonymous namespace)::gather_with_cpp()", "memory_snapshot.cpp", 0),
    ("c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::malloc(void**, signed char)", "", 0),
)
INTERPRETER: Frames = (("_PyEval_EvalFrameDefault", "??", 0), ("_PyFunction_Vectorcall", "??", 0))
SOURCES: Frames = (
    ("_PyEval_EvalFrame", "/build/Python-3.10.12/./Include/internal/pycore_ceval.h", 46),
    ("_PyEval_EvalFrameDefault", "/build/Python-3.10.12/Python/ceval.c", 4231),
)
ADDRESSES: Frames = (("0x7f3a5c0e1b2c", "/usr/lib/x86_64-linux-gnu/libpython3.10.so.1.0", 0), ("??", "??", 0))
# What a symbolizer writes that knows libraries alone: their files, and offsets in them for lines.
OFFSETS: Frames = (
    ("_PyEval_EvalFrameDefault", "/usr/bin/python3.11", 1290817),
    ("??", "/opt/conda/bin/python3.10", 1354240),
    ("??", "/usr/lib/libtorch_python.so", 5532100),
    ("<unwind unsupported>", "??", 0),
)
ENGINE: Frames = (
    ("torch::autograd::Node::operator()(std::vector<at::Tensor>&&)", "", 0),
    ("torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)", "??", 0),
    ("torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)", "??", 0),
    ("torch::autograd::python::PythonEngine::thread_init(int, bool)", "", 0),
    ("std::error_code::default_error_condition() const", "??", 0),
    ("start_thread", "./nptl/pthread_create.c", 442),
    ("__clone3", "./misc/../sysdeps/unix/sysv/linux/x86_64/clone3.S", 81),
)


def operator(name: str) -> Frames:
    """The frames of an operator of ATen, the factory of its output within."""
    return (
        ("at::_ops::empty_strided::call(c10::ArrayRef<c10::SymInt>)", "??", 0),
        (f"at::_ops::{name}::redispatch(c10::DispatchKeySet, at::Tensor const&)", "??", 0),
        (f"torch::autograd::VariableType::(anonymous namespace)::{name}(c10::DispatchKeySet)", "VariableType_2.cpp", 0),
        (f"at::_ops::{name}::call(at::Tensor const&)", "??", 0),
    )


def full_stack(python: Frames, name: str = "mm", between: Frames = INTERPRETER) -> Frames:
    """A stack of Python calls as it is recorded with C++ frames around each."""
    out: list[tuple[str, str, int]] = [*UNWIND, *operator(name)]
    for frame in python:
        out += [frame, *between]
    return (*out, ("Py_RunMain", "??", 0), ("_start", "??", 0))


def backward(node: str, name: str = "mm") -> Frames:
    """An operator that autograd's own thread runs."""
    apply = (f"torch::autograd::generated::{node}::apply(std::vector<at::Tensor>&&)", "??", 0)
    return (*UNWIND, *operator(name), apply, *ENGINE)


def freed_by_autograd(node: str) -> Frames:
    """What gives back a value that autograd had saved."""
    return (
        *UNWIND,
        ("c10::TensorImpl::~TensorImpl()", "TensorImpl.cpp", 0),
        ("torch::autograd::SavedVariable::reset_data()", "??", 0),
        (f"torch::autograd::generated::{node}::release_variables()", "??", 0),
        *ENGINE[1:],
    )


def module(line: int, inner: Sequence[tuple[str, str, int]] = (), file: str = "/home/me/job/model.py") -> Frames:
    """A line of a model within a module's call, and the frames of libraries within that."""
    call = ("_call_impl", f"{TORCH}/nn/modules/module.py", 1790)
    return (*inner, ("forward", file, line), call, ("step", "/home/me/job/train.py", 20), MAIN)


MAIN = ("<module>", "/home/me/job/train.py", 50)
