from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall.compilation.guards import guard_kind
from whystall.compilation.wording import address_of, first_sentence, guard_text, guarded_line, hint_of


@pytest.mark.parametrize(
    ("guard", "kind", "is_value"),
    [
        ("___stack0 == 123.10467529296875", "a scalar from before a graph break", True),
        ("tensor 'x' size mismatch at index 0. expected 8, actual 9", "a size", False),
        ("tensor 'L['x']' size mismatch at index 0. expected 8, actual 9", "a size", False),
        ("L['x'].size()[0] == 8", "a size", False),
        ("2 <= L['x'].size()[0] <= 16", "a size", False),
        ("tensor 'x' rank mismatch. expected 2, actual 3", "a size", False),
        ("tensor 'x' stride mismatch at index 0. expected 8, actual 9", "strides", False),
        ("tensor 'x' dtype mismatch. expected Float, actual Double", "a dtype", False),
        ("tensor 'x' requires_grad mismatch. expected requires_grad=1", "requires_grad", False),
        ("GLOBAL_STATE changed: grad_mode", "a mode of torch", False),
        ("len(L['xs']) == 3", "a length", False),
        ("___check_obj_id(L['f'], 139876)", "an object", False),
        ("___check_type_id(L['n'], 139876)", "an object", False),
        ("self.step == 3", "an attribute's value", True),
        ("L['self'].step == 3", "an attribute's value", True),
        ("L['n'] == 1.5", "a float's value", True),
        ("n == 3", "an integer's value", True),
        ("L['flag'] == True", "a flag or text", True),
        ("L['mask'] is None", "a flag or text", True),
        ("mode == '…'", "a flag or text", True),
        ("something that torch will write one day", "another guard", False),
        ("", "another guard", False),
    ],
)
def test_guards_have_kinds(guard: str, kind: str, is_value: bool) -> None:
    found = guard_kind(guard)

    assert (found.kind, found.is_value) == (kind, is_value)
    assert found.edit


@pytest.mark.parametrize(
    "raw",
    [
        "0/0: L['mode'] == 'hunter2'",
        '0/0: mode == "hunter2"',
        "0/0: n == 1      # return hunter2(x)  # home/train.py:4 in f",
        "0/0: n == 1\nUser stack trace:\n  hunter2",
        "0/0: file == '/home/hunter2/data.bin'",
        "0/0: mode == 'it is hunter2 and it never en",
    ],
)
def test_values_and_code_stay_out_of_guards(raw: str) -> None:
    assert "hunter2" not in guard_text(raw)


@pytest.mark.parametrize(
    "raw",
    [
        "call_function BuiltinVariable(print) [ConstantVariable(str: 'hunter2')] {}",
        "'skip function helper in file /data/hunter2/torch/decorators.py'",
        "failed in C:\\Users\\hunter2\\train.py",
        "failed in hunter2/models/train.py",
        "Attempted to call `f(hunter2 + 1)`",
        "TypeError\n  Explanation: hunter2",
        "ValueError: hunter2",
        "backend='hunter2' raised:\nValueError: hunter2",
    ],
)
def test_values_paths_and_code_stay_out_of_reasons(raw: str) -> None:
    assert "hunter2" not in first_sentence(raw)


def test_the_line_of_a_guard_is_the_last_one_that_torch_wrote() -> None:
    raw = "0/0: n == 1     # x  # fake.py:1 in y  # home/me/train.py:4 in forward"

    found = guarded_line(raw)

    assert found is not None
    assert (str(found), found.function) == ("train.py:4", "forward")
    assert guarded_line("0/0: n == 1") is None


def test_a_hint_keeps_the_names_of_torch() -> None:
    raw = "Unsupported\n  Hint: Set `torch._dynamo.config.capture_scalar_outputs = True` or remove `secret(x)`.\n"

    assert hint_of(raw) == "Set `torch._dynamo.config.capture_scalar_outputs = True` or remove `…`."
    assert hint_of("no advice") is None


def test_only_addresses_of_torch_are_shown() -> None:
    assert address_of("see https://evil.example/gb0001.html") is None
    assert address_of("see https://docs.pytorch.org/other.html") is None


@given(st.text())
def test_any_text_is_made_fit(raw: str) -> None:
    assert "\n" not in guard_text(raw)
    assert len(first_sentence(raw)) <= 400
    guard_kind(guard_text(raw))
    guarded_line(raw)
    hint_of(raw)
