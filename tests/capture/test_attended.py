"""Which scores of attention a mask hides, counted where attention is called as users call it."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest
from tests.capture.test_repeats import seen

from whystall.run_folder.observations import AttendedScores

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("steps_that_take_no_time")
LENGTH = 256
AT = torch.arange(LENGTH)
CAUSAL = AT[:, None] >= AT
SDPA = torch.nn.functional.scaled_dot_product_attention


def written_out(query: Any, key: Any, value: Any, attn_mask: Any) -> Any:
    scores = query @ key.transpose(-2, -1)
    return scores.masked_fill(~attn_mask, -1e9).softmax(-1) @ value


def attended(
    mask: Any, form: Any = SDPA, *, queries: int = LENGTH, keys: int = LENGTH, within: Any = contextlib.nullcontext
) -> list[AttendedScores]:
    """What is told of steps of a product and of attention with a mask."""
    weight = torch.randn(256, 256)

    def step() -> None:
        query, key, value = (torch.randn(2, 4, n, 16) @ weight[:16, :16] for n in (queries, keys, keys))
        with within():
            form(query, key, value, attn_mask=mask) if mask is not None else form(query, key, value)

    found: list[AttendedScores] = seen(step).told()["attended"]
    return found


@pytest.mark.parametrize("form", [SDPA, written_out])
@pytest.mark.parametrize("within", [contextlib.nullcontext, torch.inference_mode, torch.no_grad])
def test_keys_of_a_cache_that_no_query_sees(form: Any, within: Any) -> None:
    [one] = attended((torch.arange(320) < 80)[None, :], form, queries=1, keys=320, within=within)
    assert (one.queries, one.keys, one.kept) == (1, 320, 0.25)
    assert not one.causal


@pytest.mark.parametrize("form", [SDPA, written_out])
def test_a_mask_that_hides_what_comes_later(form: Any) -> None:
    [one] = attended(CAUSAL, form)
    assert one.causal
    assert one.kept == 1
    assert one.tiles == pytest.approx((32 * 33 / 2) / 32**2)


def test_a_causal_mask_of_numbers_is_one_too() -> None:
    [one] = attended(torch.zeros(LENGTH, LENGTH).masked_fill(~CAUSAL, torch.finfo(torch.float32).min))
    assert one.causal


def test_a_job_that_does_nothing_but_attend_is_looked_at() -> None:
    given = [torch.randn(2, 4, 512, 16) for _ in range(3)]
    mask = torch.ones(512, 512, dtype=torch.bool).tril()
    [one] = seen(lambda: SDPA(*given, attn_mask=mask)).told()["attended"]
    assert one.causal


def test_one_key_more_or_less_is_another_mask() -> None:
    for further in (1, -1):
        [one] = attended((AT[:, None] + further >= AT).index_fill(0, torch.tensor(0), value=True))
        assert not one.causal


def test_windows_slide_and_groups_do_not() -> None:
    [window] = attended((AT[:, None] - AT).abs() < 8)
    [groups] = attended(AT[:, None] // 32 == AT // 32)
    assert window.sliding
    assert not groups.sliding
    assert groups.tiles == pytest.approx(1 / 8)
    assert window.tiles == pytest.approx((32 + 2 * 31) / 32**2)


def test_what_pads_a_batch_is_left_out_of_both_sides() -> None:
    lengths = torch.tensor([64, 256])
    real = torch.arange(LENGTH) < lengths[:, None]
    assert attended(real[:, None, None, :].expand(2, 1, LENGTH, LENGTH)) == []
    [both] = attended(real[:, None, None, :] & (AT[:, None] // 32 == AT // 32))
    # Of 2 x 2 and 8 x 8 groups, those on the diagonal.
    assert both.tiles == pytest.approx((2 + 8) / (2**2 + 8**2))


def test_a_causal_mask_of_a_padded_batch_is_half_seen() -> None:
    """Neither causal by itself nor groups apart: half of the groups are seen, however short the sequences."""
    real = torch.arange(LENGTH) < torch.tensor([64, 200])[:, None]
    [one] = attended(CAUSAL & real[:, None, None, :])
    assert not one.causal
    assert 0.5 < one.tiles < 0.6


@pytest.mark.parametrize("mask", [None, torch.ones(LENGTH, LENGTH, dtype=torch.bool), torch.randn(LENGTH, LENGTH)])
def test_masks_that_hide_nothing(mask: Any) -> None:
    assert attended(mask) == []


def test_what_a_cache_holds_is_the_mean_over_calls() -> None:
    at = itertools.cycle((32, 96))

    def grows(query: Any, key: Any, value: Any, attn_mask: Any) -> None:
        for _ in range(2):
            SDPA(query, key, value, attn_mask=torch.arange(320)[None] < next(at))

    [one] = attended(CAUSAL, grows, queries=1, keys=320)
    assert one.kept == pytest.approx(64 / 320)


def test_words_are_not_chosen_by_attention() -> None:
    def choose(query: Any, key: Any, value: Any, attn_mask: Any) -> None:
        logits = query[0, 0] @ torch.randn(16, 512)
        logits.masked_fill(torch.arange(512) > 100, float("-inf")).softmax(-1)

    assert attended(CAUSAL, choose) == []
