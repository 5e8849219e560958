# Stamping press condition monitoring: 1D CNN on vibration snippets, one archive per shift.
import argparse, json, os, tempfile, time
import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader

SHIFTS = 8
PER_SHIFT = 96
LENGTH = 2048


def record_shifts(root):
    rng = np.random.default_rng(11)
    paths = []
    for s in range(SHIFTS):
        t = np.arange(LENGTH) / LENGTH
        f = rng.uniform(20, 90, size=(PER_SHIFT, 1))
        sig = np.sin(2 * np.pi * f * t) * 4000 + rng.normal(0, 40, size=(PER_SHIFT, LENGTH))
        label = (f[:, 0] > 55).astype(np.int64)
        p = os.path.join(root, f"shift_{s:02d}.npz")
        np.savez_compressed(p, signal=sig.astype(np.int16), label=label)
        paths.append(p)
    return paths


class PressData(Dataset):
    def __init__(self, paths, held):
        self.paths = paths
        self.index = [(s, k) for s in range(SHIFTS) for k in range(PER_SHIFT)]
        self.held = [self.read(p) for p in paths] if held else None

    @staticmethod
    def read(path):
        with np.load(path) as z:
            return z["signal"], z["label"]

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        s, k = self.index[i]
        signal, label = self.held[s] if self.held else self.read(self.paths[s])
        x = torch.from_numpy(signal[k].astype(np.float32) / 4096.0)
        return x.unsqueeze(0), int(label[k])


class PressNet(nn.Module):
    def __init__(self, c=32):
        super().__init__()

        def stage(i, o, k, s):
            return nn.Sequential(
                nn.Conv1d(i, o, k, stride=s, padding=k // 2, bias=False), nn.BatchNorm1d(o), nn.ReLU(inplace=True)
            )

        self.body = nn.Sequential(
            stage(1, c, 15, 2),
            stage(c, c, 9, 2),
            stage(c, 2 * c, 9, 2),
            stage(2 * c, 2 * c, 9, 2),
            stage(2 * c, 2 * c, 5, 2),
        )
        self.out = nn.Linear(2 * c, 2)

    def forward(self, x):
        return self.out(self.body(x).mean(-1))


def run(cfg):
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as root:
        ds = PressData(record_shifts(root), held=cfg.better)
        dl = DataLoader(ds, batch_size=16, shuffle=True, drop_last=True)
        net = PressNet()
        opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, fused=True)
        lossf = nn.CrossEntropyLoss()
        net.train()
        times = []
        t0 = last = time.perf_counter()
        stop = False
        while not stop:
            for x, y in dl:
                opt.zero_grad(set_to_none=True)
                loss = lossf(net(x), y)
                loss.backward()
                opt.step()
                now = time.perf_counter()
                times.append(now - last)
                last = now
                if len(times) % 25 == 0:
                    print(f"step {len(times):5d}  ce {loss.item():.4f}")
                if now - t0 > cfg.seconds:
                    stop = True
                    break
    return times


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12.0)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times", type=str, default="")
    cfg = p.parse_args()
    times = run(cfg)
    print("steps", len(times), "mean ms", 1000 * sum(times) / len(times))
    if cfg.times:
        json.dump(times, open(cfg.times, "w"))
