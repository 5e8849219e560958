from __future__ import annotations

import pytest

from whystall.memory.code_owner import Owner, is_python, owner_of, without_root

USER, LIBRARY, TORCH, PLUMBING = Owner.USER, Owner.LIBRARY, Owner.TORCH, Owner.PLUMBING


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("/home/me/my-course/basics/model.py", USER),
        ("/home/me/My Project/train.py", USER),
        ("/home/me/torch/train.py", USER),  # a folder of that name
        ("/home/me/torch/utils/plots.py", USER),
        ("/home/me/torch-experiments/optim/adam.py", USER),
        ("/home/me/site-packages-demo/train.py", USER),
        ("/home/me/site-packages/train.py", USER),
        ("/home/me/lib/train.py", USER),
        ("/home/me/lib/python3.10/train.py", USER),
        ("C:\\Users\\me\\job\\train.py", USER),
        ("/tmp/ipykernel_4711/1234567.py", USER),  # noqa: S108 - a name alone
        ("<ipython-input-3-abc>", USER),
        ("<stdin>", USER),
        ("train.py", USER),
        ("src/select.py", USER),
        ("/home/me/src/torchtitan/torchtitan/train.py", USER),  # an editable checkout: its owner can change it
        ("/venv/lib/python3.12/site-packages/torchtitan/train.py", LIBRARY),
        ("/opt/conda/envs/a-b/lib/python3.10/site-packages/transformers/trainer.py", LIBRARY),
        ("/usr/lib/python3/dist-packages/deepspeed/engine.py", LIBRARY),
        ("/usr/local/lib/python3.11/dist-packages/torch/nn/modules/module.py", TORCH),
        ("C:\\Python311\\Lib\\site-packages\\torch\\optim\\adamw.py", TORCH),
        ("/home/me/Library/Python/3.9/lib/python/site-packages/torch/_ops.py", TORCH),
        ("/bazel-out/external/site-packages/torch/_tensor.py", TORCH),
        ("/home/me/src/pytorch/torch/nn/modules/linear.py", TORCH),
        ("/home/me/src/pytorch/torch/distributed/fsdp/_fully_shard/_fsdp_param.py", TORCH),
        ("torch/utils/checkpoint.py", TORCH),
        ("transformers/trainer.py", LIBRARY),
        ("/venv/lib/python3.12/site-packages/triton/runtime/jit.py", TORCH),
        ("/usr/lib/python3.10/runpy.py", PLUMBING),
        ("/root/uv/cpython-3.10-linux/lib/python3.10/threading.py", PLUMBING),
        ("C:\\Python311\\Lib\\runpy.py", PLUMBING),
        (f"/scratch/me/cache/4j/c4jd{'a2b3' * 12}.py", PLUMBING),  # compiled code in a folder of the user's choice
        ("<frozen importlib._bootstrap>", PLUMBING),
        ("<eval_with_key>.7", PLUMBING),
        ("/tmp/torchinductor_me/ab/cabcdef.py", PLUMBING),  # noqa: S108 - a name alone
    ],
)
def test_a_file_belongs_to_whom_its_root_says(file: str, owner: Owner) -> None:
    assert owner_of(file) is owner


@pytest.mark.parametrize(
    ("file", "line", "python"),
    [
        ("/job/train.py", 3, True),
        ("/job/train.py", None, True),
        ("/usr/local/bin/torchrun", 8, True),
        ("<string>", 1, True),
        ("??", None, False),
        ("", None, False),
        ("ceval.c", 5041, False),
        ("./csu/../csu/libc-start.c", 392, False),
        ("thread48.o", None, False),
        ("/usr/lib/libtorch_cuda.so", None, False),
        ("/usr/lib/libpython3.10.so.1.0", 17, False),
        ("RegisterCUDA_0.cpp", None, False),
        ("/build/Include/internal/pycore_ceval.h", 46, False),
    ],
)
def test_compiled_code_is_told_from_python(file: str, line: int | None, python: bool) -> None:
    assert is_python(file, line) is python


def test_what_says_nothing_is_left_out_of_a_path() -> None:
    assert without_root("/venv/lib/python3.12/site-packages/torch/_ops.py") == "torch/_ops.py"
    assert without_root("/src/pytorch/torch/nn/functional.py") == "torch/nn/functional.py"
    assert without_root("/job/scripts/../my-package/net.py") == "/job/my-package/net.py"
    assert without_root("C:\\job\\net.py") == "C:/job/net.py"
