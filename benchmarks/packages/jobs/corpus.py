"""Texts of made-up words and a tokenizer for them."""

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

LETTERS = np.array(list("abcdefghijklmnoprstuvwz"))


def make_texts(count, shortest, longest, seed=0, mean=None):
    """`count` texts of `shortest` to `longest` words, evenly so or, given `mean`, mostly near it with a long tail."""
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(LETTERS, rng.integers(3, 9))) for _ in range(3000)]
    if mean is None:
        lengths = rng.integers(shortest, longest + 1, count)
    else:
        lengths = np.clip(rng.lognormal(np.log(mean), 0.5, count).astype(int), shortest, longest)
    return [" ".join(rng.choice(words, length)) + "." for length in lengths]


def make_tokenizer(texts):
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(texts[:500], trainers.BpeTrainer(vocab_size=8000, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=512,
    )
