"""Patch-based 3-D segmentation of brain tumours from two MR modalities."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

VOLUME = (112, 176, 176)
PATCH = (48, 48, 48)


def synthetic_case(seed):
    """A head-sized ellipsoid with one bright lesion; values in [0, 1]."""
    g = torch.Generator().manual_seed(seed)
    axes = [torch.linspace(-1, 1, n) for n in VOLUME]
    z, y, x = torch.meshgrid(*axes, indexing="ij")
    head = ((z / 0.9) ** 2 + (y / 0.85) ** 2 + (x / 0.75) ** 2 < 1).float()
    c = torch.rand(3, generator=g) * 0.6 - 0.3
    lesion = ((z - c[0]) ** 2 + (y - c[1]) ** 2 + (x - c[2]) ** 2 < 0.05).long()
    t1 = head * 0.4 + 0.1 * torch.rand(VOLUME, generator=g) - 0.15 * lesion
    flair = head * 0.35 + 0.1 * torch.rand(VOLUME, generator=g) + 0.4 * lesion
    return torch.stack([t1, flair]).clamp(0, 1), lesion


def augment(image, label):
    gamma = 0.7 + 0.8 * torch.rand(())
    gain = 0.9 + 0.2 * torch.rand(image.shape[0], 1, 1, 1)
    image = image.clamp(1e-4, 1).pow(gamma) * gain
    image = image + 0.03 * torch.randn_like(image)
    dims = [d for d in (1, 2, 3) if torch.rand(()) < 0.5]
    if dims:
        image = image.flip(dims)
        label = label.flip([d - 1 for d in dims])
    return image, label


def random_patch(image, label):
    corner = [int(torch.randint(0, n - p + 1, ())) for n, p in zip(VOLUME, PATCH)]
    window = tuple(slice(c, c + p) for c, p in zip(corner, PATCH))
    return image[(slice(None), *window)], label[window]


def training_sample(case, better):
    image, label = case
    if better:
        return augment(*random_patch(image, label))
    image, label = augment(image, label)
    return random_patch(image, label)


def block(cin, cout):
    return nn.Sequential(
        nn.Conv3d(cin, cout, 3, padding=1),
        nn.InstanceNorm3d(cout, affine=True),
        nn.LeakyReLU(0.01),
        nn.Conv3d(cout, cout, 3, padding=1),
        nn.InstanceNorm3d(cout, affine=True),
        nn.LeakyReLU(0.01),
    )


class UNet3d(nn.Module):
    def __init__(self, base=8):
        super().__init__()
        self.enc1, self.enc2 = block(2, base), block(base, base * 2)
        self.bottom = block(base * 2, base * 4)
        self.up2 = nn.ConvTranspose3d(base * 4, base * 2, 2, stride=2)
        self.dec2 = block(base * 4, base * 2)
        self.up1 = nn.ConvTranspose3d(base * 2, base, 2, stride=2)
        self.dec1 = block(base * 2, base)
        self.head = nn.Conv3d(base, 2, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(F.max_pool3d(a, 2))
        c = self.bottom(F.max_pool3d(b, 2))
        x = self.dec2(torch.cat([self.up2(c), b], 1))
        x = self.dec1(torch.cat([self.up1(x), a], 1))
        return self.head(x)


def dice_ce(logits, label):
    ce = F.cross_entropy(logits, label)
    prob = logits.softmax(1)[:, 1]
    fg = (label == 1).float()
    dice = (2 * (prob * fg).sum() + 1) / (prob.sum() + fg.sum() + 1)
    return ce + 1 - dice


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.manual_seed(0)

    cases = [synthetic_case(i) for i in range(6)]
    model = UNet3d()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True)

    times, step = [], 0
    start = last = time.perf_counter()
    while last - start < args.seconds:
        picks = torch.randint(0, len(cases), (2,)).tolist()
        samples = [training_sample(cases[i], args.better) for i in picks]
        image = torch.stack([s[0] for s in samples])
        label = torch.stack([s[1] for s in samples])
        loss = dice_ce(model(image), label)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 12)
        optimizer.step()
        step += 1
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
