"""Deep residual MLP on physics-detector hits, with activation statistics gathered by forward hooks."""

import argparse, json, logging, time
import torch
from torch import nn

log = logging.getLogger("detector")


class Residual(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.fc, self.act = nn.LayerNorm(d), nn.Linear(d, d), nn.ReLU()

    def forward(self, x):
        return x + self.act(self.fc(self.norm(x)))


class ActivationWatch:
    """Share of dead units and a high percentile for each activation; printed every `every` steps."""

    def __init__(self, model, every=100, lazy=False):
        self.every, self.lazy, self.step = every, lazy, 0
        self.stats = {}
        for name, module in model.named_modules():
            if isinstance(module, nn.ReLU):
                module.register_forward_hook(self.hook_for(name))

    def hook_for(self, name):
        def hook(module, inputs, output):
            if self.lazy and (self.step + 1) % self.every:
                return
            out = output.detach()
            dead = (out.amax(0) == 0).float().mean().item()
            high = torch.quantile(out[:512].flatten(), 0.99).item()
            self.stats[name] = (dead, high)

        return hook

    def tick(self):
        self.step += 1
        if self.step % self.every == 0:
            for name, (dead, high) in self.stats.items():
                log.debug("%s dead %.3f p99 %.3f", name, dead, high)


def build(inputs=60, d=160, depth=6, classes=5):
    return nn.Sequential(
        nn.Linear(inputs, d), *[Residual(d) for _ in range(depth)], nn.LayerNorm(d), nn.Linear(d, classes)
    )


class Detector:
    def __init__(self, seed=0):
        self.g = torch.Generator().manual_seed(seed)
        self.tracks = torch.randn(5, 60, generator=self.g)

    def events(self, n):
        y = torch.randint(5, (n,), generator=self.g)
        energy = torch.empty(n, 1).exponential_(generator=self.g)
        return self.tracks[y] * energy + torch.randn(n, 60, generator=self.g), y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--batch", type=int, default=1024)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO)
    torch.set_num_threads(2)
    torch.manual_seed(0)
    model = build()
    watch = ActivationWatch(model, lazy=args.better)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    detector = Detector()
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        x, y = detector.events(args.batch)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        watch.tick()
        times.append(time.perf_counter() - t)
    log.info("%d steps, loss %.3f", len(times), loss.item())
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
