#!/usr/bin/env python
# Soil moisture from satellite bands, trained with Accelerate; keeps an averaged copy for evaluation.
import argparse, copy, json, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import set_seed


class GatedResidual(nn.Module):
    def __init__(self, width, drop):
        super().__init__()
        self.fc1 = nn.Linear(width, width)
        self.fc2 = nn.Linear(width, 2 * width)
        self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        h = self.drop(torch.nn.functional.elu(self.fc1(x)))
        return self.norm(x + nn.functional.glu(self.fc2(h), dim=-1))


class SoilNet(nn.Module):
    def __init__(self, bands=13, width=80, depth=10):
        super().__init__()
        self.inp = nn.Linear(bands * 9, width)
        self.body = nn.ModuleList(GatedResidual(width, 0.1) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, patch):
        h = self.inp(patch.flatten(1))
        for block in self.body:
            h = block(h)
        return self.out(h).squeeze(1)


class Averaged:
    """Exponential moving average of a network's state."""

    def __init__(self, net, decay=0.999, variant="a"):
        self.net = copy.deepcopy(net).eval()
        self.decay = decay
        self.update = self.blend if variant == "a" else self.blend_b

    @torch.no_grad()
    def blend(self, net):
        d = self.decay
        self.net.load_state_dict({k: v * d + net.state_dict()[k] * (1 - d) for k, v in self.net.state_dict().items()})

    @torch.no_grad()
    def blend_b(self, net):
        d, new = self.decay, net.state_dict()
        self.net.load_state_dict({k: v * d + new[k] * (1 - d) for k, v in self.net.state_dict().items()})


def synthetic(n):
    x = torch.randn(n, 13, 3, 3)
    ndvi = (x[:, 7] - x[:, 3]) / (x[:, 7].abs() + x[:, 3].abs() + 1)
    return TensorDataset(x, ndvi.mean((1, 2)) + 0.05 * torch.randn(n))


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--seconds", type=float, default=10)
    cli.add_argument("--better", action="store_true")
    cli.add_argument("--times", default=None)
    args = cli.parse_args()
    torch.set_num_threads(2)
    set_seed(21)
    acc = Accelerator(cpu=True)
    net = SoilNet()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)
    loader = DataLoader(synthetic(24000), batch_size=384, shuffle=True, drop_last=True)
    net, opt, loader = acc.prepare(net, opt, loader)
    average = Averaged(acc.unwrap_model(net), variant="b" if args.better else "a")

    times, begin = [], time.perf_counter()
    last = begin
    while last - begin < args.seconds:
        for x, y in loader:
            loss = nn.functional.mse_loss(net(x), y)
            acc.backward(loss)
            acc.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
            average.update(acc.unwrap_model(net))
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if last - begin >= args.seconds:
                break
        acc.print(f"loss {loss.item():.4f}")
    if args.times and acc.is_main_process:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
