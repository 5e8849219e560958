"""What is made whole and read in part is told, and nothing where somebody reads the rest, or a row comes of several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.capture.test_unread import EACH_NS, Step, followed

from whystall.capture.parts import Part, Readings
from whystall.run_folder.observations import RepeatedWork

torch = pytest.importorskip("torch")
F = torch.nn.functional
kept: dict[str, Any] = {}


def partly(step: Step) -> RepeatedWork | None:
    return followed(step).told_partly()


def picture() -> Any:
    return torch.randint(0, 255, (3, 200, 200), dtype=torch.uint8)


def normalised(x: Any) -> Any:
    return ((x.float() / 255) - 0.5) / 0.2


def trained(out: Any) -> None:
    out.square().mean().backward()


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))


net, conv = network(), torch.nn.Conv2d(3, 8, 3, padding=1)
observations, actions = torch.randn(2048, 32), torch.randint(4, (2048, 1))
table = torch.randn(50_000, 8)
sound, sounds, bank, window = torch.randn(160_000), torch.randn(2, 160_000), torch.rand(40, 257), torch.hann_window(512)


def cropped() -> None:
    x = normalised(picture())[:, 20:84, 50:114]
    torch.stack([x, x]).mean().item()


def strided() -> None:
    trained(torch.relu(conv(torch.randn(4, 3, 64, 64))[:, :, ::2, ::2]))


def drawn() -> None:
    rows = torch.randperm(50_000)[:64]
    table[rows].sum().item()


def drawn_for_python() -> None:
    for row in torch.randperm(50_000)[:64].tolist():
        kept["row"] = row


def minibatches() -> None:
    for rows in torch.arange(2048).split(256):
        log_prob = net(observations).log_softmax(-1).gather(1, actions).squeeze(1)
        trained(log_prob[rows])


def spectrum(x: Any) -> Any:
    return torch.log(bank @ torch.stft(x, 512, 160, window=window, return_complex=True).abs().square() + 1e-6)


def part_of_a_spectrum() -> None:
    torch.stack([spectrum(sound)[:, 100:200]]).sum().item()


def part_of_spectra() -> None:
    spectrum(sounds)[..., 100:200].sum().item()


def cropped_after_it_was_turned_around() -> None:
    x = normalised(picture()).flip([2])
    x = (x + torch.randn_like(x)).flip([1, 2])
    torch.stack([x[:, 20:84, 130:194]]).mean().item()


def low_frequencies() -> None:
    torch.stft(sound, 512, 160, window=window, return_complex=True).abs()[:20].sum().item()


def by_weights_that_are_made() -> None:
    made = torch.rand(40, 257) * 2
    (made @ torch.rand(257, 900).exp())[:, :50].sum().item()


def selected() -> None:
    rows = torch.randint(2048, (100,))
    trained(net(observations).index_select(0, rows))


@pytest.mark.parametrize(
    ("step", "name", "calls", "share"),
    [
        (cropped, "aten::div", 5, 1 - 64 * 64 / 200 / 200),
        (strided, "aten::convolution", 1, 3 / 4),
        (drawn, "aten::randperm", 1, 1 - 64 / 50_000),
        (drawn_for_python, "aten::randperm", 1, 1 - 64 / 50_000),
        (minibatches, "aten::addmm", 8 * 5, 7 / 8),
        (selected, "aten::addmm", 3, 1 - 100 / 2048),
        (part_of_a_spectrum, "aten::_fft_r2c", 7, 1 - 100 / 1001),
        (part_of_spectra, "aten::_fft_r2c", 7, 1 - 100 / 1001),
        (cropped_after_it_was_turned_around, "aten::div", 9, 1 - 64 * 64 / 200 / 200),
    ],
)
def test_what_is_read_in_part_is_told(step: Step, name: str, calls: int, share: float) -> None:
    found = partly(step)
    assert found is not None
    assert name in {one.name for one in found.modules}
    assert found.calls == calls * found.steps
    assert found.again_ns == pytest.approx(share * EACH_NS * found.calls, rel=1e-3)


def test_a_product_with_a_sparse_matrix_is_nothing_that_ends_the_look() -> None:
    graph = torch.eye(200).to_sparse_coo()

    def step() -> None:
        (graph @ torch.randn(200, 64)).sum().item()
        torch.sparse.mm(graph.coalesce(), torch.randn(200, 64)).sum().item()
        cropped()

    found = partly(step)
    assert found is not None
    assert found.calls == 5 * found.steps


def test_gradients_go_back_through_what_is_learned_from_alone() -> None:
    learned, drawn_alone = partly(strided), partly(drawn)
    assert learned is not None
    assert learned.differentiated_ns == learned.again_ns
    assert drawn_alone is not None
    assert drawn_alone.differentiated_ns == 0


def read_elsewhere(x: Any) -> None:
    x[:, :64, :64].mean().item()
    x.mean().item()


def held(x: Any) -> None:
    kept.setdefault("pictures", []).append(x)
    x[:, :64, :64].mean().item()


def in_pieces(x: Any) -> None:
    sum(piece.mean() for piece in x.split(20, dim=1)).item()


def by_numpy(x: Any) -> None:
    x[:, :64, :64].mean().item()
    x.numpy().sum()


def most_of_it(x: Any) -> None:
    x[:, 10:-10, 10:-10].mean().item()


@pytest.mark.parametrize("use", [read_elsewhere, held, in_pieces, by_numpy, most_of_it])
def test_what_somebody_reads_is_not_told(use: Callable[[Any], None]) -> None:
    def step() -> None:
        use(normalised(picture()))

    assert partly(step) is None


class Attention(torch.nn.Module):  # type: ignore[name-defined]
    """A block whose rows come of one another."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = torch.nn.LayerNorm(32), torch.nn.Linear(32, 96)
        self.wide, self.back = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + (q @ k.mT).softmax(-1) @ v
        return x + self.back(F.gelu(self.wide(x)))


