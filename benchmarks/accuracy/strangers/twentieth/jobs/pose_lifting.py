"""2D-to-3D human pose lifting: residual MLP over windows of detected key points, MPJPE loss."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn

JOINTS, WINDOW = 17, 9


def synthesise(frames, seed):
    """A moving skeleton, a pinhole camera, and a noisy detector."""
    rng = np.random.default_rng(seed)
    clock = np.arange(frames)[:, None, None] / 25.0
    rest = rng.normal(0, 0.4, (1, JOINTS, 3))
    swing = rng.normal(0, 0.15, (1, JOINTS, 3)) * np.sin(2 * np.pi * clock * rng.uniform(0.3, 1.5, (1, JOINTS, 1)))
    pose = rest + swing
    camera = pose + np.array([0, 0, 4.0])
    image = camera[..., :2] / camera[..., 2:] * 1.15
    detected = image + rng.normal(0, 0.01, image.shape)
    return detected, pose - pose[:, :1]


class PoseWindows:
    def __init__(self, frames, seed, dtype):
        detected, pose = synthesise(frames, seed)
        self.mean, self.std = detected.mean((0, 1)), detected.std((0, 1))
        self.detected = torch.from_numpy(((detected - self.mean) / self.std).astype(dtype))
        self.pose = torch.from_numpy(pose.astype(dtype))
        self.generator = torch.Generator().manual_seed(seed)
        self.offsets = torch.arange(WINDOW) - WINDOW // 2

    def batches(self, size):
        centres = torch.randperm(len(self.pose) - WINDOW, generator=self.generator) + WINDOW // 2
        for c in centres.split(size):
            if len(c) == size:
                yield self.detected[c[:, None] + self.offsets].flatten(1), self.pose[c]


class Residual(nn.Module):
    def __init__(self, width, dropout=0.1):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        return x + self.net(x)


class Lifter(nn.Module):
    def __init__(self, width=512, blocks=2):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(WINDOW * JOINTS * 2, width), nn.BatchNorm1d(width), nn.ReLU(inplace=True))
        self.blocks = nn.Sequential(*[Residual(width) for _ in range(blocks)])
        self.head = nn.Linear(width, JOINTS * 3)

    def forward(self, keypoints):
        return self.head(self.blocks(self.stem(keypoints))).view(-1, JOINTS, 3)


def mpjpe(predicted, target):
    return torch.linalg.vector_norm(predicted - target, dim=-1).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--batch-size", type=int, default=512)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    windows = PoseWindows(40_000, seed=71, dtype=np.float32 if args.better else np.float64)
    model = Lifter().to(windows.pose.dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9999)

    times, step = [], 0
    begin = last = time.perf_counter()
    while last - begin < args.seconds:
        for keypoints, pose in windows.batches(args.batch_size):
            loss = mpjpe(model(keypoints), pose)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            if step % 50 == 0:
                print(f"step {step} mpjpe {1e3 * loss.item():.1f} mm", flush=True)
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if last - begin >= args.seconds:
                break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
