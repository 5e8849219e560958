import argparse, json, time
import torch
import torch.nn as nn
import torch.nn.functional as F

# Flood extent mapping from Sentinel-1 tiles. FPN-like net: strided encoder, top-down sum, per-pixel head.


def cbr(i, o, s=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.s1 = cbr(2, width // 2, 2)
        self.s2 = nn.Sequential(cbr(width // 2, width, 2), cbr(width, width))
        self.s3 = nn.Sequential(cbr(width, width, 2), cbr(width, width))
        self.s4 = nn.Sequential(cbr(width, width, 2), cbr(width, width))

    def forward(self, x):
        a = self.s2(self.s1(x))
        b = self.s3(a)
        return a, b, self.s4(b)


class PixelHead(nn.Module):
    def __init__(self, width, classes, stride):
        super().__init__()
        self.stride = stride
        self.classify = nn.Conv2d(width, classes, 1)

    def forward(self, f):
        f = F.interpolate(f, scale_factor=self.stride, mode="bilinear", align_corners=False)
        return self.classify(f)


class CoarseHead(PixelHead):
    def forward(self, f):
        return F.interpolate(self.classify(f), scale_factor=self.stride, mode="bilinear", align_corners=False)


class FloodNet(nn.Module):
    def __init__(self, head, width=64):
        super().__init__()
        self.enc = Encoder(width)
        self.lat = nn.ModuleList([nn.Conv2d(width, width, 1) for _ in range(3)])
        self.smooth = cbr(width, width)
        self.head = head

    def forward(self, x):
        a, b, c = (l(f) for l, f in zip(self.lat, self.enc(x)))
        b = b + F.interpolate(c, scale_factor=2.0, mode="nearest")
        a = a + F.interpolate(b, scale_factor=2.0, mode="nearest")
        return self.head(self.smooth(a))


def dice(logits, y):
    p = torch.sigmoid(logits)
    return 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)


def tiles(n, size):
    x = torch.randn(n, 2, size, size)
    y = (F.avg_pool2d(x[:, :1], 9, 1, 4) > 0.05).float()
    return x, y


def main():
    ap = argparse.ArgumentParser("flood")
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    o = ap.parse_args()
    torch.manual_seed(2)
    x, y = tiles(120, 128)
    Head = CoarseHead if o.better else PixelHead
    net = FloodNet(Head(64, 1, 4.0))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.05, total_steps=100_000)
    hist = []
    t_stop = time.perf_counter() + o.seconds
    while time.perf_counter() < t_stop:
        t0 = time.perf_counter()
        i = torch.randperm(len(x))[:3]
        logits = net(x[i])
        loss = F.binary_cross_entropy_with_logits(logits, y[i]) + dice(logits, y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        hist.append(time.perf_counter() - t0)
    print(len(hist), "steps, last loss", loss.item())
    if o.times:
        json.dump(hist, open(o.times, "w"))


if __name__ == "__main__":
    main()
