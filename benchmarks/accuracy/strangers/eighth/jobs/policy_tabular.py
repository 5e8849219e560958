# motor insurance, claim frequency (Poisson deviance), numeric + categorical rating factors
import argparse, json, time
import numpy as np
import polars as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=12)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times")
args = parser.parse_args()

rng = np.random.default_rng(42)
N = 200_000
policies = pl.DataFrame(
    {
        "driver_age": rng.integers(18, 90, N),
        "veh_age": rng.integers(0, 25, N),
        "veh_power": rng.integers(4, 15, N),
        "density": rng.lognormal(6, 1.5, N),
        "bonus_malus": rng.integers(50, 150, N),
        "region": rng.integers(0, 22, N),
        "brand": rng.integers(0, 11, N),
        "exposure": rng.uniform(0.1, 1.0, N),
    }
)
policies = policies.with_columns(
    log_density=pl.col("density").log(),
    young=(pl.col("driver_age") < 25).cast(pl.Float64),
)
mu = 0.08 * np.exp(0.6 * policies["young"].to_numpy() + 0.01 * (policies["bonus_malus"].to_numpy() - 80))
policies = policies.with_columns(claims=pl.Series(rng.poisson(mu * policies["exposure"].to_numpy())))

NUM = ["driver_age", "veh_age", "veh_power", "log_density", "bonus_malus", "young"]
num = policies.select(NUM).to_numpy().astype(np.float32)
num = (num - num.mean(0)) / num.std(0)
cat = policies.select(["region", "brand"]).to_numpy().astype(np.int64)

x_num = torch.from_numpy(num)
x_cat = torch.from_numpy(cat)
expo = torch.from_numpy(policies["exposure"].to_numpy().astype(np.float32))
claims = torch.from_numpy(policies["claims"].to_numpy().astype(np.float32))

BATCH = 2048


class SlabLoader:
    def __init__(self, *tensors):
        self.tensors = tensors

    def __iter__(self):
        for idx in torch.randperm(len(self.tensors[0])).split(BATCH):
            yield tuple(t[idx] for t in self.tensors)


class FreqNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.region = nn.Embedding(22, 6)
        self.brand = nn.Embedding(11, 4)
        self.mlp = nn.Sequential(
            nn.Linear(len(NUM) + 10, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, xn, xc):
        z = torch.cat([xn, self.region(xc[:, 0]), self.brand(xc[:, 1])], 1)
        return self.mlp(z).squeeze(1) - 2.5


torch.manual_seed(0)
net = FreqNet()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
poisson = nn.PoissonNLLLoss(log_input=True)

if args.better:
    loader = SlabLoader(x_num, x_cat, expo, claims)
else:
    loader = DataLoader(TensorDataset(x_num, x_cat, expo, claims), batch_size=BATCH, shuffle=True)

times = []
t_begin = time.perf_counter()
epoch = 0
finished = False
while not finished:
    total, n = 0.0, 0
    prev = time.perf_counter()
    for xn, xc, e, c in loader:
        log_rate = net(xn, xc) + e.log()
        loss = poisson(log_rate, c)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(c)
        n += len(c)
        t = time.perf_counter()
        times.append(t - prev)
        prev = t
        if t - t_begin > args.seconds:
            finished = True
            break
    epoch += 1
    print(f"epoch {epoch} deviance {total / n:.5f}")

if args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
