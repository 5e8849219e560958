"""Part segmentation of point clouds with edge convolutions (DGCNN-like)."""

import argparse, json, time
import torch
from torch import nn


def clouds(batch, points):
    """Boxes with a lid: label 1 for points of the lid."""
    p = torch.rand(batch, points, 3) * 2 - 1
    tilt = torch.rand(batch, 1) * 0.6
    label = (p[..., 2] > tilt).long()
    p = p + 0.02 * torch.randn_like(p)
    return p, label


def neighbours(x, k, partial):
    d = torch.cdist(x, x)
    if partial:
        return d.topk(k, dim=-1, largest=False).indices
    return d.argsort(dim=-1)[:, :, :k]


class EdgeConv(nn.Module):
    def __init__(self, cin, cout, k, partial):
        super().__init__()
        self.k, self.partial = k, partial
        self.mlp = nn.Sequential(nn.Linear(2 * cin, cout), nn.LeakyReLU(0.2))

    def forward(self, x):
        b, n, c = x.shape
        idx = neighbours(x.detach(), self.k, self.partial)
        nb = x.gather(1, idx.reshape(b, n * self.k, 1).expand(-1, -1, c)).view(b, n, self.k, c)
        centre = x.unsqueeze(2).expand_as(nb)
        return self.mlp(torch.cat([centre, nb - centre], -1)).amax(2)


class PartNet(nn.Module):
    def __init__(self, k=12, partial=False):
        super().__init__()
        self.e1 = EdgeConv(3, 48, k, partial)
        self.e2 = EdgeConv(48, 64, k, partial)
        self.head = nn.Sequential(nn.Linear(112 + 64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 2))

    def forward(self, p):
        a = self.e1(p)
        b = self.e2(a)
        g = b.amax(1, keepdim=True).expand_as(b)
        return self.head(torch.cat([a, b, g], -1))


def fit(args):
    torch.manual_seed(7)
    net = PartNet(partial=args.better)
    optim = torch.optim.Adam(net.parameters(), 2e-3)
    loss_fn = nn.CrossEntropyLoss()
    hist = []
    t_start = t_last = time.perf_counter()
    correct = seen = 0
    while t_last - t_start < args.seconds:
        p, y = clouds(4, 360)
        out = net(p)
        loss = loss_fn(out.flatten(0, 1), y.flatten())
        optim.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optim.step()
        correct += int((out.argmax(-1) == y).sum())
        seen += y.numel()
        if len(hist) % 30 == 29:
            print(f"{len(hist) + 1} steps, accuracy {correct / seen:.3f}")
            correct = seen = 0
        t = time.perf_counter()
        hist.append(t - t_last)
        t_last = t
    return hist


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=15)
    args = ap.parse_args()
    hist = fit(args)
    if args.times:
        json.dump(hist, open(args.times, "w"))
