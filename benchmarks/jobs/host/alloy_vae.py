"""Variational autoencoder over alloy compositions and their processing routes (materials team).

The weight of the KL term rises in small stairs over the run. The model is compiled; the
backend is an option because the machines of the lab have no C++ compiler.
"""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

ELEMENTS, STEPS, LATENT, WIDTH = 64, 48, 32, 640
STAIR, STAIRS = 10, 500

torch._dynamo.config.recompile_limit = 1000
torch._dynamo.config.accumulated_recompile_limit = 4000


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), nn.LayerNorm(b), nn.SiLU()]
    return nn.Sequential(*layers)


class AlloyVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.route = nn.Linear(STEPS * 3, WIDTH)
        self.encoder = mlp(ELEMENTS + WIDTH, WIDTH, WIDTH)
        self.moments = nn.Linear(WIDTH, 2 * LATENT)
        self.decoder = mlp(LATENT + WIDTH, WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, ELEMENTS)
        self.stair = 0

    def kl_weight(self):
        return self.stair / STAIRS

    def forward(self, composition, route, noise):
        r = F.silu(self.route(route.flatten(1)))
        mean, logvar = self.moments(self.encoder(torch.cat([composition, r], 1))).chunk(2, 1)
        logvar = logvar.clamp(-8, 8)
        z = mean + noise * torch.exp(0.5 * logvar)
        logits = self.out(self.decoder(torch.cat([z, r], 1)))
        rebuild = -(composition * logits.log_softmax(1)).sum(1).mean()
        kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum(1).mean()
        return rebuild + self.kl_weight() * kl, rebuild.detach(), kl.detach()

    def climb(self, step):
        self.stair = min(step // STAIR, STAIRS)


class SteadyAlloyVAE(AlloyVAE):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.zeros(()), persistent=False)

    def kl_weight(self):
        return self.weight

    def climb(self, step):
        self.weight.fill_(min(step // STAIR, STAIRS) / STAIRS)


class Alloys:
    def __init__(self, n=8192, batch=512):
        g = torch.Generator().manual_seed(5)
        family = torch.randint(0, 12, (n,), generator=g)
        centre = torch.randn(12, ELEMENTS, generator=g) * 2
        self.composition = (centre[family] + torch.randn(n, ELEMENTS, generator=g)).softmax(1)
        self.route = torch.randn(n, STEPS, 3, generator=g)
        self.g, self.n, self.batch = g, n, batch

    def draw(self):
        idx = torch.randint(0, self.n, (self.batch,), generator=self.g)
        noise = torch.randn(self.batch, LATENT, generator=self.g)
        return self.composition[idx], self.route[idx], noise


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    p.add_argument("--backend", default="aot_eager")
    args = p.parse_args()

    torch.manual_seed(0)
    vae = SteadyAlloyVAE() if args.better else AlloyVAE()
    model = torch.compile(vae, backend=args.backend)
    opt = torch.optim.AdamW(vae.parameters(), lr=1e-3, fused=True)
    alloys = Alloys()
    model(*alloys.draw())[0].backward()
    opt.zero_grad()

    times, step = [], 0
    end = time.perf_counter() + args.seconds
    while time.perf_counter() < end:
        t0 = time.perf_counter()
        vae.climb(step)
        loss, rebuild, kl = model(*alloys.draw())
        loss.backward()
        opt.step()
        opt.zero_grad()
        times.append(time.perf_counter() - t0)
        step += 1
        if step % 50 == 0:
            print(f"step {step}: rebuild {rebuild.item():.4f}, KL {kl.item():.4f}")

    print(f"{step} steps, mean {1e3 * sum(times) / len(times):.1f} ms")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
