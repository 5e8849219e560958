"""X-ray findings overlay: segment an image and answer with a PNG for the viewer."""

import argparse, io, json, time
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image

PALETTE = np.array([[0, 0, 0], [230, 60, 60], [60, 140, 230], [240, 200, 40]], np.uint8)


class Down(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(
            nn.Conv2d(i, o, 3, stride=2, padding=1),
            nn.BatchNorm2d(o),
            nn.ReLU(),
            nn.Conv2d(o, o, 3, padding=1),
            nn.ReLU(),
        )


class Segmenter(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.d1, self.d2, self.d3 = Down(1, 48), Down(48, 64), Down(64, 96)
        self.u2, self.u1 = nn.Conv2d(96, 64, 1), nn.Conv2d(64, 48, 1)
        self.head = nn.Conv2d(48, classes, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(a)
        c = self.d3(b)
        b = b + F.interpolate(self.u2(c), size=b.shape[-2:], mode="bilinear", align_corners=False)
        a = a + F.interpolate(self.u1(b), size=a.shape[-2:], mode="bilinear", align_corners=False)
        return self.head(a)


class Viewer:
    """Blends image and findings at display size and encodes the answer."""

    def __init__(self, size=208, alpha=0.35, **png):
        self.size, self.alpha, self.png = size, alpha, png

    def render(self, scan, labels):
        grey = np.repeat(scan[:, :, None], 3, axis=2).astype(np.float32)
        colour = PALETTE[labels].astype(np.float32)
        mixed = np.where(labels[:, :, None] > 0, (1 - self.alpha) * grey + self.alpha * colour, grey)
        buf = io.BytesIO()
        Image.fromarray(mixed.astype(np.uint8)).save(buf, format="PNG", **self.png)
        return buf.getvalue()


class App:
    def __init__(self, viewer):
        torch.manual_seed(0)
        self.net = Segmenter().eval()
        self.viewer = viewer
        self.bytes_out = 0

    @torch.inference_mode()
    def handle(self, scan):
        x = torch.from_numpy(scan).float().div_(127.5).sub_(1.0)[None, None]
        logits = F.interpolate(self.net(x), size=scan.shape, mode="bilinear", align_corners=False)
        labels = logits.argmax(1)[0].numpy()
        png = self.viewer.render(scan, labels)
        self.bytes_out += len(png)
        return {"findings": np.unique(labels).tolist(), "png": png}


def scans(size, n=12):
    rng = np.random.default_rng(3)
    yy, xx = np.mgrid[0:size, 0:size] / size
    out = []
    for _ in range(n):
        cx, cy = rng.uniform(0.3, 0.7, 2)
        base = 160 * np.exp(-8 * ((xx - cx) ** 2 + (yy - cy) ** 2)) + 40 + rng.normal(0, 2, (size, size))
        out.append(np.clip(base, 0, 255).astype(np.uint8))
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    viewer = Viewer(compress_level=1) if a.better else Viewer(optimize=True)
    app, queue = App(viewer), scans(viewer.size)
    times, t_end = [], time.perf_counter() + a.seconds
    while time.perf_counter() < t_end:
        t0 = time.perf_counter()
        answer = app.handle(queue[len(times) % len(queue)])
        times.append(time.perf_counter() - t0)
    print(len(times), "overlays,", app.bytes_out // max(1, len(times)), "bytes each, last findings", answer["findings"])
    if a.times:
        json.dump(times, open(a.times, "w"))


if __name__ == "__main__":
    main()
