"""Padding is known by its values: counted exactly where it is, and nothing else is taken for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whystall.capture.padding import PaddingSeen, lengths_of
from whystall.run_folder.observations import PaddedBatches

PAD = 0


def tokens(lengths: list[int], places: int, *, pad: int = PAD, left: bool = False) -> Any:
    """Rows of numbers that are not the padding's, padded to so many places."""
    drawn = torch.Generator().manual_seed(sum(lengths))
    out = torch.full((len(lengths), places), pad)
    for row, length in enumerate(lengths):
        begin = places - length if left else 0
        out[row, begin : begin + length] = torch.randint(1_000, 30_000, (length,), generator=drawn)
    return out


def seen(*batches: object, source: str = "loader") -> PaddedBatches | None:
    looked = PaddingSeen()
    for batch in batches:
        comes(looked, batch, source)
    return looked.told()


def comes(looked: PaddingSeen, batch: object, source: str) -> None:
    """A batch comes, and is examined if it is its turn, as a session does it."""
    if looked.comes(source):
        looked.look(batch, source)


@given(st.lists(st.integers(3, 64), min_size=2, max_size=40), st.integers(66, 100), st.booleans())
def test_rows_are_as_long_as_they_were_made(lengths: list[int], places: int, left: bool) -> None:
    found = lengths_of(tokens(lengths, places, left=left).numpy())
    assert found is not None
    assert found.tolist() == lengths


def test_numbers_that_rows_end_in_by_chance_are_no_padding() -> None:
    rows = tokens([40] * 8, 40)
    rows[2:5, -1] = rows[1, -1]
    found = lengths_of(rows.numpy())
    assert found is not None
    assert found.tolist() == [40] * 8


def test_a_tokenizers_batch_is_counted_once() -> None:
    """Tokens, their mask, types and labels are one sequence; a mask's and types' numbers are none of their own."""
    ids = tokens([10, 20], 40)
    mask = (ids != PAD).long()
    batch = {"input_ids": ids, "attention_mask": mask, "token_type_ids": mask * 0, "labels": torch.tensor([1, 0])}
    told = seen(batch)
    assert told is not None
    assert (told.positions[0], told.needed[0], told.real[0]) == (80, 40, 30)
    assert (told.positions[1], told.needed[1], told.real[1]) == (3_200, 800, 500)
    assert told.sizes == [(2, 40)]


def test_what_is_masked_of_the_labels_alone_is_no_padding() -> None:
    ids, other = tokens([40, 40], 40), tokens([30, 40], 40)
    labels = ids.clone()
    labels[:, :25] = -100  # the prompts
    assert seen({"input_ids": ids, "labels": labels}, {"input_ids": other, "labels": labels}) == PaddedBatches(
        batches=2, positions=(160, 6_400), needed=(160, 6_400), real=(150, 5_700), sizes=[(2, 40)]
    )


def test_frames_of_zeros_are_padding_and_zeros_in_frames_are_none() -> None:
    frames = torch.rand(2, 50, 8) + 0.1
    frames[0, 30:] = 0.0
    frames[:, :, 3] = 0.0
    told = seen((frames, torch.tensor([3, 4])))
    assert told is not None
    assert (told.positions[0], told.needed[0], told.real[0]) == (100, 100, 80)
    assert told.sizes == [(2, 50), (2, 25), (2, 13), (2, 7)]  # and where convolutions leave every second, or fewer


def test_only_the_first_source_with_sequences_counts() -> None:
    looked = PaddingSeen()
    comes(looked, [torch.rand(4, 4)], "loader")
    comes(looked, {"ids": tokens([5, 9], 16)}, "forward")
    comes(looked, [tokens([16, 16], 16)], "loader")
    comes(looked, {"ids": tokens([5, 10], 16)}, "forward")
    told = looked.told()
    assert told is not None
    assert (told.batches, told.real[0], told.loaded) == (2, 29, False)


def test_where_batches_come_from_is_told() -> None:
    """Of a loader the function that puts them together, of a module the line that calls it with them."""
    batches = [tokens([5, 9], 16), tokens([5, 10], 16)]
    loaded, called = PaddingSeen(), PaddingSeen()
    for batch in batches:
        assert loaded.comes("loader")
        loaded.look([batch], "loader", ("", __file__, 7, "pad"))
        assert called.comes("forward")
        called.look([batch], "forward")
    first, second = loaded.told(), called.told()
    assert first is not None
    assert first.made_at is not None
    assert second is not None
    assert second.made_at is not None
    assert (Path(first.made_at.file).name, first.made_at.line, first.made_at.function) == ("test_padding.py", 7, "pad")
    assert (second.made_at.function, second.made_at.text) == (
        "test_where_batches_come_from_is_told",
        'called.look([batch], "forward")',
    )


@pytest.mark.parametrize(
    "batch",
    [
        torch.arange(64).repeat(4, 1),  # positions
        torch.cat([torch.zeros(4, 20), torch.ones(4, 12)], 1).long(),  # types
        (torch.rand(64, 40, generator=torch.Generator().manual_seed(3)) < 0.1).long(),  # what is there or not
        torch.randint(0, 50, (64, 40), generator=torch.Generator().manual_seed(4)),  # categories
        torch.cat([torch.randint(1, 5, (32, 12)), torch.full((32, 4), 9)], 1),  # a column that is the same everywhere
        torch.zeros(8, 28 * 28, dtype=torch.uint8),
        torch.rand(8, 3, 32, 32),
        torch.rand(16, 20).relu(),
        torch.rand(4, 30, 8).requires_grad_(),
        torch.full((3, 30), 7),
        tokens([4], 8).to_sparse(),
        torch.nested.nested_tensor([torch.ones(3), torch.ones(5)], layout=torch.jagged),
        SimpleNamespace(input_ids=tokens([5, 9], 16)),
        {"rows": "text", "none": None, "numbers": [1, 2, 3]},
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_what_is_no_padding_is_not_taken_for_it(batch: object) -> None:
    assert seen([batch], [batch]) is None


def test_a_batch_within_a_transformation_is_left_alone() -> None:
    found: list[PaddedBatches | None] = []

    def inside(ids: Any) -> Any:
        found.append(seen({"ids": ids}))
        return ids

    torch.func.vmap(inside)(tokens([5, 9], 16).repeat(3, 1, 1))
    assert found == [None]


def test_few_of_many_batches_are_looked_at() -> None:
    looked, asked = PaddingSeen(), 0
    while looked.asks and asked < 1 << 20:
        asked += 1
        comes(looked, tokens([5, 9], 16) if asked < 200 else None, "loader")
    told = looked.told()
    assert told is not None
    assert told.batches == 16 + 3  # the first ones, then the 32nd, 64th and 128th
    assert not looked.asks


def test_rows_that_each_end_in_another_number_are_not_padded() -> None:
    """A model of random weights repeats its last token: each story ends in a number of its own."""
    stories = [tokens([40 - 3 * number], 40, pad=50_000 + number) for number in range(8)]
    assert seen(*stories) is None
    assert seen(*(tokens([40 - 3 * number], 40, pad=50_000) for number in range(8))) is not None


def test_a_batch_that_ends_alike_by_chance_does_not_hide_the_padding_of_others() -> None:
    batches = [tokens([10, 20, 30], 40) for _ in range(8)]
    chance = tokens([38], 40, pad=77)
    found = seen(*batches, chance)
    assert found is not None
    assert found.real[0] == 8 * 60 + 38
