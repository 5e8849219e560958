"""Tag pages of user comments with a text-classification pipeline."""

from collections import Counter

from clock import Clock, arguments
from corpus import make_texts, make_tokenizer
from transformers import BertConfig, BertForSequenceClassification, pipeline

PAGE = 16


def load_classifier(texts):
    tokenizer = make_tokenizer(texts)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=384,
        num_labels=5,
    )
    return pipeline("text-classification", model=BertForSequenceClassification(config), tokenizer=tokenizer, device=-1)


def main():
    args = arguments(steps=320)
    clock = Clock()
    comments = make_texts(args.steps * PAGE, 5, 12)
    classifier = load_classifier(comments)
    tags = Counter()
    for page in range(args.steps):
        texts = comments[page * PAGE : (page + 1) * PAGE]
        if args.fixed:
            results = classifier(texts, batch_size=PAGE)
        else:
            results = [classifier(text)[0] for text in texts]
        tags.update(result["label"] for result in results)
        clock.tick()
    print(tags.most_common(3))
    clock.report()


if __name__ == "__main__":
    main()
