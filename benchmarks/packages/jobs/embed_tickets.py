"""Embed every sentence of every support ticket."""

import tempfile

import torch
from clock import Clock, arguments
from corpus import make_texts, make_tokenizer
from sentence_transformers import SentenceTransformer
from transformers import BertConfig, BertModel


def load_model(texts):
    tokenizer = make_tokenizer(texts)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=8,
        intermediate_size=1024,
    )
    folder = tempfile.mkdtemp()
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return SentenceTransformer(folder, device="cpu")


def embed_ticket(model, sentences):
    return torch.stack([model.encode(sentence, convert_to_tensor=True) for sentence in sentences])


def embed_ticket_fixed(model, sentences):
    return model.encode(sentences, convert_to_tensor=True)


def main():
    args = arguments(steps=160)
    clock = Clock()
    sentences = make_texts(args.steps * 24, 8, 16)
    model = load_model(sentences)
    embed = embed_ticket_fixed if args.fixed else embed_ticket
    index = []
    for start in range(0, len(sentences), 24):
        vectors = embed(model, sentences[start : start + 24])
        index.append(torch.nn.functional.normalize(vectors, dim=1))
        clock.tick()
    print(f"{torch.cat(index).shape[0]} vectors")
    clock.report()


if __name__ == "__main__":
    main()
