from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall.report.names import clean, middle_cut, shorten

INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
cpp_like = st.text(alphabet="ab:<>(), -&*1", max_size=300)


@given(st.text(st.characters(), max_size=200), st.integers(4, 120))
def test_a_clean_name_is_one_visible_line_within_its_limit(text: str, limit: int) -> None:
    shown = clean(text, limit)
    assert len(shown) <= limit
    assert not any(unicodedata.category(character) in INVISIBLE for character in shown)
    shown.encode()


@given(cpp_like, st.integers(8, 120))
def test_a_short_name_is_within_its_limit_whatever_its_brackets(text: str, limit: int) -> None:
    assert len(shorten(text, limit)) <= limit


@given(st.text(alphabet="abc<>(): ", max_size=40))
def test_a_name_that_fits_is_left_alone(text: str) -> None:
    assert shorten(text, 40) == text


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void ns::(anonymous namespace)::reduce<float, 512, 4, ns::Sum>(ns::Params)",
            "ns::reduce<float, 512, 4, ns::Sum>(…)",
        ),
        ("ncclDevKernel_AllReduce_Sum_bf16(ncclArgs<4096>)", "ncclDevKernel_AllReduce_Sum_bf16(…)"),
        ("auto f()->std::vector<std::pair<int, std::string>>", "auto f()->std::vector<std::pair<…>>"),
        ("kernel<Tile<128, 64>, Epilogue<Relu, Bias<float>>>(P)", "kernel<Tile<128, 64>, Epilogue<…>>(…)"),
        ("gemm<a_very_long_parameter_that_tells_what_it_is>(P)", "gemm<a_very_long_parameter_that_tel…>(…)"),
    ],
)
def test_what_tells_kernels_apart_stays(name: str, short: str) -> None:
    assert shorten(name, 40) == short


def test_escape_sequences_are_spelled_out() -> None:
    assert clean("\x1b[2J\u202eabc\ud800") == "\\x1b[2J\\u202eabc\\ud800"


def test_a_name_that_the_recorder_cut_off_keeps_its_beginning() -> None:
    assert (
        shorten("void split_embedding_kernel<at::Accessor<float, 1ul>, at::Acces", 40)
        == "split_embedding_kernel<at::Accessor<…>,…"
    )


def test_deep_templates_are_quick_to_shorten() -> None:
    assert len(shorten("a<" * 100_000, 60)) <= 60


def test_a_cut_keeps_both_ends() -> None:
    assert middle_cut("a" * 50 + "b" * 50, 11) == "aaaaaa…bbbb"
