# Mean Teacher (Tarvainen & Valpola) for semi-supervised text embeddings; lab code
import argparse, copy, json, time
from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional as F


class Encoder(nn.Module):
    def __init__(self, d=192, layers=6, vocab=5000, classes=12):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.1, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.cls = nn.Linear(d, classes)

    def forward(self, x):
        h = self.emb(x)
        for b in self.blocks:
            h = b(h)
        return self.cls(h.mean(1))


def update_teacher(teacher, student, m):
    new = OrderedDict()
    current = copy.deepcopy(student.state_dict())
    old = copy.deepcopy(teacher.state_dict())
    for name, value in current.items():
        new[name] = old[name] * m + value * (1 - m)
    teacher.load_state_dict(new)


def update_teacher_(teacher, student, m):
    with torch.no_grad():
        torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 1 - m)


def ramp(step, length=400):
    p = min(1.0, step / length)
    return float(torch.exp(torch.tensor(-5 * (1 - p) ** 2)))


def main(seconds, better, times_file):
    torch.manual_seed(21)
    student = Encoder()
    teacher = copy.deepcopy(student).requires_grad_(False)
    update = update_teacher_ if better else update_teacher
    opt = torch.optim.AdamW(student.parameters(), lr=3e-4, fused=True)
    labelled = torch.randint(0, 5000, (400, 10))
    labels = torch.randint(0, 12, (400,))
    unlabelled = torch.randint(0, 5000, (4000, 10))

    times, step = [], 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        t0 = time.perf_counter()
        i = torch.randint(0, 400, (4,))
        j = torch.randint(0, 4000, (4,))
        x = torch.cat([labelled[i], unlabelled[j]])
        out = student(x)
        with torch.no_grad():
            target = teacher(x).softmax(-1)
        loss = F.cross_entropy(out[:4], labels[i]) + ramp(step) * F.mse_loss(out.softmax(-1), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        update(teacher, student, min(1 - 1 / (step + 1), 0.996))
        step += 1
        times.append(time.perf_counter() - t0)
        if step % 50 == 0:
            print(step, loss.item())
    if times_file:
        json.dump(times, open(times_file, "w"))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    a = ap.parse_args()
    main(a.seconds, a.better, a.times)
