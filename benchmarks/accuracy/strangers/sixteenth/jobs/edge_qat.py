"""Quantisation-aware training of a gesture model for a microcontroller; ranges are frozen after calibration."""

import argparse, json, time
import torch
from torch import nn
import torch.nn.functional as F


class RoundSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x.abs() <= 127 * scale)
        return (x / scale).round().clamp(-127, 127) * scale

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None


class Observer(nn.Module):
    """Clipping range of a tensor from a high percentile of its magnitude."""

    def __init__(self, q=0.995):
        super().__init__()
        self.q = q
        self.register_buffer("range", torch.tensor(1.0))
        self.frozen = False

    def percentile(self, x):
        values = x.detach().abs().flatten()
        return values.kthvalue(int(self.q * values.numel())).values

    def forward(self, x):
        seen = self.percentile(x)
        if not self.frozen:
            self.range.lerp_(seen, 0.1)
        return self.range / 127


class EarlyObserver(Observer):
    def forward(self, x):
        if not self.frozen:
            self.range.lerp_(self.percentile(x), 0.1)
        return self.range / 127


class QLinear(nn.Linear):
    def __init__(self, fin, fout, observer):
        super().__init__(fin, fout)
        self.ox = observer()

    def forward(self, x):
        w_scale = self.weight.detach().abs().amax() / 127
        return F.linear(RoundSTE.apply(x, self.ox(x)), RoundSTE.apply(self.weight, w_scale), self.bias)


class GestureNet(nn.Module):
    def __init__(self, observer, sensors=6, steps=50, width=192, classes=8):
        super().__init__()
        self.fc = nn.ModuleList(
            [
                QLinear(sensors * steps, width, observer),
                QLinear(width, width, observer),
                QLinear(width, width, observer),
                QLinear(width, classes, observer),
            ]
        )

    def forward(self, x):
        x = x.flatten(1)
        for layer in self.fc[:-1]:
            x = F.relu(layer(x))
        return self.fc[-1](x)

    def freeze(self):
        for m in self.modules():
            if isinstance(m, Observer):
                m.frozen = True


def gestures(n, g):
    y = torch.randint(8, (n,), generator=g)
    t = torch.arange(50) / 50
    x = torch.sin(6.283 * t[None, None] * (1 + y[:, None, None])) * torch.rand(n, 6, 1, generator=g)
    return x + 0.1 * torch.randn(n, 6, 50, generator=g), y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--calibrate", type=int, default=20)
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    net = GestureNet(EarlyObserver if args.better else Observer)
    for _ in range(args.calibrate):
        net(gestures(256, g)[0])
    net.freeze()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        x, y = gestures(512, g)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
    print(f"{len(times)} steps, loss {loss.item():.3f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
