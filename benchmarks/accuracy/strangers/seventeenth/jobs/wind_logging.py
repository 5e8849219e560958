"""Wind-turbine power curves: temporal conv net. Chatty at DEBUG, quiet at INFO."""

import argparse
import json
import logging
import time

import torch
import torch.nn as nn

log = logging.getLogger("wind")


class Causal(nn.Module):
    def __init__(self, c_in, c_out, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(c_in, c_out, 3, dilation=dilation)
        self.skip = nn.Conv1d(c_in, c_out, 1) if c_in != c_out else nn.Identity()

    def forward(self, x):
        return torch.relu(self.conv(nn.functional.pad(x, (self.pad, 0))) + self.skip(x))


class TCN(nn.Module):
    def __init__(self, c_in=8, width=48, levels=5):
        super().__init__()
        sizes = [c_in] + [width] * levels
        self.body = nn.Sequential(*[Causal(a, b, 2**i) for i, (a, b) in enumerate(zip(sizes, sizes[1:]))])
        self.out = nn.Conv1d(width, 1, 1)

    def forward(self, x):
        return self.out(self.body(x)).squeeze(1)


class Scada:
    """Ten-minute averages of 8 channels for a handful of turbines."""

    def __init__(self, turbines=20, length=4000):
        wind = torch.rand(turbines, length).cumsum(1).sin().abs() * 18
        extra = torch.randn(turbines, 7, length)
        self.x = torch.cat([wind[:, None], extra], 1)
        self.y = (wind / 12).clamp(max=1) ** 3 + 0.02 * torch.randn_like(wind)

    def window(self, n, width=192):
        t = torch.randint(0, self.x.shape[0], (n,)).tolist()
        s = torch.randint(0, self.x.shape[2] - width, (n,)).tolist()
        return (
            torch.stack([self.x[i, :, a : a + width] for i, a in zip(t, s)]),
            torch.stack([self.y[i, a : a + width] for i, a in zip(t, s)]),
        )


class Debugging:
    def state(self, net, x, pred):
        log.debug(f"input {x}")
        log.debug(f"prediction {pred}")
        for name, p in net.named_parameters():
            log.debug(f"{name} value {p.data} gradient {p.grad}")


class LazyDebugging(Debugging):
    def state(self, net, x, pred):
        if not log.isEnabledFor(logging.DEBUG):
            return
        super().state(net, x, pred)


def train(net, data, debugging, seconds):
    opt = torch.optim.NAdam(net.parameters(), lr=1e-3)
    times, stop = [], time.perf_counter() + seconds
    while time.perf_counter() < stop:
        t0 = time.perf_counter()
        x, y = data.window(16)
        pred = net(x)
        loss = nn.functional.mse_loss(pred, y)
        opt.zero_grad()
        loss.backward()
        debugging.state(net, x, pred)
        opt.step()
        times.append(time.perf_counter() - t0)
        if len(times) % 50 == 0:
            log.info("step %d mse %.4f", len(times), loss.item())
    return times


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    p.add_argument("-v", "--verbose", action="store_true")
    a = p.parse_args()
    logging.basicConfig(level=logging.DEBUG if a.verbose else logging.INFO, format="%(name)s %(message)s")
    torch.manual_seed(9)
    times = train(TCN(), Scada(), (LazyDebugging if a.better else Debugging)(), a.seconds)
    if a.times:
        json.dump(times, open(a.times, "w"))


if __name__ == "__main__":
    main()
