"""Learns a residual for the kinematics of a robot arm; the loss matches end-effector Jacobians from calibration."""

import argparse
import json
import time

import torch
from torch import nn
from torch.autograd.functional import jacobian


class Arm(nn.Module):
    """Planar chain of n joints with a learned residual; returns the pose of all markers."""

    def __init__(self, joints=8, markers=12, width=160):
        super().__init__()
        self.length = nn.Parameter(torch.ones(joints) * 0.4)
        self.residual = nn.Sequential(
            nn.Linear(joints, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2 * markers)
        )
        self.markers = markers

    def forward(self, q):
        angle = q.cumsum(-1)
        xy = torch.stack([(self.length * angle.cos()).sum(-1), (self.length * angle.sin()).sum(-1)], -1)
        return xy.repeat(1, self.markers) + 0.1 * self.residual(q)


class JacobianLoss:
    def __init__(self, arm, **options):
        self.arm, self.options = arm, options

    def __call__(self, q, target):
        # the batch is independent: the sum over it gives every sample's own Jacobian
        jac = jacobian(lambda z: self.arm(z).sum(0), q, create_graph=True, **self.options)
        return (jac.transpose(0, 1) - target).square().mean()


def calibration(n, joints, markers, g):
    q = (torch.rand(n, joints, generator=g) - 0.5) * 2
    angle = q.cumsum(-1)
    dx = -(0.42 * angle.sin()).flip(-1).cumsum(-1).flip(-1)
    dy = (0.42 * angle.cos()).flip(-1).cumsum(-1).flip(-1)
    return q, torch.stack([dx, dy], 1).repeat(1, markers, 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--batch", type=int, default=32)
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(8)
    g = torch.Generator().manual_seed(0)
    arm = Arm()
    criterion = JacobianLoss(arm, vectorize=True) if args.better else JacobianLoss(arm)
    opt = torch.optim.Adam(arm.parameters(), lr=1e-3)
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        q, target = calibration(args.batch, 8, 12, g)
        loss = criterion(q, target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
    print(f"{len(times)} steps, loss {loss.item():.5f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
