"""The job's containers and modules are read without any method of theirs, and its memory where it can be read."""

from __future__ import annotations

import os
from collections import UserDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whystall.capture import readable
from whystall.capture.readable import are_readable, is_readable
from whystall.capture.the_jobs import items_in, parameters_of, parts_of

torch = pytest.importorskip("torch")


class Raises:
    """Calls nothing of ours may make."""

    def _no(self, *_: object, **__: object) -> Any:
        raise AssertionError

    values = keys = items = __iter__ = __len__ = __getitem__ = __bool__ = _no
    parameters = named_parameters = modules = named_modules = children = named_children = buffers = state_dict = _no


class Dict(Raises, dict): ...  # type: ignore[type-arg]


class List(Raises, list): ...  # type: ignore[type-arg]


class Tuple(Raises, tuple):  # type: ignore[type-arg]
    __slots__ = ()


class Behind(UserDict): ...  # type: ignore[type-arg]


class Net(Raises, torch.nn.Sequential): ...  # type: ignore[name-defined]


@pytest.mark.parametrize(
    ("thing", "items"),
    [
        (Dict(a=1, b=2), [1, 2]),
        (List([1, 2]), [1, 2]),
        (Tuple([1, 2]), [1, 2]),
        (Behind({"a": 1}), [1]),
        ("ab", None),
        (np.ones(2), None),
        (iter([1]), None),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_items_are_those_of_the_built_in_class(thing: object, items: list[object] | None) -> None:
    assert items_in(thing) == items


def test_a_user_dict_that_holds_itself_has_no_items() -> None:
    endless = Behind()
    endless.data = endless  # type: ignore[assignment]
    assert items_in(endless) is None


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_modules_and_parameters_are_those_that_torch_finds() -> None:
    shared = torch.nn.Linear(2, 2)
    plain = torch.nn.Sequential(shared, torch.nn.Sequential(shared, torch.nn.BatchNorm1d(2)), torch.nn.ReLU())
    own = Net(*plain._modules.values())
    assert [id(part) for part in parts_of(plain)] == [id(part) for part in plain.modules()]
    assert [id(one) for one in parameters_of(own)] == [id(one) for one in plain.parameters()]
    script = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2, 3)))
    assert sum(one.numel() for one in parameters_of(script)) == 9


def test_memory_of_a_file_that_was_cut_short_is_not_readable(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(bytes(1 << 16))
    rows = torch.from_numpy(np.memmap(path, np.int64, "r+", shape=(64, 128)))
    assert is_readable(rows)
    os.truncate(path, 5000)
    assert not is_readable(rows)
    assert is_readable(rows[:4])  # the first page and the one in which the file ends
    assert not is_readable(rows.T[:, 60:])


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(3, 5), torch.ones(4096, 1025)[:, ::2], torch.ones(1).expand(1 << 40), torch.ones(0), torch.ones(())],
    ids=["whole", "strided over many pages", "expanded", "empty", "single"],
)
def test_usual_memory_is_readable(tensor: Any) -> None:
    assert is_readable(tensor)


def test_no_address_and_a_kernel_that_does_not_say_are_not_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not are_readable(0, 8)
    monkeypatch.setattr(readable, "_kernels_read", lambda: None)
    assert not is_readable(torch.ones(2))
