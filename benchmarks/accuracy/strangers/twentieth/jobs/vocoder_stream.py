"""Streaming vocoder: mel frames come in chunks of a few hops, audio samples go out."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

MELS, CHUNK, CONTEXT = 80, 1, 1
UPSAMPLE = ((5, 11), (4, 8), (4, 8))


class ResidualStack(nn.Module):
    def __init__(self, channels, kernel=3, dilations=(1, 3, 5)):
        super().__init__()
        self.dilated = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, channels, kernel, dilation=d, padding=d * (kernel - 1) // 2))
            for d in dilations
        )
        self.plain = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, channels, kernel, padding=(kernel - 1) // 2)) for _ in dilations
        )

    def forward(self, x):
        for dilated, plain in zip(self.dilated, self.plain):
            y = plain(F.leaky_relu(dilated(F.leaky_relu(x, 0.1)), 0.1))
            x = x + y
        return x


class Generator(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.pre = weight_norm(nn.Conv1d(MELS, width, 7, padding=3))
        self.ups, self.stacks = nn.ModuleList(), nn.ModuleList()
        for rate, kernel in UPSAMPLE:
            up = nn.ConvTranspose1d(width, width // 2, kernel, rate, padding=(kernel - rate) // 2)
            self.ups.append(weight_norm(up))
            width //= 2
            self.stacks.append(ResidualStack(width))
        self.post = weight_norm(nn.Conv1d(width, 1, 7, padding=3))

    def forward(self, mel):
        x = self.pre(mel)
        for up, stack in zip(self.ups, self.stacks):
            x = stack(up(F.leaky_relu(x, 0.1)))
        return self.post(F.leaky_relu(x, 0.1)).tanh()


def load_generator(better):
    torch.manual_seed(0)
    model = Generator().eval()
    if better:
        for module in model.modules():
            if parametrize.is_parametrized(module, "weight"):
                parametrize.remove_parametrizations(module, "weight")
    return model.requires_grad_(False)


class Stream:
    """Keeps CONTEXT mel frames on the left so that chunk borders do not click."""

    def __init__(self, model):
        self.model = model
        self.hop = 1
        for rate, _ in UPSAMPLE:
            self.hop *= rate
        self.past = torch.zeros(1, MELS, CONTEXT)

    @torch.inference_mode()
    def feed(self, mel):
        window = torch.cat([self.past, mel], 2)
        self.past = window[:, :, -CONTEXT:]
        audio = self.model(window)
        return audio[0, 0, CONTEXT * self.hop :]


def mel_source(seed):
    g = torch.Generator().manual_seed(seed)
    while True:
        utterance = torch.randn(1, MELS, 200, generator=g)
        yield from utterance.split(CHUNK, 2)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    stream = Stream(load_generator(args.better))
    pcm = bytearray()
    times = []
    begin = last = time.perf_counter()
    for mel in mel_source(seed=41):
        audio = stream.feed(mel)
        pcm += (audio * 32767).to(torch.int16).numpy().tobytes()
        if len(pcm) > 1 << 20:
            pcm.clear()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if len(times) % 200 == 0:
            print(f"{len(times)} chunks, {1e3 * (now - begin) / len(times):.2f} ms per chunk", flush=True)
        if last - begin >= args.seconds:
            break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
