"""Knowledge distillation of an MLP-mixer teacher into a small student."""

import argparse, json, time
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class MixerLayer(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.tok = nn.Sequential(nn.Linear(n, 2 * n), nn.GELU(), nn.Linear(2 * n, n))
        self.ch = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.tok(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.ch(self.n2(x))


class Mixer(nn.Module):
    def __init__(self, d, depth, n=36, classes=20):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 4, 4)
        self.layers = nn.Sequential(*[MixerLayer(n, d) for _ in range(depth)])
        self.head = nn.Linear(d, classes)

    def forward(self, x):
        feats = self.layers(self.patch(x).flatten(2).transpose(1, 2)).mean(1)
        return self.head(feats), feats


class Distiller(nn.Module):
    def __init__(self, teacher, student, T=4.0, alpha=0.7, better=False):
        super().__init__()
        self.teacher, self.student = teacher, student
        self.adapt = nn.Linear(64, 128)
        self.T, self.alpha, self.better = T, alpha, better

    def forward(self, x, y):
        with torch.set_grad_enabled(not self.better):
            t_logits, t_feats = self.teacher(x)
        s_logits, s_feats = self.student(x)
        kd = F.kl_div(F.log_softmax(s_logits / self.T, 1), F.softmax(t_logits / self.T, 1), reduction="batchmean")
        hint = F.mse_loss(self.adapt(s_feats), t_feats)
        ce = F.cross_entropy(s_logits, y)
        return self.alpha * self.T**2 * kd + (1 - self.alpha) * ce + 0.1 * hint


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()
    torch.manual_seed(0)
    teacher, student = Mixer(128, 4).eval(), Mixer(64, 2)
    dist = Distiller(teacher, student, better=a.better)
    opt = torch.optim.AdamW([*student.parameters(), *dist.adapt.parameters()], lr=1e-3)
    data = TensorDataset(torch.randn(1600, 3, 24, 24), torch.randint(0, 20, (1600,)))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    times, t_begin, epoch = [], time.perf_counter(), 0
    while time.perf_counter() - t_begin < a.seconds:
        epoch += 1
        tic = time.perf_counter()
        for x, y in loader:
            loss = dist(x, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            toc = time.perf_counter()
            times.append(toc - tic)
            tic = toc
            if toc - t_begin > a.seconds:
                break
        print(f"epoch {epoch} loss {loss.item():.3f}")
    if a.times:
        json.dump(times, open(a.times, "w"))


main()
