"""Streaming vocoder of the speech assistant: mel frames in, samples out.

Frames come from the acoustic model in blocks of four; each block is turned into
audio with a little left context, so that playback can start early. The net writes
sixteen interleaved phases per output position.
"""

import argparse
import json
import time

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import is_parametrized, remove_parametrizations

N_MEL = 80
CONTEXT = 2
BLOCK = 4
BANDS = 16


class ResBlock(nn.Module):
    def __init__(self, ch, kernel, dilations=(1, 3, 5)):
        super().__init__()
        self.first = nn.ModuleList(
            weight_norm(nn.Conv1d(ch, ch, kernel, dilation=d, padding=d * (kernel - 1) // 2)) for d in dilations
        )
        self.second = nn.ModuleList(
            weight_norm(nn.Conv1d(ch, ch, kernel, padding=(kernel - 1) // 2)) for _ in dilations
        )

    def forward(self, x):
        for a, b in zip(self.first, self.second):
            y = a(nn.functional.leaky_relu(x, 0.1))
            x = x + b(nn.functional.leaky_relu(y, 0.1))
        return x


class Generator(nn.Module):
    def __init__(self, width=768, rates=(2, 2, 2), kernels=(3, 7, 11)):
        super().__init__()
        self.inp = weight_norm(nn.Conv1d(N_MEL, width, 7, padding=3))
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        ch = width
        for r in rates:
            self.ups.append(weight_norm(nn.ConvTranspose1d(ch, ch // 2, 2 * r, r, padding=r // 2)))
            ch //= 2
            self.blocks.append(nn.ModuleList(ResBlock(ch, k) for k in kernels))
        self.out = weight_norm(nn.Conv1d(ch, BANDS, 7, padding=3))

    def forward(self, mel):
        x = self.inp(mel)
        for up, blocks in zip(self.ups, self.blocks):
            x = up(nn.functional.leaky_relu(x, 0.1))
            x = sum(b(x) for b in blocks) / len(blocks)
        bands = torch.tanh(self.out(nn.functional.leaky_relu(x, 0.1)))
        return bands.transpose(1, 2).flatten(1)


def load_vocoder(args):
    torch.manual_seed(0)
    net = Generator()
    net.requires_grad_(False).eval()
    if args.better:
        for m in list(net.modules()):
            if is_parametrized(m, "weight"):
                remove_parametrizations(m, "weight", leave_parametrized=True)
    return net


class Stream:
    """One caller's audio stream."""

    def __init__(self, net, hop=8 * BANDS):
        self.net, self.hop = net, hop
        self.left = torch.zeros(1, N_MEL, CONTEXT)

    @torch.inference_mode()
    def push(self, block):
        mel = torch.cat([self.left, block], dim=2)
        self.left = mel[:, :, -CONTEXT:]
        audio = self.net(mel)[:, CONTEXT * self.hop :]
        return (audio * 32767).to(torch.int16).numpy().tobytes()


def acoustic_blocks(n=200):
    g = torch.Generator().manual_seed(3)
    track = torch.randn(1, N_MEL, n * BLOCK, generator=g).cumsum(dim=2) * 0.05
    return track.split(BLOCK, dim=2)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    args = p.parse_args()

    stream = Stream(load_vocoder(args))
    blocks = acoustic_blocks()
    stream.push(blocks[0])

    times, sent, i = [], 0, 0
    end = time.perf_counter() + args.seconds
    while time.perf_counter() < end:
        t0 = time.perf_counter()
        pcm = stream.push(blocks[i % len(blocks)])
        times.append(time.perf_counter() - t0)
        sent += len(pcm)
        i += 1
        if i % 100 == 0:
            print(f"block {i}: {sent // 1024} KiB sent")

    print(f"{i} blocks, mean {1e3 * sum(times) / len(times):.1f} ms")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
