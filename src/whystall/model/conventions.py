"""FLOPs per token as others count them, so that people can reconcile their number with ours.

All are for forward and backward together (three times the forward pass) of a decoder with gated feed-forward layers.
They differ in what they leave out, which is why an MFU means nothing without its convention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The sizes of a decoder-only transformer and the length of its sequences."""

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    key_value_heads: int
    head_width: int
    vocabulary: int
    sequence: int
    tied: bool = False
    counted: int | None = None
    """The model's own number of parameters, where it is known: some have small ones beside those of the closed form."""

    @property
    def layer_weights(self) -> int:
        """The weights of one layer's matrices."""
        attention = 2 * self.hidden * self.head_width * (self.heads + self.key_value_heads)
        return attention + 3 * self.hidden * self.feed_forward

    @property
    def norm_weights(self) -> int:
        """The weights of all normalisations: two a layer and one at the end."""
        return (2 * self.layers + 1) * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters, the embedding and the head included, once where they are tied."""
        return self.expected if self.counted is None else self.counted

    @property
    def expected(self) -> int:
        """The number of parameters in closed form."""
        tables = (1 if self.tied else 2) * self.vocabulary * self.hidden
        return self.layers * self.layer_weights + self.norm_weights + tables


def dense(sizes: Decoder) -> int:
    """Whystall's model FLOPs per token: every product once forward and twice backward, scores dense."""
    products = sizes.layers * sizes.layer_weights + sizes.vocabulary * sizes.hidden
    return 6 * products + 12 * sizes.layers * sizes.heads * sizes.head_width * sizes.sequence


def causal(sizes: Decoder) -> int:
    """Whystall's model FLOPs per token with half of every score matrix, the convention of Megatron-LM.

    Megatron-LM, `num_floating_point_operations`.
    """
    return dense(sizes) - 6 * sizes.layers * sizes.heads * sizes.head_width * sizes.sequence


def torchtitan(sizes: Decoder) -> int:
    """torchtitan's: 6 for every parameter but the embedding's, norms included, and dense scores.

    torchtitan, `get_dense_model_nparams_and_flops`.

    >>> round(torchtitan(LLAMA_3_8B) / 1e9, 2), round(causal(LLAMA_3_8B) / 1e9, 2), round(six_n(LLAMA_3_8B) / 1e9, 2)
    (57.91, 51.47, 48.18)
    """
    counted = sizes.parameters - (0 if sizes.tied else sizes.vocabulary * sizes.hidden)
    return 6 * counted + 12 * sizes.layers * sizes.heads * sizes.head_width * sizes.sequence


def six_n(sizes: Decoder) -> int:
    """6 N with all parameters and no attention (Kaplan et al. 2020, section 2.1, there without embeddings)."""
    return 6 * sizes.parameters


CONVENTIONS = {
    "whystall, dense": dense,
    "whystall, causal (Megatron-LM)": causal,
    "torchtitan": torchtitan,
    "6 N": six_n,
}

LLAMA_3_8B = Decoder(
    layers=32,
    hidden=4096,
    feed_forward=14336,
    heads=32,
    key_value_heads=8,
    head_width=128,
    vocabulary=128256,
    sequence=8192,
)


_UNLIKE = 0.01


def decoder_of(config: Any, sequence: int, parameters: int) -> Decoder | None:
    """The sizes that a Transformers configuration states; ``None`` where the model is no plain gated decoder.

    The closed forms hold for no other: not for mixtures of experts, nor for other feed-forward layers, nor where the
    model has another number of ``parameters`` than they know (state-space layers, a second attention).
    """
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    values = [getattr(config, name, None) for name in names]
    gated = getattr(config, "hidden_act", None) in {"silu", "swiglu"}
    experts = any(getattr(config, name, None) for name in ("num_local_experts", "num_experts", "n_routed_experts"))
    if not gated or experts or not all(isinstance(value, int) for value in values):
        return None
    layers, hidden, feed_forward, heads, vocabulary = (int(value or 0) for value in values)
    sizes = Decoder(
        layers=layers,
        hidden=hidden,
        feed_forward=feed_forward,
        heads=heads,
        key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_width=getattr(config, "head_dim", None) or hidden // heads,
        vocabulary=vocabulary,
        sequence=sequence,
        tied=bool(getattr(config, "tie_word_embeddings", False)),
        counted=parameters,
    )
    return sizes if abs(parameters - sizes.expected) <= _UNLIKE * parameters else None
