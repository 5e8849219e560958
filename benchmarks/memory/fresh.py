"""Transformers' models of other kinds, on which no rule of the predictor was made: for a first look."""

from __future__ import annotations

from typing import Any

import torch
import transformers

Made = tuple[Any, dict[str, torch.Tensor]]
WORDS = 1024
SMALL = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}


def _model(name: str, head: str, **settings: Any) -> Any:
    return getattr(transformers, f"{name}{head}")(getattr(transformers, f"{name}Config")(**settings))


def _text() -> dict[str, torch.Tensor]:
    words = torch.randint(3, WORDS, (8, 96))
    return {"input_ids": words, "labels": words}


def _pictures(size: int = 96) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(8, 3, size, size), "labels": torch.randint(0, 10, (8,))}


def albert() -> Made:
    """Layers that share their weights."""
    return _model("Albert", "ForMaskedLM", vocab_size=WORDS, embedding_size=64, **SMALL), _text()


def deberta() -> Made:
    """Disentangled attention."""
    model = _model("DebertaV2", "ForMaskedLM", vocab_size=WORDS, relative_attention=True, pos_att_type=["p2c"], **SMALL)
    return model, _text()


def opt() -> Made:
    """A decoder with learned positions."""
    sizes = {"hidden_size": 128, "ffn_dim": 512, "num_hidden_layers": 8, "num_attention_heads": 4}
    return _model("OPT", "ForCausalLM", vocab_size=WORDS, word_embed_proj_dim=128, **sizes), _text()


def bloom() -> Made:
    """Biases of attention by distance."""
    return _model("Bloom", "ForCausalLM", vocab_size=WORDS, hidden_size=128, n_layer=4, n_head=4), _text()


def qwen_experts() -> Made:
    """Experts beside a shared one."""
    more = {"num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
    return _model("Qwen2Moe", "ForCausalLM", vocab_size=WORDS, **more, **SMALL), _text()


def gemma() -> Made:
    """Large heads, tied embeddings, soft caps."""
    more = {"num_key_value_heads": 2, "head_dim": 64}
    return _model("Gemma2", "ForCausalLM", vocab_size=WORDS, **more, **SMALL), _text()


def bart() -> Made:
    """An encoder and a decoder with cross attention."""
    sizes = {"d_model": 128, "encoder_layers": 3, "decoder_layers": 3, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    return _model("Bart", "ForConditionalGeneration", vocab_size=WORDS, **sizes, **heads), _text()


def resnet() -> Made:
    """Bottlenecks."""
    sizes = {"embedding_size": 32, "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]}
    return _model("ResNet", "ForImageClassification", num_labels=10, **sizes), _pictures(128)


def convnext() -> Made:
    """Wide depthwise convolutions and normalised channels."""
    sizes = {"hidden_sizes": [32, 64, 128, 256], "depths": [2, 2, 4, 2]}
    return _model("ConvNext", "ForImageClassification", num_labels=10, **sizes), _pictures(128)


def swin() -> Made:
    """Windows that shift."""
    sizes = {"image_size": 96, "embed_dim": 48, "depths": [2, 2], "num_heads": [3, 6], "window_size": 6}
    return _model("Swin", "ForImageClassification", num_labels=10, **sizes), _pictures()


def segformer() -> Made:
    """Attention over reduced sequences, and a segmentation head."""
    model = _model("Segformer", "ForSemanticSegmentation", num_labels=10)
    labels = torch.randint(0, 10, (2, 128, 128))
    return model, {"pixel_values": torch.randn(2, 3, 128, 128), "labels": labels}


def mobilenet() -> Made:
    """Inverted bottlenecks."""
    return _model("MobileNetV2", "ForImageClassification", num_labels=10, depth_multiplier=0.5), _pictures(128)
