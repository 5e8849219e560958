"""A prediction as text: what it says first, escaped names, and nothing where nothing is known."""

from __future__ import annotations

from msgspec.structs import replace

from whystall.model.prediction.request import Request
from whystall.model.prediction.results import (
    Basis,
    Fit,
    ModuleBytes,
    Outside,
    PhasePeak,
    PhaseWork,
    Prediction,
    Recompute,
    Remedy,
)
from whystall.report.prediction_text import render_prediction

GIB = 2**30
FOUND = Prediction(
    request=Request(target="file.py:model", device="NVIDIA H100 80GB HBM3"),
    parameters=1000,
    trainable_parameters=10,
    peak_bytes=50 * GIB,
    peak_phase="optimizer",
    phases=(
        PhasePeak(phase="forward", n_bytes=30 * GIB, held={"parameters": 10 * GIB, "activations": 20 * GIB}),
        PhasePeak(phase="optimizer", n_bytes=50 * GIB, held={"parameters": 10 * GIB, "temporaries": 40 * GIB}),
    ),
    activations=(ModuleBytes(module="layers.*\x1b[31m", n_bytes=20 * GIB),),
    work=(PhaseWork(phase="forward", flops=2_000_000, n_bytes=8, least_ns=None),),
    basis=Basis(
        blocks_path="layers", blocks=32, depths=(2, 3, 4), depth_error=0.001, error_share=None, error_source="reasoned"
    ),
    assumed=("nothing",),
    uncovered=("aten::odd",),
)


def flat(found: Prediction, width: int = 100) -> str:
    return " ".join(render_prediction(found, width=width).split())


def test_the_peak_its_phase_and_its_reason_come_first() -> None:
    text = flat(FOUND)

    assert text.startswith(
        "file.py:model: a training step on NVIDIA H100 80GB HBM3 holds 50.0 GiB at most, in the optimizer phase; most of "
        "it is temporaries (40.0 GiB). 40.0 GiB are temporaries of the optimizer, which works on all parameters at once"
    )
    assert "1,000 parameters, 10 of them trained" in text
    assert "Of the 32 blocks in layers 2, 3, 4 were run" in text
    assert "Without a formula for their work: aten::odd." in text


def test_names_are_escaped() -> None:
    assert "\x1b" not in render_prediction(FOUND)
    assert "\x1b" not in render_prediction(replace(FOUND, request=Request(target="\x1b[2J.py:model")))


def test_what_is_not_known_is_no_number() -> None:
    """A column of which nothing is known is left out."""
    lines = render_prediction(FOUND).splitlines()

    assert next(line for line in lines if line.startswith("forward ")).split() == [
        "forward",
        "2.00",
        "M",
        "8",
        "B",
    ]
    assert next(line for line in lines if line.startswith("temporaries")).split() == ["temporaries", "-", "40.0", "GiB"]


def test_a_misfit_with_its_remedies() -> None:
    outside = (Outside(what="context", n_bytes=GIB, source="a guess"),)
    fit = Fit(device="H100", capacity_bytes=40 * GIB, outside=outside, spare_bytes=-11 * GIB, fits=False)
    remedy = Remedy(
        text="a fused optimizer",
        options="--kernels fused",
        peak_bytes=30 * GIB,
        saved_bytes=20 * GIB,
        more_flops=2 * 10**12,
        more_ns=3_000_000,
        fits=True,
    )

    text = flat(replace(FOUND, fit=fit, remedies=(remedy,)))

    assert "It does not fit: 11.0 GiB are missing." in text
    assert "outside of tensors: context 1.00 GiB assumed (a guess)" in text
    assert (
        "- a fused optimizer: 20.0 GiB less (30.0 GiB, and fits, 2.00 TFLOP and at least 3.00 ms more a step): --kernels"
        in text
    )


def test_a_rank_of_several() -> None:
    text = flat(replace(FOUND, request=Request(target="file.py:model", ranks=8, strategy="zero2")))

    assert "at most on each of 8 ranks (zero2)" in text
    assert "on a CPU" in text


def again(name: str, saved: int, flops: int, total: int, *, fits: bool = False, cheap: bool = False) -> Recompute:
    return Recompute(
        module=name.partition(":")[0],
        kind="Block",
        calls=32,
        keeps_products=cheap,
        options=f"--recompute '{name}'",
        saved_bytes=saved * GIB,
        more_flops=flops,
        flops_share=flops / 2_000_000,
        more_ns=None,
        total_saved_bytes=total * GIB,
        total_more_flops=2 * flops,
        peak_bytes=(50 - total) * GIB,
        fits=fits,
        kept_bytes=9 * GIB,
        operators={"gelu": 6 * GIB, "addmm": 3 * GIB},
    )


def test_what_to_compute_again_with_running_totals() -> None:
    rows = (again("blocks.*:cheap", 4, 0, 4, cheap=True), again("blocks.*", 6, 500_000, 10, fits=True))

    rendered = render_prediction(replace(FOUND, recompute=rows))
    text = " ".join(rendered.split())

    assert "\x1b" not in render_prediction(replace(FOUND, recompute=(replace(rows[0], kind="\x1b[31m"),)))
    assert "blocks.* (Block, 32 calls), all but products 4.00 GiB 0 0.0 % 4.00 GiB 46.0 GiB" in text
    assert "blocks.* (Block, 32 calls) 6.00 GiB 500 k 25.0 % 10.0 GiB 40.0 GiB, fits" in text
    assert "blocks.* keeps 9.00 GiB inside, made most by these operators: 6.00 GiB by gelu, 3.00 GiB by addmm" in text
    assert "All of it: 1.00 M FLOPs more a step, as --recompute 'blocks.*'." in text
    assert "does not fit with all of them" not in text


def test_why_nothing_is_computed_again_is_said() -> None:
    found = replace(FOUND, no_recompute_because="the peak is elsewhere")

    assert "Nothing to compute again is named: the peak is elsewhere." in flat(found)
    assert "compute again" not in flat(FOUND)
