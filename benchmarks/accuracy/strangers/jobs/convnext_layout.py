"""ConvNeXt-like blocks for plankton images: a layer norm over channels in every block."""

import argparse
import json
import time

import torch
from torch import nn


class ChannelNorm(nn.Module):
    """Layer norm over the channels of an image, by way of the last dimension."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        x = x.permute(0, 2, 3, 1).contiguous()
        return self.norm(x).permute(0, 3, 1, 2).contiguous()


class Block(nn.Module):
    def __init__(self, width, last):
        super().__init__()
        self.dw = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.last = last
        self.norm = nn.LayerNorm(width) if last else ChannelNorm(width)
        self.up = nn.Linear(width, 2 * width) if last else nn.Conv2d(width, 2 * width, 1)
        self.down = nn.Linear(2 * width, width) if last else nn.Conv2d(2 * width, width, 1)

    def forward(self, x):
        h = self.dw(x)
        if self.last:
            h = self.down(nn.functional.relu(self.up(self.norm(h.permute(0, 2, 3, 1)))))
            return x + h.permute(0, 3, 1, 2)
        h = self.norm(h)
        h = nn.functional.relu(self.up(h))
        return x + self.down(h)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    stem = nn.Conv2d(1, 48, 4, 4)
    head = nn.Linear(48, 12)
    blocks = nn.Sequential(*(Block(48, args.better) for _ in range(4)))
    parameters = [*stem.parameters(), *blocks.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
    images, labels = torch.randn(512, 1, 128, 128), torch.randint(0, 12, (512,))
    if args.better:
        stem, blocks = stem.to(memory_format=torch.channels_last), blocks.to(memory_format=torch.channels_last)
    times, start = [], time.perf_counter()
    last = start
    while last - start < args.seconds:
        pick = torch.randint(0, 512, (8,))
        x = images[pick]
        if args.better:
            x = x.contiguous(memory_format=torch.channels_last)
        loss = nn.functional.cross_entropy(head(blocks(stem(x)).mean((2, 3))), labels[pick])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print("done", len(times), loss.item())
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
