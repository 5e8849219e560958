"""Adapt the image tower of a small CLIP to a product catalogue; the text tower stays as it is."""

import argparse, json, tempfile, time
import torch
import torch.nn.functional as F
from transformers import CLIPConfig, CLIPModel, Trainer, TrainerCallback, TrainingArguments

CATEGORIES, CONTEXT = 64, 16


def tiny_clip():
    cfg = CLIPConfig(
        text_config=dict(
            hidden_size=96,
            intermediate_size=192,
            num_hidden_layers=4,
            num_attention_heads=4,
            vocab_size=2000,
            max_position_embeddings=CONTEXT,
            eos_token_id=1999,
            bos_token_id=1998,
            pad_token_id=0,
        ),
        vision_config=dict(
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=4,
            image_size=64,
            patch_size=16,
        ),
        projection_dim=96,
    )
    return CLIPModel(cfg)


class Products(torch.utils.data.Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(1)
        self.images = torch.randn(n, 3, 64, 64, generator=g)
        self.labels = torch.randint(0, CATEGORIES, (n,), generator=g)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"pixel_values": self.images[i], "labels": self.labels[i]}


def prompts():
    """'a photo of a <category>' in token ids, end marker last."""
    ids = torch.randint(2, 1990, (CATEGORIES, CONTEXT), generator=torch.Generator().manual_seed(2))
    ids[:, 0], ids[:, -1] = 1998, 1999
    return ids


class PromptClassifier(torch.nn.Module):
    def __init__(self, clip, ids):
        super().__init__()
        self.clip = clip
        self.register_buffer("ids", ids)
        for p in [*clip.text_model.parameters(), *clip.text_projection.parameters()]:
            p.requires_grad_(False)

    def class_vectors(self):
        with torch.no_grad():
            pooled = self.clip.text_model(input_ids=self.ids).pooler_output
            return F.normalize(self.clip.text_projection(pooled), dim=-1)

    def forward(self, pixel_values, labels=None):
        pooled = self.clip.vision_model(pixel_values=pixel_values).pooler_output
        img = F.normalize(self.clip.visual_projection(pooled), dim=-1)
        logits = self.clip.logit_scale.exp() * img @ self.class_vectors().T
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


class FixedPromptClassifier(PromptClassifier):
    def __init__(self, clip, ids):
        super().__init__(clip, ids)
        self.register_buffer("vectors", super().class_vectors())

    def class_vectors(self):
        return self.vectors


class Clock(TrainerCallback):
    def __init__(self, seconds):
        self.seconds = seconds
        self.times = []

    def on_train_begin(self, args, state, control, **_):
        self.first = self.last = time.perf_counter()

    def on_step_end(self, args, state, control, **_):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        control.should_training_stop = now - self.first > self.seconds


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    opt = ap.parse_args()
    torch.manual_seed(0)
    wrap = FixedPromptClassifier if opt.better else PromptClassifier
    clock = Clock(opt.seconds)
    with tempfile.TemporaryDirectory() as d:
        args = TrainingArguments(
            d,
            per_device_train_batch_size=16,
            max_steps=10**6,
            learning_rate=1e-4,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=100,
            disable_tqdm=True,
        )
        Trainer(wrap(tiny_clip(), prompts()), args, train_dataset=Products(480), callbacks=[clock]).train()
    if opt.times:
        json.dump(clock.times, open(opt.times, "w"))