block = Attention()
texts, labels = torch.randn(8, 64, 32), torch.zeros(8, 64, dtype=torch.bool)
labels[:, ::9] = True
normed = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
edges, few = torch.randint(2048, (2, 9000)), torch.randint(2048, (100,))
running = torch.zeros(3, 200, 200)


def masked_language() -> None:
    trained(block(texts)[labels])


def last_places() -> None:
    trained(block(texts)[torch.arange(8), torch.full((8,), 63)])


def first_place() -> None:
    trained(block(texts)[:, 0])


def over_the_batch() -> None:
    trained(normed(observations)[few])


def neighbours() -> None:
    seen = torch.zeros_like(observations).index_add(0, edges[0], observations[edges[1]])
    trained(net(seen)[few])


def all_together() -> None:
    out = net(observations)
    trained(torch.cat([out[rows] for rows in torch.randperm(2048).split(256)]))


def of_other_rows() -> None:
    seen = net[0](observations)
    trained((seen[:10] @ seen.mT).softmax(-1)[few[:3] % 10])


square = torch.randn(2048, 2048)


def turned_around_and_cropped() -> None:
    x = square.exp()
    (x + x.T)[:100].sum().item()


def turned_around_and_picked() -> None:
    x = square.exp()
    (x + x.T)[few].sum().item()


def columns_picked_as_rows() -> None:
    x = square.exp()
    x.T[few].sum().item()


def last_of_a_sequence() -> None:
    trained(conv(torch.randn(4, 3, 64, 64))[:, :, -1])


def accumulated() -> None:
    running.mul_(0.9)
    running[:, :20].mean().item()


def columns() -> None:
    trained(net(observations)[:, few[:2] % 4])


@pytest.mark.parametrize(
    "step",
    [
        *(masked_language, last_places, over_the_batch, neighbours, all_together, of_other_rows),
        *(last_of_a_sequence, accumulated, columns),
    ],
)
def test_what_rows_or_places_that_are_read_come_of_is_not_told(step: Step) -> None:
    assert partly(step) is None


def test_of_a_fourier_transform_a_part_of_the_frequencies_takes_all() -> None:
    found = partly(low_frequencies)
    assert found is not None
    assert {one.name for one in found.modules} == {"aten::abs"}


@pytest.mark.parametrize("step", [turned_around_and_cropped, turned_around_and_picked, columns_picked_as_rows])
def test_what_is_read_turned_around_as_well_is_read_in_other_places(step: Step) -> None:
    found = partly(step)
    assert found is None or "aten::exp" not in {one.name for one in found.modules}


def test_columns_of_a_product_with_a_matrix_that_is_made_are_not_told() -> None:
    found = partly(by_weights_that_are_made)
    assert found is None or not any("mm" in one.name for one in found.modules)


def test_of_a_block_whose_first_place_is_read_no_product_is_told() -> None:
    found = partly(first_place)
    assert found is None or not any("mm" in one.name for one in found.modules)


@pytest.mark.parametrize("over", [[0], [1], [0, 2], [0, 1, 2]])
def test_places_of_what_is_turned_around_are_those_opposite(over: list[int]) -> None:
    x = torch.arange(4 * 5 * 6).reshape(4, 5, 6)
    seen = Readings(torch).of(torch.ops.aten.flip.default, "aten::flip", [x, over], x.flip(over), back=False)
    assert seen.through is not None
    part = x.flip(over)[1:3, 2:5, :4]
    places = seen.through.places(Part(part.storage_offset(), tuple(part.shape), tuple(part.stride())))
    assert places is not None
    read = x.as_strided(places.size, places.stride, places.offset)
    assert torch.equal(read.flip(over), part)
