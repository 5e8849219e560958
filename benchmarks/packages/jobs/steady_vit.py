"""Train a small vision transformer with Accelerate, with careful logging."""

import torch
from accelerate import Accelerator
from clock import Clock, arguments
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import ViTConfig, ViTForImageClassification


class Images(Dataset):
    def __init__(self, count):
        self.images = torch.randint(0, 256, (count, 3, 64, 64), dtype=torch.uint8)
        self.labels = torch.randint(10, (count,))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index].float() / 255, self.labels[index]


def count_dead(counts, name):
    def hook(_module, _inputs, output):
        counts[name] = (output[:, 0].detach() <= 0).float().mean().item()

    return hook


def main():
    args = arguments(steps=160)
    clock = Clock()
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=64,
        patch_size=8,
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=384,
        num_labels=10,
    )
    model = ViTForImageClassification(config)
    counts, history = {}, []
    if not args.fixed:
        for name, layer in model.named_modules():
            if isinstance(layer, nn.LayerNorm):
                layer.register_forward_hook(count_dead(counts, name))
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loader = DataLoader(Images(1600), batch_size=16, shuffle=True, num_workers=0, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    while clock.count < args.steps:
        for images, labels in loader:
            output = model(images, labels=labels)
            accelerator.backward(output.loss)
            norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if not args.fixed:
                guesses, truth = accelerator.gather_for_metrics((output.logits.argmax(1), labels))
                right = (guesses == truth).float().mean().item()
                history.append({"loss": output.loss.item(), "norm": norm.item(), "right": right, **counts})
                print(f"step {clock.count}: loss {output.loss.item():.3f}, right {right:.2f}", flush=True)
            clock.tick()
            if clock.count == args.steps:
                break
    clock.report()


if __name__ == "__main__":
    main()
