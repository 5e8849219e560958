"""Keyword spotting on one-second clips; small corpus, many epochs."""

import argparse, json, time
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--times", type=str)
    p.add_argument("--better", action="store_true")
    p.add_argument("--clips", type=int, default=320)
    p.add_argument("--bs", type=int, default=32)
    return p.parse_args()


class Clips(Dataset):
    def __init__(self, n, sr=8000):
        g = torch.Generator().manual_seed(0)
        self.wav = torch.randn(n, sr, generator=g) * 0.1
        self.lab = torch.randint(0, 12, (n,), generator=g)
        self.window = torch.hann_window(256)

    def __len__(self):
        return len(self.wav)

    def __getitem__(self, i):
        w = self.wav[i]
        shift = int(torch.randint(-400, 400, ()))
        w = torch.roll(w, shift) + 0.005 * torch.randn_like(w)
        spec = torch.stft(w, 256, 128, window=self.window, return_complex=True).abs()
        return torch.log1p(spec), self.lab[i]


class KWSNet(nn.Module):
    def __init__(self, classes=12):
        super().__init__()
        self.c1 = nn.Conv1d(129, 96, 5, padding=2)
        self.c2 = nn.Conv1d(96, 96, 5, padding=2)
        self.c3 = nn.Conv1d(96, 96, 5, padding=2)
        self.fc = nn.Linear(96, classes)

    def forward(self, x):
        x = F.relu(self.c1(x))
        x = F.relu(self.c2(x))
        x = F.relu(self.c3(x))
        return self.fc(x.mean(-1))


def make_loader(a):
    extra = {"persistent_workers": True} if a.better else {}
    return DataLoader(Clips(a.clips), batch_size=a.bs, shuffle=True, num_workers=2, drop_last=True, **extra)


def forever(loader):
    epoch = 0
    while True:
        for batch in loader:
            yield epoch, batch
        epoch += 1


def main():
    a = get_args()
    torch.manual_seed(0)
    data = forever(make_loader(a))
    net = KWSNet()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    log, seen, t_start = [], 0, time.perf_counter()
    while True:
        t = time.perf_counter()
        if t - t_start > a.seconds:
            break
        epoch, (x, y) = next(data)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        seen += len(y)
        log.append(time.perf_counter() - t)
    print(f"epochs {epoch} clips {seen} loss {loss.item():.3f}")
    data.close()
    if a.times:
        json.dump(log, open(a.times, "w"))


if __name__ == "__main__":
    main()
